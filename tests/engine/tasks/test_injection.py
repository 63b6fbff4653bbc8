"""Kills on purpose: each happens once, and none is lost because its worker died of something else."""

import everstream as es
from everstream.core.fault_points import Point
from everstream.core.ids import WorkerId
from everstream.core.plan import make_plan
from everstream.engine.faults.injection import Injector
from everstream.engine.faults.kills import Kill
from everstream.engine.reporting.listener import Listener
from everstream.events import Killing, RunEvent

WORKER = WorkerId(0)


class Heard(Listener):
    def __init__(self) -> None:
        self.kills: list[RunEvent] = []

    def on_event(self, event: RunEvent) -> None:
        self.kills.append(event)


def injector(*kills: str) -> tuple[Injector, Heard]:
    pipeline = es.Pipeline("kills")
    pipeline.source(es.Range(10), name="numbers").collect()
    heard = Heard()
    return Injector([Kill.parse(kill) for kill in kills], make_plan(pipeline, 1), heard), heard


def test_a_kill_in_time_is_asked_for_once_and_again_of_a_worker_that_died_of_something_else() -> (
    None
):
    it, heard = injector("numbers@2s")
    assert list(it.due(1.0)) == []
    [(worker, order)] = it.due(2.0)
    it.asked(worker, order.kill)
    assert list(it.due(3.0)) == []
    assert list(it.for_new_worker(WORKER)) == []
    [(worker, again)] = it.due(3.0)
    assert again == order
    it.asked(worker, again.kill)
    it.happening(again.kill)
    assert list(it.for_new_worker(WORKER)) == []
    assert list(it.due(4.0)) == []
    assert heard.kills == [Killing("numbers", 0, "numbers:0@2.0s")]


def test_a_new_worker_watches_for_the_kills_that_have_not_happened() -> None:
    it, _ = injector("numbers@5", "collect@after-prepare#2")
    assert [type(order).__name__ for order in it.for_new_worker(WORKER)] == ["KillAfter", "KillAt"]
    it.happening(0)
    [left] = it.for_new_worker(WORKER)
    assert (left.kill, getattr(left, "point", None)) == (1, Point.AFTER_PREPARE)
