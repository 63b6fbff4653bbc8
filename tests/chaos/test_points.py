"""Kills at the named points of a checkpoint's life, for workers and for the driver."""

from pathlib import Path

import pytest

import everstream as es
from everstream.core.fault_points import Point

from .conftest import MASTER, Killer, expected, killable, open_gate, shown
from .drivers import finish, start
from .places import store_of

WORKER_KILLS = {
    "snapshots": ["count:0@before-snapshot#2", "count:1@in-snapshot#3", "middle@after-snapshot#4"],
    "commits": ["out@after-prepare#2", "out@in-commit#2", "out@after-commit#2"],
    "restore": ["front@in-snapshot#3", "count:0@in-restore"],
}


@pytest.mark.parametrize("story", WORKER_KILLS)
def test_workers_killed_at_named_points_lose_and_double_nothing(tmp_path: Path, story: str) -> None:
    result = killable(tmp_path).run(
        checkpoint=es.Coordinated(every="200ms"),
        store=store_of(tmp_path),
        master=MASTER,
        workers=6,
        kill=WORKER_KILLS[story],
        listener=Killer(tmp_path, len(WORKER_KILLS[story])),
    )
    assert shown(tmp_path) == expected()
    assert [report.injected for report in result.recoveries] == [True] * len(WORKER_KILLS[story])


def check_drivers_killed_at(points: list[Point], folder: Path) -> None:
    """One driver after the other goes on from where the last one was killed."""
    for point in points:
        occurrence = 1 if point is Point.IN_RESTORE else 2
        killed = start(folder, f"driver@{point.value}#{occurrence}")
        assert killed.wait() == -9
    open_gate(folder)
    finish(folder)
    assert shown(folder) == expected()


def test_a_driver_killed_before_and_after_its_manifest_is_replaced_exactly(tmp_path: Path) -> None:
    check_drivers_killed_at([Point.AFTER_SNAPSHOT, Point.AFTER_PREPARE], tmp_path)


@pytest.mark.long
def test_drivers_killed_at_every_other_named_point_are_replaced_exactly(tmp_path: Path) -> None:
    check_drivers_killed_at(
        [Point.BEFORE_SNAPSHOT, Point.IN_SNAPSHOT, Point.IN_COMMIT, Point.IN_RESTORE], tmp_path
    )
