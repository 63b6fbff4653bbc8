"""`everstream annotate`, and annotated functions on the command line."""

import math
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import everstream.engine.run
from everstream.cli.app import app
from everstream.cli.runs.arguments import RunCommand
from everstream.cli.runs.finding import load_pipeline
from everstream.errors import UserError
from tests.docs import simulated

PROGRAM = """
import math
from collections import Counter

import everstream as es

BASE = 2


def scaled(n):
    return n * BASE


@es.annotated
def main(limit, text: str = "none"):
    total = 0
    counts = Counter()
    with es.ToStream():
        for n in range(limit):
            with es.Stage(replicate=2):
                root = math.isqrt(scaled(n))
            with es.Stage(state=[total]):
                total += root
            with es.Stage(state=[counts], key=root % 3, replicate=2):
                counts[root % 3] += 1
    return total, sorted(counts.items()), text
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(everstream.engine.run, "run", simulated.run)
    before = set(sys.modules)
    Path("roots.py").write_text(PROGRAM)
    yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


def said(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*words])
    return done.exit_code, done.output


def test_arguments_on_the_command_line_are_those_of_the_function() -> None:
    returned = load_pipeline("roots.py:main", ["limit=30", "text=5"]).run().returned
    assert returned[0] == sum(math.isqrt(n * 2) for n in range(30))
    assert returned[2] == "5", "a parameter of type str stays a text"
    assert load_pipeline("roots.py", ["limit=3"]).name == "main"


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "'main' needs arguments: say -- limit=... at the end"),
        (["30"], "'30': write NAME=VALUE, as in -- limit=500"),
        (["limits=30"], "'main' has no parameter 'limits'; it has: limit, text"),
    ],
)
def test_wrong_arguments_are_said(arguments: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        load_pipeline("roots.py:main", arguments)


def test_a_pipeline_takes_no_arguments() -> None:
    Path("plain.py").write_text("import everstream as es\np = es.Pipeline('p')\n")
    with pytest.raises(UserError, match="'p' takes no arguments"):
        load_pipeline("plain.py", ["limit=3"])


def test_arguments_reach_the_driver() -> None:
    command = RunCommand("roots.py:main", arguments=("limit=30",))
    assert RunCommand.from_json(command.to_json()) == command


def test_the_printed_program_runs_by_itself_and_gives_the_same() -> None:
    code, text = said("annotate", "roots.py:main", "--", "limit=40", "text=x")
    assert code == 0
    assert "In: n. Out: root." in text, "what was found is shown"
    Path("printed.py").write_text(text)
    names: dict[str, Any] = runpy.run_path("printed.py")
    returned = names["pipeline"].run().returned
    sequential = subprocess.run(
        [sys.executable, "-c", "import roots; print(roots.main(40, 'x'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert repr(returned) == sequential.strip()


def test_a_mistake_is_shown_with_its_line_by_every_command() -> None:
    program = PROGRAM.replace("state=[total]", "name='sum'")
    Path("wrong.py").write_text(program)
    line = program.splitlines().index("                total += root") + 1
    code, text = said("annotate", "wrong.py")
    assert code == 2
    assert f"wrong.py, line {line}: 'total' is from before the region" in text
    assert "                total += root" in text and "^^^^^" in text
    assert "Say state=[total]" in text


@pytest.mark.parametrize(
    "target, says",
    [
        ("roots.py:other", "has no annotated function 'other'; there are: main"),
        ("plain.py", "has no function with @es.annotated"),
    ],
)
def test_what_is_not_there_is_said(target: str, says: str) -> None:
    Path("plain.py").write_text("x = 1\n")
    code, text = said("annotate", target)
    assert code == 2 and says in text
