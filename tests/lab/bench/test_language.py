"""The benchmark of the language: each part runs, compares what comes out, and keeps the other figures."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream_lab.bench.language import operators
from everstream_lab.bench.language.runner import PARTS


@pytest.fixture(autouse=True)
def _few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    few = operators.numbers(60_000)
    monkeypatch.setattr(operators, "numbers", lambda: few)


@pytest.mark.parametrize("name", operators.PARTS)
def test_an_operator_gives_as_many_rows_as_polars(name: str) -> None:
    theirs, mine = operators.figures_of(name, 1, lambda text: None)
    assert mine.value > 0 and mine.ratio is not None and theirs.value > 0


def test_parts_are_measured_alone_and_the_other_figures_stay(tmp_path: Path) -> None:
    file = tmp_path / "language.json"
    for name in ("deduplicate", "top_k"):
        command = ["bench", "language", "--only", name, "--rounds", "1", "--json", str(file)]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    names = json.loads(file.read_text())["figures"].keys()
    for name in ("deduplicate", "top_k"):
        assert operators.NAMES[name] in names


def test_an_unknown_part_is_refused_with_those_that_there_are() -> None:
    done = CliRunner().invoke(app, ["bench", "language", "--only", "sorting"])
    assert done.exit_code != 0
    assert all(name in str(done.exception or done.output) for name in PARTS)
