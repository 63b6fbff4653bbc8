"""A second command stands by for a first: whatever is killed, one of them goes on, exactly.

Commands are started while others run, so that few Spark processes have to start one after the other.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from everstream.core.fault_points import Point
from tests.cli.commands import Command
from tests.gated import TOTAL, expected, open_gate, prepare
from tests.output import rows_in

pytestmark = pytest.mark.timeout(900)  # several Spark processes start


class Stage:
    """One store, one output, and commands that run on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        prepare(folder, 5_000)

    def run(self, *more: str) -> Command:
        same = ("run", "steady.py", "--every", "200ms", "--master", "local[2]", "--store", "store")
        return Command(*same, *more, cwd=self.folder)

    def stand_by(self, *more: str) -> Command:
        """Waits already when it is given back, and the driver knows it."""
        command = self.run("--standby", *more)
        command.wait_for("a standby", lambda: command.says("standing by: "))
        heartbeat = self.folder / "store" / "standby" / "pulse"
        first = heartbeat.read_bytes()
        command.wait_for("a sign of life", lambda: heartbeat.read_bytes() != first)
        return command

    def shows(self, records: int) -> Callable[[], bool]:
        return lambda: rows_in(self.folder / "out").total() >= records

    def open(self, gate: int) -> None:
        open_gate(self.folder, gate)

    def is_exact(self) -> bool:
        return rows_in(self.folder / "out") == expected()


def kill_all(command: Command) -> None:
    """Monitor, driver, Java and workers, in one go: as if the machine had died."""
    monitor = psutil.Process(command.process.pid)
    for process in [monitor, *monitor.children(recursive=True)]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


@pytest.mark.long  # Spark starts four times
@pytest.mark.spark("a local driver is replaced before a standby notices that it is gone")
def test_a_standby_goes_on_when_everything_of_the_first_is_killed(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    first = stage.run()
    first.wait_for("output", stage.shows(5_000))
    second = stage.stand_by()
    first.driver().kill()  # only the driver: its monitor starts another one, which is too late
    stage.open(20_000)
    second.wait_for("output of the second", stage.shows(20_000))
    assert second.says("taking over from 'steady pid"), second.output
    assert first.end() == 1, first.output
    assert first.says("has taken over this store"), first.output
    third = stage.stand_by("--kill", f"driver@{Point.IN_RESTORE.value}")
    kill_all(second)
    stage.open(30_000)
    third.wait_for("output of the third", stage.shows(30_000))
    assert third.says("the driver died (killed by SIGKILL)"), third.output
    fourth = stage.stand_by()
    stage.open(TOTAL)
    assert third.end() == 0, third.output
    assert fourth.end() == 0, fourth.output
    assert fourth.says("the run that this standby waited for has finished"), fourth.output
    assert stage.is_exact()


def test_a_first_driver_that_only_slept_commits_nothing_and_says_why_it_ends(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    first = stage.run()
    first.wait_for("output", stage.shows(5_000))
    second = stage.stand_by()
    sleeping = first.driver()
    sleeping.suspend()
    stage.open(20_000)
    second.wait_for("output of the second", stage.shows(20_000))
    sleeping.resume()
    assert first.end() == 1, first.output
    assert first.says("this driver was replaced: lease"), first.output
    third = stage.stand_by()
    os.kill(second.process.pid, signal.SIGINT)
    assert second.end() == 0, second.output
    assert third.end() == 0, third.output
    assert third.says("was stopped on purpose, with a checkpoint"), third.output
    stage.open(TOTAL)
    assert stage.run("--standby").end() == 0, "nobody is there: it runs at once"
    assert stage.is_exact()


POINTS = [point.value for point in Point if point is not Point.AFTER_COMMIT]
"""Between a commit and its report there is nothing of a driver's."""


@pytest.mark.long  # one of them is in the first test of this file
@pytest.mark.parametrize("point", POINTS)
def test_a_standby_that_is_killed_while_it_takes_over_goes_on_exactly(
    tmp_path: Path, point: str
) -> None:
    """Its monitor starts the next driver, which need not wait for the silence of its own."""
    stage = Stage(tmp_path)
    first = stage.run()
    first.wait_for("output", stage.shows(5_000))
    second = stage.stand_by("--kill", f"driver@{point}")
    kill_all(first)
    stage.open(TOTAL)
    assert second.end() == 0, second.output
    assert second.says("the driver died (killed by SIGKILL)"), second.output
    assert stage.is_exact()


def test_a_standby_needs_a_store_and_does_not_start_afresh(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    refused = stage.run("--standby", "--fresh", "--yes")
    assert refused.end() == 2
    assert refused.says("a standby resumes from the checkpoints of the store"), refused.output
