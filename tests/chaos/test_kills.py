"""Real processes and SIGKILL: whatever dies, the output equals a plain sequential program's."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

import everstream as es
from everstream.engine.result import RunResult
from tests.sampling import sampled

from .conftest import MASTER, Killer, expected, kill, killable, pid_of, shown
from .places import store_of

pytestmark = pytest.mark.spark("Spark restarts the workers that are killed here")

OFTEN = es.Coordinated(every="200ms")


def run(folder: Path, listener: Killer, **options: object) -> RunResult:
    return killable(folder).run(
        checkpoint=OFTEN,
        store=store_of(folder),
        master=MASTER,
        workers=6,
        max_restarts=10,
        listener=listener,
        **options,
    )


def assert_exact(folder: Path) -> None:
    want, got = expected(), shown(folder)
    assert (sum((want - got).values()), sum((got - want).values())) == (0, 0)


@pytest.mark.parametrize("operator", sampled(["front", "middle", "back"], ["middle"]))
def test_killing_a_source_a_middle_or_a_sink_worker_loses_and_doubles_nothing(
    tmp_path: Path, operator: str
) -> None:
    listener = Killer(
        tmp_path,
        at_epoch=lambda epoch: kill(pid_of(tmp_path, operator)) if epoch == 3 else None,
    )
    result = run(tmp_path, listener)
    assert_exact(tmp_path)
    [report] = result.recoveries
    assert not report.injected
    assert report.caught_up_s is not None
    assert result.records_in == result.records_out == 60_000


def test_killing_two_workers_at_once_loses_and_doubles_nothing(tmp_path: Path) -> None:
    def two(epoch: int) -> None:
        if epoch == 3:
            kill(pid_of(tmp_path, "front"))
            kill(pid_of(tmp_path, "back"))

    result = run(tmp_path, Killer(tmp_path, 2, at_epoch=two))
    assert_exact(tmp_path)
    assert len(result.recoveries) == 2


def test_killing_another_worker_during_recovery_loses_and_doubles_nothing(tmp_path: Path) -> None:
    listener = Killer(
        tmp_path,
        2,
        at_epoch=lambda epoch: kill(pid_of(tmp_path, "middle")) if epoch == 3 else None,
        at_failure=lambda failure: kill(pid_of(tmp_path, "back")) if failure == 1 else None,
    )
    result = run(tmp_path, listener)
    assert_exact(tmp_path)
    assert len(result.recoveries) == 2


def test_a_kill_after_so_many_records_is_injected_once_and_not_held_against_the_run(
    tmp_path: Path,
) -> None:
    result = run(tmp_path, Killer(tmp_path, 3), kill=["count:1@7000", "numbers@20000", "out@1s"])
    assert_exact(tmp_path)
    assert [report.injected for report in result.recoveries] == [True, True, True]
    assert all(report.milliseconds()["detected_ms"] is not None for report in result.recoveries)


def test_a_worker_that_stands_still_is_replaced_and_fenced_when_it_wakes_up(tmp_path: Path) -> None:
    stopped: list[int] = []

    def stop(epoch: int) -> None:
        if epoch == 3:
            stopped.append(pid_of(tmp_path, "middle"))
            os.kill(stopped[0], signal.SIGSTOP)

    def wake(failure: int) -> None:
        with suppress(ProcessLookupError):  # Spark may have ended it already
            os.kill(stopped[0], signal.SIGCONT)

    listener = Killer(tmp_path, at_epoch=stop, at_failure=wake)
    result = run(tmp_path, listener, heartbeat_timeout="3s")
    assert_exact(tmp_path)
    assert any("silent" in report.what for report in result.recoveries)
