"""A shape that depends on the clocks of machines, for runs in which these are set."""

import math
import random
from typing import Any

from everstream.connectors.generate.paced import Paced
from everstream.connectors.generate.sources import Range
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.stream import Pipeline
from everstream.simulation.outside import OutsideClock, OutsideSink
from everstream.simulation.shape import Shape


class Later(Operator):
    """Holds each record back for a moment, by the clock."""

    WAIT_S = 0.02

    def on_start(self, ctx: Context) -> None:
        self._ask(ctx)

    def process(self, record: Any, ctx: Context) -> None:
        held = self._held(ctx)
        ctx.state.put("held", [*held, (ctx.now_s + self.WAIT_S, record)])
        self._ask(ctx)

    def on_wake(self, now_s: float, ctx: Context) -> None:
        self._give(now_s, ctx)
        self._ask(ctx)

    def on_end(self, ctx: Context) -> None:
        self._give(math.inf, ctx)

    def _held(self, ctx: Context) -> list[tuple[float, Any]]:
        held: list[tuple[float, Any]] = ctx.state.get("held", [])
        return held

    def _give(self, until_s: float, ctx: Context) -> None:
        held = self._held(ctx)
        for due_s, record in held:
            if due_s <= until_s:
                ctx.emit(record)
        ctx.state.put("held", [waits for waits in held if waits[0] > until_s])

    def _ask(self, ctx: Context) -> None:
        for due_s, _ in self._held(ctx)[:1]:
            ctx.wake_at(due_s)


def alarms(chance: random.Random) -> Shape:
    """A source that follows a clock, and an operator that waits for one."""
    n, shards, workers = chance.randint(20, 80), chance.randint(1, 2), chance.randint(1, 3)
    rate = chance.choice((100, 400))

    def build(pipeline: Pipeline, world: int) -> None:
        paced = Paced(Range(n, batch=3), rate, clock=OutsideClock(world))
        numbers = pipeline.source(paced, name="numbers", shards=shards)
        later = numbers.on_demand().process(Later(), name="later", shards=shards)
        later.sink(OutsideSink(world), name="out")

    return Shape("alarms", workers, build, lambda: {"out": list(range(n))})
