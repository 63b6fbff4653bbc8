"""A driver that dies between its last manifest and the last commit leaves nothing unshown."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import everstream as es
from everstream.core.orders import Outcome
from everstream.engine.result import RunResult
from tests.output import records_in

from .conftest import MASTER

SCRIPT = """
import sys
from pathlib import Path
from tests.chaos.test_last_commit import run

run(Path(sys.argv[1]), *sys.argv[2:])
"""


def run(folder: Path, *kills: str) -> RunResult:
    pipeline = es.Pipeline("short")
    numbers = pipeline.source(es.Range(100), name="numbers")
    numbers.sink(es.JsonLines(folder / "out"), name="out")
    return pipeline.run(
        checkpoint=es.Coordinated(every="1h"), store=folder / "store", master=MASTER, kill=kills
    )


def run_elsewhere(folder: Path, *kills: str) -> "subprocess.CompletedProcess[str]":
    """In a process of its own, which may be killed."""
    command = [sys.executable, "-c", SCRIPT, str(folder), *kills]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_a_driver_killed_after_its_last_manifest_is_replaced_by_one_that_commits(
    tmp_path: Path,
) -> None:
    """The only epoch is the last one, and the driver dies when its manifest is written, unsaid."""
    killed = run_elsewhere(tmp_path, "driver@after-prepare")
    assert killed.returncode == -9, killed.stderr
    assert Counter(records_in(tmp_path / "out")) == Counter()
    for _ in range(2):  # the second time there is nothing left to do
        assert run(tmp_path).outcome is Outcome.FINISHED
        assert Counter(records_in(tmp_path / "out")) == Counter(range(100))
