"""Numbers of shards change while everything goes wrong: nothing is lost, nothing doubled."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from everstream.connectors.generate.sources import Range
from everstream.core.orders import Outcome
from everstream.core.plan import rescaled as plan_with
from everstream.core.plan import shard_counts
from everstream.core.registry import PROTOCOLS
from everstream.events import PlanChanged, RequestRefused
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.stream import Pipeline
from everstream.simulation.faults import NO_FAULTS, Faults
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import EVENT_TIME_SHAPES, Shape, columns, shape_for
from everstream.simulation.storm import policy_for, scheme_for
from everstream.simulation.world import World

CHECKPOINTING = [name for name, protocol in PROTOCOLS.items() if protocol.choice is not None]
ROUND = [name for name in CHECKPOINTING if PROTOCOLS[name].cycles]
CALM = replace(NO_FAULTS, rescales=3)
OTHERS = {
    "event time": lambda chance: chance.choice(EVENT_TIME_SHAPES)(chance),
    "columns": columns,
}

RESCALES = Faults(rescales=6, worker_kills=2, ambushes=1)
"""In addition to other faults, the numbers of shards change."""


def rescaled(seed: int, shape: Shape, protocol: str, faults: Faults = RESCALES) -> int:
    """How often shards were changed in this run, which must be right."""
    world = World(seed, shape, faults, scheme_for(protocol, seed), policy_for(protocol))
    history = world.run()
    assert history.right, f"seed {seed} under {protocol}: {history.violations} {history.notes}"
    changes = [event for event in history.events if isinstance(event, PlanChanged)]
    return sum(not change.explained for change in changes)


@pytest.mark.parametrize("protocol", CHECKPOINTING)
def test_shards_change_while_everything_goes_wrong(protocol: str) -> None:
    assert sum(rescaled(seed, shape_for(seed), protocol) for seed in range(6)) > 0


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
    assert sum(rescaled(s, shape_for(s, cycles=True), protocol) for s in range(4)) > 0


@pytest.mark.parametrize("kind", OTHERS)
def test_windows_joins_and_columns_go_to_other_shards(kind: str) -> None:
    shapes = [(seed, OTHERS[kind](random.Random(seed))) for seed in range(6)]
    protocols = ("aligned", "hmnr")
    changes = [rescaled(s, shape, p, CALM) for s, shape in shapes for p in protocols]
    assert sum(changes) > 3


class Stubborn(Operator):
    """Counts the records of each key, and cannot be given to other shards."""

    counts = Keyed[int](init=int)

    def process(self, record: int, ctx: Context) -> None:
        self.counts[ctx.key] += 1
        ctx.emit((ctx.key, self.counts[ctx.key]))

    def redistribute(self, parts: Any, place: Any) -> Any:
        raise ValueError("my counts stay together")


def stubborn() -> Shape:
    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(300, batch=2), name="numbers", shards=2)
        counted = numbers.key_by(lambda n: n % 7).process(Stubborn(), name="count", shards=2)
        counted.sink(OutsideSink(world), name="out")

    def expected() -> dict[str, list[Any]]:
        totals = Counter(n % 7 for n in range(300))
        return {"out": [(key, i + 1) for key, total in totals.items() for i in range(total)]}

    return Shape("stubborn", 3, build, expected)


@pytest.mark.parametrize("protocol", ["aligned", "unaligned", "hmnr"])
def test_a_share_that_is_refused_brings_the_former_shards_back(protocol: str) -> None:
    world = World(5, stubborn(), NO_FAULTS, scheme_for(protocol, 5), policy_for(protocol))

    def rescale() -> None:
        world.wanted = plan_with(world.wanted, {"count": 3}, world.wanted.key_groups)

    world.when("epoch 1 is stable", rescale)
    history = world.run()
    assert history.right and history.outcome is Outcome.FINISHED, history.violations
    (refused,) = [event for event in history.events if isinstance(event, RequestRefused)]
    assert refused.request == "rescale" and "my counts stay together" in refused.reason
    assert shard_counts(world.plan)["count"] == shard_counts(world.wanted)["count"] == 2


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("protocol", CHECKPOINTING)
def test_a_thousand_seeds_of_rescales(protocol: str) -> None:
    for seed in range(6, 1025):
        rescaled(seed, shape_for(seed), protocol)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("protocol", ROUND)
def test_hundreds_of_rescales_on_cycles(protocol: str) -> None:
    for seed in range(4, 310):
        rescaled(seed, shape_for(seed, cycles=True), protocol)
