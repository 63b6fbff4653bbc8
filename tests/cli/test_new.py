"""`everstream new` writes a project that runs, continues, and passes its own test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from everstream.cli.project.new import TEMPLATES, write_project
from everstream.errors import UserError


def everstream(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "everstream", *arguments],
        cwd=folder,
        env={name: text for name, text in os.environ.items() if name != "EVERSTREAM_ENGINE"},
        capture_output=True,
        text=True,
    )


def lines(folder: Path) -> list[str]:
    parts = sorted((folder / "totals").glob("*.jsonl"))
    return sorted(line for part in parts for line in part.read_text().splitlines())


def test_a_new_project_runs_and_continues_with_what_is_new(tmp_path: Path) -> None:
    made = everstream(tmp_path, "new", "shop")
    assert made.returncode == 0 and "everstream run pipeline.py" in made.stdout
    shop = tmp_path / "shop"
    assert {str(path.relative_to(shop)) for path in shop.rglob("*.*")} == set(TEMPLATES)
    first = everstream(shop, "run", "pipeline.py")
    assert first.returncode == 0, first.stdout + first.stderr
    assert lines(shop) == ['["ann",1250]', '["ann",2000]', '["bob",300]']
    (shop / "orders" / "more.jsonl").write_text('{"customer": "bob", "cents": 7}\n')
    assert everstream(shop, "run", "pipeline.py").returncode == 0
    assert lines(shop) == ['["ann",1250]', '["ann",2000]', '["bob",300]', '["bob",307]']


def test_the_tests_of_a_new_project_pass_and_fail_when_it_is_wrong(tmp_path: Path) -> None:
    write_project(tmp_path / "shop")

    def tested() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
            cwd=tmp_path / "shop",
            capture_output=True,
            text=True,
        )

    passed = tested()
    assert passed.returncode == 0 and "2 passed" in passed.stdout, passed.stdout
    program = tmp_path / "shop" / "pipeline.py"
    program.write_text(program.read_text().replace("total + order", "total - order"))
    assert "2 failed" in tested().stdout


def test_nothing_that_exists_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        write_project(tmp_path / "kept")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        write_project(tmp_path / "file")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ["1st", "two words", "a.b", "-x"])
def test_a_name_that_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="begin with a letter"):
        write_project(tmp_path / name)
    assert not (tmp_path / name).exists()
