"""A counting pipeline in the simulator, in which nothing goes wrong but what a story says."""

from collections import Counter
from typing import Any

from everstream.connectors.generate.sources import Range
from everstream.core.orders import Policy
from everstream.pipeline.stream import Pipeline
from everstream.simulation.faults import NO_FAULTS
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape
from everstream.simulation.world import World

RECORDS = 700
KEYS = 5


def _build(pipeline: Pipeline, world: int) -> None:
    numbers = pipeline.source(Range(RECORDS, batch=2), name="numbers", shards=2)
    counts = numbers.key_by(lambda x: x % KEYS).fold(
        init=int, update=lambda count, _: count + 1, name="count", shards=2
    )
    counts.on_demand().sink(OutsideSink(world), name="out", shards=2)


def _expected() -> dict[str, list[Any]]:
    totals = Counter(x % KEYS for x in range(RECORDS))
    return {"out": [(key, i + 1) for key, total in totals.items() for i in range(total)]}


COUNTING = Shape("counting", workers=3, build=_build, expected=_expected)
"""Two sources, a shuffle, two counters, two sinks, on three workers."""


def calm(seed: int, shape: Shape = COUNTING, every_s: float = 0.03, **options: Any) -> World:
    """A run in which nothing goes wrong but what the story says."""
    policy = options.pop("policy", Policy(every_s=every_s))
    world = World(seed, shape, NO_FAULTS, policy=policy, **options)
    world.upload_s, world.driver_link_s = 0.005, 0.001
    return world
