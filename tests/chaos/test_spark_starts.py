"""Spark's own process is killed while it starts: that is a failure like any other, and tried again."""

import json
from pathlib import Path

import psutil
import pytest

from tests.cli.commands import Command
from tests.gated import TOTAL, expected, open_gate, prepare
from tests.output import rows_in

SUBMIT = "org.apache.spark.deploy.SparkSubmit"
pytestmark = [
    pytest.mark.timeout(900),  # Spark starts four times
    pytest.mark.spark("about Spark's own start"),
]


def java_of(command: Command, *, answers: bool) -> psutil.Process | None:
    """The process of a Spark that is starting: as soon as it is there, or as Python can talk to it."""
    try:
        for child in command.driver().children():
            is_spark = SUBMIT in child.cmdline()  # Java is also asked for its version before
            if is_spark and (not answers or child.net_connections("tcp")):
                return child
    except (psutil.Error, ValueError):  # one driver is gone, and the next is not there yet
        return None
    return None


def kill_starting(command: Command, *, answers: bool) -> None:
    command.wait_for("a starting Spark", lambda: java_of(command, answers=answers) is not None)
    java = java_of(command, answers=answers)
    assert java is not None
    java.kill()


def test_a_spark_that_is_killed_while_it_starts_is_tried_again(tmp_path: Path) -> None:
    prepare(tmp_path, 10_000)
    out = tmp_path / "out"
    command = Command(
        *("run", "steady.py", "--every", "200ms", "--master", "local[2]", "--json", "result.json"),
        cwd=tmp_path,
    )
    kill_starting(command, answers=False)
    command.wait_for("another driver", lambda: command.says("restarting it (1 of 3)"))
    command.wait_for("output", lambda: rows_in(out).total() >= 10_000)
    command.driver().kill()
    command.wait_for("another driver", lambda: command.says("restarting it (2 of 3)"))
    kill_starting(command, answers=True)
    command.wait_for("another driver", lambda: command.says("restarting it (3 of 3)"))
    open_gate(tmp_path, TOTAL)
    assert command.end() == 0, command.output
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["outcome"] == "finished"
    assert result["drivers_lost"] == 3
    assert "Spark's process was killed (SIGKILL) while it started" in command.output
    assert rows_in(out) == expected()


def test_a_spark_that_never_starts_ends_the_run_when_it_was_tried_often_enough(
    tmp_path: Path,
) -> None:
    prepare(tmp_path, TOTAL)
    command = Command("run", "steady.py", "--max-restarts", "1", cwd=tmp_path)
    kill_starting(command, answers=False)
    command.wait_for("another driver", lambda: command.says("restarting it (1 of 1)"))
    kill_starting(command, answers=False)
    assert command.end() == 1
    assert "the driver died 2 times (Spark went away: Spark's process was killed" in command.output
    assert not rows_in(tmp_path / "out")
