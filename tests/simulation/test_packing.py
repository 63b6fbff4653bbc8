"""Workers that are gone for good: their shards are packed onto the others, and spread again later."""

import pytest

from everstream.core.orders import Outcome
from everstream.core.plan_change import PlanChange
from everstream.core.registry import PROTOCOLS
from everstream.events import PlanChanged, RunEvent, WorkersPacked
from everstream.simulation import checks
from everstream.simulation.faults import NO_FAULTS, Faults
from everstream.simulation.shapes import shape_for
from everstream.simulation.storm import policy_for, scheme_for
from everstream.simulation.world import PACK_AFTER_S, World

CHECKPOINTING = [name for name, protocol in PROTOCOLS.items() if protocol.choice is not None]
ROUND = [name for name in CHECKPOINTING if PROTOCOLS[name].cycles]
QUICK, MANY = 8, 500

LOST_SLOTS = Faults(lost_slots=3, rescales=2, worker_kills=2, ambushes=1)
"""Machines are lost for good in addition to other faults: shards are packed, and spread again."""


def check(protocol: str, seeds: range, cycles: bool = False) -> tuple[int, int]:
    """How often shards were packed and spread in these runs, which must all be right."""
    events: list[RunEvent] = []
    for seed in seeds:
        shape = shape_for(seed, cycles=cycles)
        world = World(seed, shape, LOST_SLOTS, scheme_for(protocol, seed), policy_for(protocol))
        history = world.run()
        events += history.events
        assert history.right, f"seed {seed} under {protocol}: {history.violations} {history.notes}"
    return sum(isinstance(e, WorkersPacked) for e in events), sum(map(is_spread, events))


def is_spread(event: RunEvent) -> bool:
    """The same shards continue on more workers."""
    return (
        isinstance(event, PlanChanged)
        and event.before == event.after
        and event.workers_before < event.workers
    )


@pytest.mark.parametrize("protocol", CHECKPOINTING)
def test_shards_are_packed_while_everything_goes_wrong(protocol: str) -> None:
    packed, _ = check(protocol, range(QUICK))
    assert packed > 1, "they do lose workers"


@pytest.mark.parametrize("protocol", ROUND)
def test_shards_on_a_cycle_are_packed(protocol: str) -> None:
    assert check(protocol, range(5), cycles=True)[0] > 1


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("protocol", CHECKPOINTING)
def test_hundreds_of_seeds_with_lost_slots(protocol: str) -> None:
    packed, spread = check(protocol, range(QUICK, MANY))
    assert packed > 50 and spread > 10


def calm(protocol: str) -> World:
    """A run of several workers in which nothing goes wrong."""
    world = World(4, shape_for(4), NO_FAULTS, scheme_for(protocol, 4), policy_for(protocol))
    assert len(world.plan.workers) > 1
    world.pack_after_s = world.driver.plan_change._pack_after_s = PACK_AFTER_S
    return world


@pytest.mark.parametrize("protocol", CHECKPOINTING)
def test_a_run_ends_on_the_workers_that_are_left(protocol: str) -> None:
    world = calm(protocol)
    workers = len(world.plan.workers)
    world.when("epoch 1 is stable", lambda: lose_for_good(world))
    history = world.run()
    assert history.right and history.outcome is Outcome.FINISHED, history.violations
    assert len(world.plan.workers) == workers - 1
    assert sum(isinstance(event, WorkersPacked) for event in history.events) == 1


@pytest.mark.parametrize("protocol", ["aligned", "hmnr"])
def test_shards_are_spread_again_when_the_slot_is_back(protocol: str) -> None:
    world = calm(protocol)
    workers = len(world.plan.workers)
    world.when("epoch 1 is stable", lambda: lose_for_good(world))

    def give_back() -> None:
        world.return_slot(min(world.lost_slots))

    world.when("1 of ", lambda: world.scheduler.after(0.02, give_back))
    history = world.run()
    assert history.right, history.violations
    assert any(map(is_spread, history.events))
    assert len(world.plan.workers) == workers


def lose_for_good(world: World) -> None:
    """Worker 0 dies, and nothing brings its slot back."""
    number = next(worker.number for worker in world.workers.values() if worker.id == 0)
    world.fault("worker 0 is gone for good")
    world.workers[number].die()
    world.lost_slots.add(number)
    world.driver.on_worker_lost(number, "killed")


def test_a_run_that_does_not_pack_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlanChange, "_must_pack", lambda *facts: False)
    monkeypatch.setattr(checks, "LONGEST_CALM_STEPS", 5000)
    world = calm("aligned")
    world.when("epoch 1 is stable", lambda: lose_for_good(world))
    assert any("liveness" in violation for violation in world.run().violations)
