"""`everstream scale`: what there is, other numbers for a run that goes on, and for the next one."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import everstream as es
from everstream.cli.app import app
from tests.cli.commands import Command

APP = """
import everstream as es

pipeline = es.Pipeline("ticks")
numbers = pipeline.source(es.Paced(es.Range(10**9), rate=500), name="numbers")
counted = numbers.key_by(lambda n: n % 7).fold(int, lambda c, _: c + 1, name="count", shards=2)
counted.sink(es.JsonLines("out"), name="out")
"""


def ended(*arguments: str) -> tuple[int, str]:
    """The exit code of a command and what it said, in this process."""
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_a_run_gets_other_shards_and_the_next_one_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    arguments = ("--every", "200ms", "--workers", "2", "--store", "store")
    run = Command("run", "app.py", *arguments, cwd=tmp_path)
    shown = tmp_path / "out"
    run.wait_for("output", lambda: shown.is_dir() and any(shown.glob("part-*")))
    code, said = ended("scale", "store", "count=3", "--wait", "60", "--json")
    assert code == 0, said
    assert json.loads(said)["operators"]["count"] == {"shards": 3, "wanted": 3}
    assert json.loads(said)["done"]
    run.process.terminate()
    assert run.end() == 0, run.output
    assert run.says("the run continues with other shards: count 2 to 3")
    code, said = ended("scale", "store", "count=1", "--wait", "0")
    assert code == 0
    assert "it applies to the next one" in said
    check = Command("check", "app.py", "--store", "store", cwd=tmp_path)
    assert check.end() == 0, check.output


def test_what_is_wrong_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline = es.Pipeline("short")
    pipeline.source(es.Range(10), name="numbers").sink(es.Collect(), name="out")
    pipeline.run(store=tmp_path / "store")
    for wish, why in (
        ("nobody=2", "there is no operator 'nobody'; this pipeline has: numbers, out"),
        ("numbers=0", "write OPERATOR=SHARDS"),
        ("numbers", "write OPERATOR=SHARDS"),
    ):
        code, said = ended("scale", "store", wish)
        assert code == 2
        assert why in said
