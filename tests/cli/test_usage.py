"""What is wrong with a command is said in one line with exit code 2, before Spark starts."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import everstream as es
from everstream.cli.app import app
from everstream.cli.runs.arguments import RunCommand
from everstream.pipeline.options import SETTINGS
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


def test_the_help_of_run_fits_two_screens() -> None:
    said = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "100"})
    assert len(said.output.splitlines()) <= 88
    for name, setting in SETTINGS.items():
        assert not setting.flag or (setting.flag in said.output and setting.brief), name


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--every", "banana"],
            "'banana' is not a duration: write it like 500ms, 5s, 2m, 1h or 1d",
        ),
        (["--every", "0s"], "--every 0s: the time must be positive"),
        (["--timeout", "soon"], "'soon' is not a duration"),
        (["--heartbeat-timeout", "0s"], "--heartbeat-timeout 0s: the time must be positive"),
        (["--checkpoint-timeout", "0s"], "--checkpoint-timeout 0s: the time must be positive"),
        (
            ["--checkpoint", "none", "--every", "1s"],
            "need checkpoints, but the protocol is none",
        ),
        (["--checkpoint", "none", "--log", "memory"], "need checkpoints"),
        (
            ["--checkpoint", "unaligned", "--log", "durable"],
            "unaligned keeps no log: remove log",
        ),
        (["--checkpoint", "bcs", "--log", "tape"], "tape"),
        (
            ["--checkpoint", "sometimes"],
            "'sometimes' is not a checkpoint protocol: use one of aligned",
        ),
        (["--workers", "0"], "--workers 0: give a whole number from 1 up"),
        (["--engine", "steam"], "--engine steam: use one of tasks, microbatch"),
        (["--renamed", "a"], "--renamed a: write OLD=NEW"),
        (["--worker-memory", "much"], "--worker-memory much: "),
        (["--monitor", "1ms"], "the shortest period is 50ms"),
    ],
)
def test_a_wrong_option_is_named(options: list[str], says: str) -> None:
    said = CliRunner().invoke(app, ["run", WORD_COUNT, *options], env={"COLUMNS": "200"})
    assert said.exit_code == 2
    assert says in said.output
    assert "Traceback" not in said.output


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, es.Coordinated()),
        ({"checkpoint": "aligned"}, es.Coordinated()),
        ({"every": "2s"}, es.Coordinated(every="2s")),
        ({"checkpoint": "unaligned"}, es.Coordinated(mode="unaligned")),
        ({"checkpoint": "at-least-once"}, es.Coordinated(mode="at-least-once")),
        ({"checkpoint": "uncoordinated", "every": "2s"}, es.Uncoordinated(every="2s")),
        ({"checkpoint": "uncoordinated", "log": "memory"}, es.Uncoordinated(log="memory")),
        ({"checkpoint": "hmnr", "every": "2s"}, es.CommunicationInduced(every="2s", rule="hmnr")),
        ({"checkpoint": "bcs", "log": "durable"}, es.CommunicationInduced(rule="bcs")),
        ({"checkpoint": "none"}, None),
    ],
)
def test_each_word_after_checkpoint_chooses_a_protocol(
    options: dict[str, str], chosen: object
) -> None:
    asked = RunCommand("pipeline.py", options)
    asked.check()
    assert RunCommand.from_json(asked.to_json()).options.checkpoint == chosen


CYCLIC = """
import everstream as es
pipeline = es.Pipeline("round")
numbers = pipeline.source(es.Range(10), name="numbers")
hop = numbers.key_by(lambda n: n).map(lambda n: n, name="hop", shards=2)
hop.feedback(to=hop)
hop.sink(es.Collect(), name="out")
"""


def test_aligned_checkpoints_of_a_cycle_are_one_clear_line_that_names_the_others(
    tmp_path: Path,
) -> None:
    (tmp_path / "round.py").write_text(CYCLIC)
    for checkpoint in ("aligned", "at-least-once"):
        command = Command("run", "round.py", "--checkpoint", checkpoint, cwd=tmp_path)
        assert command.end() == 2
        for name in ("'hop'", "unaligned", "hmnr", "bcs", "uncoordinated"):
            assert name in command.lines[-1]
        assert "Traceback" not in command.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.py"], "there is no file 'nothing.py'"),
        (
            [WORD_COUNT, "--kill", "flod@5s"],
            "there is no operator 'flod'; this pipeline has: text_lines, flat_map, fold",
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
