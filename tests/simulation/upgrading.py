"""Three versions of one program, each of which migrates the state of those before it."""

import random
from collections import Counter
from typing import Any

from everstream.connectors.generate.sources import Range
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.stream import Pipeline
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape

migrated: Counter[tuple[int, int]] = Counter()
"""From which version to which, how often."""


def second(had: Any, version: int) -> dict[str, int]:
    migrated[version, 2] += 1
    return {"n": had}


def third(had: Any, version: int) -> list[int]:
    migrated[version, 3] += 1
    return [had if version == 1 else had["n"]]


class First(Operator):
    seen = Keyed[Any](init=int)

    def process(self, record: int, ctx: Context) -> None:
        self.seen[ctx.key] += 1
        ctx.emit((ctx.key, self.seen[ctx.key]))


class Second(Operator):
    seen = Keyed[Any](init=lambda: {"n": 0}, version=2, migrate=second)

    def process(self, record: int, ctx: Context) -> None:
        value = self.seen[ctx.key]
        value["n"] += 1
        ctx.emit((ctx.key, value["n"]))


class Third(Operator):
    seen = Keyed[Any](init=lambda: [0], version=3, migrate=third)

    def process(self, record: int, ctx: Context) -> None:
        value = self.seen[ctx.key]
        value[0] += 1
        ctx.emit((ctx.key, value[0]))


def shape(seed: int, version: int) -> Shape:
    chance = random.Random(seed)
    n, keys = chance.randint(100, 300), chance.choice((3, 20, 60))
    sources, shards, workers = chance.randint(1, 2), chance.randint(1, 3), chance.randint(1, 4)
    operator = (First, Second, Third)[version - 1]()

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, batch=2), name="numbers", shards=sources)
        keyed = numbers.key_by(lambda x: x % keys)
        counted = keyed.process(operator, name="count", shards=shards)
        counted.sink(OutsideSink(world), name="out")

    def expected() -> dict[str, list[Any]]:
        totals = Counter(x % keys for x in range(n))
        return {"out": [(key, i + 1) for key, total in totals.items() for i in range(total)]}

    return Shape("upgraded", workers, build, expected)
