"""Ctrl-C ends a command with exit code 130 and without a traceback, also before Spark starts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import ROOT
from tests.processes import PATIENCE_S

COMMAND = "from everstream_command import main; main()"
BLOCKS = """
import time
print("blocked", flush=True)
while True:
    time.sleep(0.05)  # a lock would not see a signal that another thread receives
"""


def interrupted(*arguments: str, cwd: Path, path: Path) -> tuple[int, str]:
    """Exit code and standard error of a command that gets Ctrl-C once it prints "blocked"."""
    searched = os.pathsep.join([str(path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": searched},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "blocked\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
        return process.returncode, errors


@pytest.mark.parametrize(
    ("module", "command"), [("typer", ["--version"]), ("polars", ["run", "app.py"])]
)
def test_while_the_library_loads(module: str, command: list[str], tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(BLOCKS)
    assert interrupted(*command, cwd=tmp_path, path=tmp_path) == (130, "")


@pytest.mark.parametrize("command", [["run", "--fresh", "--yes"], ["check"], ["annotate"]])
def test_while_a_command_loads_the_pipeline(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(BLOCKS)
    name, *options = command
    code, errors = interrupted(name, "slow.py", *options, cwd=tmp_path, path=tmp_path / "none")
    assert code == 130
    assert "Traceback" not in errors
