"""Numbers of shards change while everything goes wrong: nothing is lost, nothing doubled."""

import random
from dataclasses import replace

import pytest

from everstream.core.registry import PROTOCOLS
from everstream.simulation.faults import NO_FAULTS, RESCALES, Faults
from everstream.simulation.schemes import policy_for, scheme_for
from everstream.simulation.shapes import EVENT_TIME_SHAPES, Shape, columns, shape_for
from everstream.simulation.world import World

CHECKPOINTING = [name for name, protocol in PROTOCOLS.items() if protocol.choice is not None]
ROUND = [name for name in CHECKPOINTING if PROTOCOLS[name].cycles]
CALM = replace(NO_FAULTS, rescales=3)
OTHERS = {
    "event time": lambda chance: chance.choice(EVENT_TIME_SHAPES)(chance),
    "columns": columns,
}


def rescaled(seed: int, shape: Shape, protocol: str, faults: Faults = RESCALES) -> int:
    """How often shards were changed in this run, which must be right."""
    world = World(seed, shape, faults, scheme_for(protocol, seed), policy_for(protocol))
    changes: list[str] = []
    world.watchers.append(changes.append)
    history = world.run()
    assert history.right, f"seed {seed} under {protocol}: {history.violations} {history.notes}"
    return changes.count("other shards take over")


@pytest.mark.parametrize("protocol", CHECKPOINTING)
def test_shards_change_while_everything_goes_wrong(protocol: str) -> None:
    assert sum(rescaled(seed, shape_for(seed), protocol) for seed in range(25)) > 3


@pytest.mark.parametrize("protocol", ["uncoordinated", "bcs"])
def test_what_a_standstill_that_was_broken_off_has_left_does_not_count_for_the_next(
    protocol: str,
) -> None:
    """Neither checkpoints that were stopped for it, nor answers that come late."""
    for seed in (165, 230, 476):
        rescaled(seed, shape_for(seed), protocol)
    rescaled(34, shape_for(34, cycles=True), protocol)


@pytest.mark.parametrize("protocol", ROUND)
def test_shards_on_a_cycle_change(protocol: str) -> None:
    assert sum(rescaled(s, shape_for(s, cycles=True), protocol) for s in range(10)) > 1


@pytest.mark.parametrize("kind", OTHERS)
def test_windows_joins_and_columns_go_to_other_shards(kind: str) -> None:
    shapes = [(seed, OTHERS[kind](random.Random(seed))) for seed in range(6)]
    protocols = ("aligned", "hmnr")
    changes = [rescaled(s, shape, p, CALM) for s, shape in shapes for p in protocols]
    assert sum(changes) > 3


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("protocol", CHECKPOINTING)
def test_a_thousand_seeds_of_rescales(protocol: str) -> None:
    for seed in range(25, 1025):
        rescaled(seed, shape_for(seed), protocol)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("protocol", ROUND)
def test_hundreds_of_rescales_on_cycles(protocol: str) -> None:
    for seed in range(10, 310):
        rescaled(seed, shape_for(seed, cycles=True), protocol)
