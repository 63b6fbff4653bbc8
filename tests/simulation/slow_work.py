"""Work that takes virtual time, and work that is cut at random.

While a slow operator works, its worker is busy: events wait for the end of the step, as on Spark.
"""

import random
from typing import Any

from everstream.connectors.generate.sources import Range
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.stream import Pipeline
from everstream.runtime.pace import Pace
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape


class RandomParts(Pace):
    """Cuts every batch and frame into one to three records: crashes fall between any two parts."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    def take(self) -> int:
        self.fits = self._chance.randint(1, 3)
        return self._chance.randint(1, 3)

    def note(self, records: int, took_s: float) -> None:
        """There is nothing to learn."""


class Slow(Operator):
    """Passes records on, each after a given virtual time."""

    pure = True

    def __init__(self, world: int, record_s: float) -> None:
        self.world = world
        self.record_s = record_s

    def process(self, record: Any, ctx: Context) -> None:
        OutsideSink.worlds[self.world].worked_s += self.record_s
        ctx.emit(record)


def slow_line(n: int, batch: int, record_s: float, *, fused: bool = False) -> Shape:
    """A fast source of large batches before an operator that takes `record_s` for each record."""

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, batch=batch), name="numbers")
        stream = numbers if fused else numbers.on_demand()
        slow = stream.process(Slow(world, record_s), name="slow", shards=1 if fused else 2)
        slow.sink(OutsideSink(world), name="out")

    return Shape("slow-line", 1 if fused else 3, build, lambda: {"out": list(range(n))})
