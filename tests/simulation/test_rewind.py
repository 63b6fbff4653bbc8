"""Rewinds on the simulator: an operator of the run goes back by hand, at any moment."""

from typing import Any

import pytest

from everstream.core.orders import Outcome
from everstream.errors import CorruptObject, UserError
from everstream.inspection import look, rewind, state_of
from everstream.inspection.checkpoints import CheckpointStatus
from everstream.simulation.disk import SimulatedDisk
from everstream.simulation.faults import NO_FAULTS
from everstream.simulation.shapes import shape_for
from everstream.simulation.world import World
from everstream.state.store import CheckpointStore
from tests.sampling import first_of
from tests.simulation.counting import COUNTING, KEYS, RECORDS, calm

BY_HAND: dict[str, Any] = {"owner": "by hand", "now": 1_700_000_000.0}


def outside_look(world: World) -> CheckpointStore:
    """The store as another process sees it."""
    return CheckpointStore(world.disk)


def kept(world: World) -> list[int]:
    rows = look(outside_look(world)).checkpoints
    return [
        row.epoch for row in rows if row.status is CheckpointStatus.KEPT and row.epoch is not None
    ]


@pytest.mark.parametrize("seed", first_of(range(20), 6))
def test_a_finished_run_rewound_twice_ends_exact_each_time(seed: int) -> None:
    world = World(seed, shape_for(seed), NO_FAULTS)
    assert world.run().right
    for _ in range(2):
        if not kept(world):
            continue
        rewind(outside_look(world), kept(world)[-1], **BY_HAND)
        world.resume()
        assert world.run().right, world.history.violations


@pytest.mark.parametrize("seed", first_of(range(10), 4))
def test_a_rewind_under_a_live_driver_fences_it_and_the_next_run_is_exact(seed: int) -> None:
    world = calm(seed, COUNTING)
    world.when(
        "epoch 4 is stable",
        lambda: void(rewind(outside_look(world), kept(world)[-1], **BY_HAND)),
    )
    fenced = world.run()
    assert fenced.outcome is Outcome.FAILED
    assert "this driver was replaced" in "\n".join(fenced.notes)
    assert "'by hand' has taken over" in "\n".join(fenced.notes)
    shown = world.outside.counts("out").total()
    assert 0 < shown < RECORDS
    world.resume()
    assert world.run().right, world.history.violations


@pytest.mark.parametrize("seed", first_of(range(5), 2))
def test_kills_after_a_rewind_never_bring_back_what_was_given_up(seed: int) -> None:
    world = calm(seed, COUNTING)
    world.when("epoch 5 is stable", world.stop)
    world.run()
    to = kept(world)[-1]
    rewind(outside_look(world), to, **BY_HAND)
    given_up = {row.slot for row in look(outside_look(world)).checkpoints[1:]}
    world.when("worker 2 receives Resume", lambda: world.kill_worker(1))
    world.when(f"epoch {to + 1} is stable", world.kill_driver)
    world.resume()
    assert world.run().right, world.history.violations
    assert given_up.isdisjoint(
        row.slot
        for row in look(outside_look(world)).checkpoints
        if row.status is CheckpointStatus.CURRENT
    )


def void(_: object) -> None:
    """For actions whose result nobody needs."""


class PrunedWhileReading(SimulatedDisk):
    """A disk on which a live driver goes on while somebody looks at an object."""

    def __init__(self, world: World) -> None:
        super().__init__(world.disk.chance)
        self.files = world.disk.files
        self.prune: Any = None

    def read(self, path: str) -> bytes:
        if path.startswith("objects/") and self.prune is not None:
            prune, self.prune = self.prune, None
            prune()
        return super().read(path)


def test_what_a_live_driver_prunes_meanwhile_is_not_called_damaged() -> None:
    world = calm(0)
    world.run()
    disk = PrunedWhileReading(world)
    disk.prune = lambda: world.store.prune(1)
    rows = look(CheckpointStore(disk), verify=True).checkpoints
    assert disk.prune is None and rows
    assert all(row.complete for row in rows)


def test_state_that_is_pruned_while_it_is_read_is_looked_up_again() -> None:
    world = calm(0)
    world.when("epoch 4 is stable", world.stop)
    world.run()
    disk = PrunedWhileReading(world)
    before = state_of(CheckpointStore(disk), "count")["value"].sum()

    def go_on() -> None:
        world.resume()
        world.run()
        world.store.prune(1)

    disk.prune = go_on
    after = state_of(CheckpointStore(disk), "count")
    assert before < after["value"].sum() == RECORDS and len(after) == KEYS
    disk.prune = go_on
    with pytest.raises(UserError, match="there is no checkpoint of epoch 1; the store has"):
        state_of(CheckpointStore(disk), "count", 1)


def test_state_with_a_rotten_object_is_an_error_that_names_it() -> None:
    world = calm(0)
    world.run()
    for path in world.disk.list("objects/count-0/"):
        world.rot_object(path)
    with pytest.raises(CorruptObject, match=r"object 'count-0/.*its checksum does not match"):
        state_of(outside_look(world), "count")
