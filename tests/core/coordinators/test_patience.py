"""What the coordinator says when it waits, and when it keeps quiet."""

import pytest

from everstream.core.coordinators.stall_warning import StallWarning
from everstream.core.ids import CheckpointNumber
from everstream.core.messages import Progress
from everstream.core.orders import Order, Policy, WriteManifest
from everstream.events import Stalled, listed

from .coordinating import DOUBLE, NUMBERS, P1, Run, of


def stalls(orders: list[Order]) -> list[Stalled]:
    return of(orders, Stalled)


def run() -> Run:
    return Run(Policy(every_s=10.0, slow_after_s=5.0)).to_running()


def test_a_wait_is_said_once_it_is_long_and_again_each_time_it_has_doubled() -> None:
    patience = StallWarning(5.0)
    said = [at for at in range(50) if patience.due("epoch 1", float(at)) is not None]
    assert said == [5, 10, 20, 40]


def test_another_wait_starts_from_nothing() -> None:
    patience = StallWarning(5.0)
    assert patience.due("epoch 1", 0.0) is None
    assert patience.due("epoch 2", 6.0) is None
    assert patience.due(None, 20.0) is None
    assert patience.due("epoch 2", 21.0) is None
    assert patience.due("epoch 2", 26.0) == 5.0


AT_THE_MARKER = f"back-pressure: the marker has not reached {DOUBLE}"
IN_SLICES = f"the size of the state: still being captured by {DOUBLE}"
IN_THE_STORE = f"the store: it has not saved the checkpoint of {DOUBLE}"


@pytest.mark.parametrize(
    ("taken", "handed_over", "ended", "why"),
    [
        (0, 0, False, AT_THE_MARKER),
        (1, 0, False, IN_SLICES),
        (1, 1, False, IN_THE_STORE),
        (0, 0, True, IN_THE_STORE),
    ],
)
def test_a_slow_epoch_is_said_with_the_shards_that_are_missing_and_what_holds_it_up(
    taken: int, handed_over: int, ended: bool, why: str
) -> None:
    it = run()
    it.tick(10.0)
    it.taken(1, NUMBERS)
    numbers = CheckpointNumber(taken), CheckpointNumber(handed_over)
    it.report(Progress(DOUBLE, it.it.generation, {}, ended, 0, None, *numbers))
    it.tick(11.0)
    assert stalls(it.tick(16.0)) == [Stalled("epoch 1", 5.0, (str(DOUBLE),), why)]
    assert stalls(it.tick(17.0)) == []


def test_a_slow_epoch_is_held_up_by_back_pressure_and_the_store_at_once() -> None:
    it = run()
    it.tick(10.0)
    one = CheckpointNumber(1)
    it.report(Progress(NUMBERS, it.it.generation, {}, False, 0, None, one, one))
    it.tick(11.0)
    [stalled] = stalls(it.tick(16.0))
    stored = f"the store: it has not saved the checkpoint of {NUMBERS}"
    assert stalled.held_up_by == f"{AT_THE_MARKER}; by {stored}"


def test_a_manifest_that_hangs_is_said_and_that_going_back_waits_for_it() -> None:
    it = run()
    it.tick(10.0)
    assert of(it.taken(1, NUMBERS, DOUBLE), WriteManifest)
    it.tick(11.0)
    assert stalls(it.tick(16.0)) == [
        Stalled("writing the manifest of epoch 1", 5.0, (), "the store: it has not answered")
    ]
    it.it.on_process_lost(P1, "killed", 17.0)
    it.tick(17.0)
    [stalled] = stalls(it.tick(22.0))
    assert "the rollback starts after it" in f"{stalled.what} {stalled.held_up_by}"


def test_restoring_is_said_only_when_every_worker_is_there() -> None:
    it = run()
    it.it.on_process_lost(P1, "killed", 1.0)
    assert stalls(it.tick(1.0)) == stalls(it.tick(9.0)) == []
    it.it.on_process_joined(P1, "address", 10.0)
    it.tick(10.0)
    [stalled] = stalls(it.tick(15.0))
    assert stalled.what.startswith("restoring epoch 0") and str(NUMBERS) in stalled.missing


def test_a_run_that_waits_for_nothing_says_nothing() -> None:
    it = run()
    it.epoch(1, at_s=10.0)
    assert stalls(it.tick(19.0)) == []


def test_long_lists_are_cut() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(list("abcdef")) == "a, b, c, d and 2 more"
