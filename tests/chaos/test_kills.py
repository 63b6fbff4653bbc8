"""Real processes and SIGKILL: whatever dies, the output equals a plain sequential program's."""

from pathlib import Path

import pytest

import everstream as es
from everstream.spark.result import RunResult

from .conftest import MASTER, Killer, expected, kill, killable, pid_of, shown

OFTEN = es.Coordinated(every="200ms")


def run(folder: Path, listener: Killer, **options: object) -> RunResult:
    return killable(folder).run(
        checkpoint=OFTEN,
        store=folder / "store",
        master=MASTER,
        workers=6,
        max_restarts=10,
        listener=listener,
        **options,
    )


def assert_exact(folder: Path) -> None:
    want, got = expected(), shown(folder)
    assert (sum((want - got).values()), sum((got - want).values())) == (0, 0)


@pytest.mark.parametrize("operator", ["front", "middle", "back"])
def test_killing_a_source_a_middle_or_a_sink_host_loses_and_doubles_nothing(
    folder: Path, operator: str
) -> None:
    listener = Killer(at_epoch=lambda epoch: kill(pid_of(folder, operator)) if epoch == 3 else None)
    result = run(folder, listener)
    assert_exact(folder)
    [report] = result.recoveries
    assert not report.injected
    assert report.caught_up_s is not None
    assert result.records_in == result.records_out == 60_000


def test_killing_two_hosts_at_once_loses_and_doubles_nothing(folder: Path) -> None:
    def two(epoch: int) -> None:
        if epoch == 3:
            kill(pid_of(folder, "front"))
            kill(pid_of(folder, "back"))

    result = run(folder, Killer(at_epoch=two))
    assert_exact(folder)
    assert len(result.recoveries) == 2


def test_killing_another_host_during_recovery_loses_and_doubles_nothing(folder: Path) -> None:
    listener = Killer(
        at_epoch=lambda epoch: kill(pid_of(folder, "middle")) if epoch == 3 else None,
        at_failure=lambda failure: kill(pid_of(folder, "back")) if failure == 1 else None,
    )
    result = run(folder, listener)
    assert_exact(folder)
    assert len(result.recoveries) == 2


def test_a_kill_after_so_many_records_is_injected_once_and_not_held_against_the_run(
    folder: Path,
) -> None:
    result = run(folder, Killer(), kill=["count:1@7000", "numbers@20000", "out@1s"])
    assert_exact(folder)
    assert [report.injected for report in result.recoveries] == [True, True, True]
    assert all(report.milliseconds()["detected_ms"] is not None for report in result.recoveries)
