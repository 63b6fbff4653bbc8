"""What is wrong with a command is said in one line with exit code 2, before Spark starts."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from everstream.cli import app
from tests.cli.commands import ROOT, Command

WORD_COUNT = str(ROOT / "examples" / "word_count.py")


def test_the_version_is_that_of_the_package() -> None:
    said = CliRunner().invoke(app, ["--version"])
    assert said.exit_code == 0
    assert said.output.startswith("everstream 0.")


@pytest.mark.parametrize(
    "command", [["--help"], ["run", "--help"], ["demo", "--help"], ["audit", "--help"]]
)
def test_help_teaches_with_an_example(command: list[str]) -> None:
    said = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert said.exit_code == 0
    if len(command) > 1:
        assert f"Example: everstream {command[0]}" in said.output
        assert "Exit codes: 0" in said.output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--every", "banana"], "'banana' is no duration: write it like 500ms, 5s, 2m or 1h"),
        (["--every", "0s"], "the time between checkpoints must be positive"),
        (["--timeout", "soon"], "'soon' is no duration"),
        (["--checkpoint", "none", "--every", "1s"], "need --checkpoint coordinated"),
        (["--checkpoint", "sometimes"], "sometimes"),
        (["--workers", "0"], "--workers"),
    ],
)
def test_a_wrong_option_is_named(options: list[str], says: str) -> None:
    said = CliRunner().invoke(app, ["run", WORD_COUNT, *options], env={"COLUMNS": "200"})
    assert said.exit_code == 2
    assert says in said.output
    assert "Traceback" not in said.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.py"], "there is no file 'nothing.py'"),
        (
            [WORD_COUNT, "--kill", "agregate@5s"],
            "there is no operator 'agregate'; this pipeline has: text_lines, flat_map, aggregate",
        ),
    ],
)
def test_a_wrong_name_is_one_clear_line_and_code_2(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    (tmp_path / "books").symlink_to(ROOT / "examples" / "books")
    command = Command("run", *arguments, cwd=tmp_path)
    assert command.end() == 2
    assert says in command.lines[-1]
    assert command.lines[-1].startswith("everstream: ")
    assert "Traceback" not in command.output
