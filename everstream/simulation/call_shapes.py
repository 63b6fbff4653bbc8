"""A pipeline that asks a service, for simulated runs, with a plain sequential program of its output."""

import asyncio
import random
from typing import Any

from everstream.connectors.generate.sources import Range
from everstream.pipeline.aggregation.aggregates import count
from everstream.pipeline.aggregation.aggregates import sum as sum_of
from everstream.pipeline.event_time.windows import Tumbling
from everstream.pipeline.stream import Pipeline
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape, chance_batch


class OutsideService:
    """Answers after a while; some first attempts fail, and some numbers have no answer at all."""

    def __init__(self, world: int) -> None:
        self.world = world

    async def __call__(self, row: dict[str, int]) -> dict[str, int]:
        outside, number = OutsideSink.worlds[self.world], row["n"]
        outside.asked[number] += 1
        outside.on_ask(row)
        if number % 11 == 5:
            raise LookupError(f"{number} is not known")
        if number % 5 == 0 and outside.asked[number] % 3 == 1:
            raise ConnectionError("the service is busy")
        await asyncio.sleep(number % 3 / 1000)
        return {"n": number, "square": number * number}


def asked(chance: random.Random) -> Shape:
    """Calls between a source and a window: each record has its answer, at its place in event time."""
    n, keys, size = chance.randint(20, 80), chance.randint(1, 4), chance.randint(5, 20)
    sources, shards, workers = chance.randint(1, 3), chance.randint(1, 3), chance.randint(1, 3)
    ordered, keyed = chance.choice((True, False)), chance.choice((True, False))
    concurrency = chance.choice((1, 3, 8))

    def build(pipeline: Pipeline, world: int) -> None:
        source = Range(n, column="n", batch=chance_batch(n))
        rows = pipeline.source(source, name="numbers", shards=sources)
        timed = rows.event_time("n", unit="ms", name="time")
        routed = timed.key_by(lambda row: row["n"] % keys) if keyed else timed
        answers = routed.map_async(
            OutsideService(world),
            concurrency=concurrency,
            retries=2,
            backoff="1ms",
            ordered=ordered,
            name="ask",
            shards=shards,
            on_error="skip",
        )
        answers.map(lambda row: tuple(row.values()), name="pairs").sink(
            OutsideSink(world), name="answers"
        )
        windows = answers.key_by(lambda row: row["n"] % keys).window(Tumbling(size / 1000))
        counted = windows.aggregate(n=count(), total=sum_of("square"), name="count", shards=shards)
        counted.map(lambda row: tuple(row.values()), name="rows").sink(
            OutsideSink(world), name="out"
        )
        counted.side_output("late").sink(OutsideSink(world), name="late")

    def expected() -> dict[str, list[Any]]:
        known = [x for x in range(n) if x % 11 != 5]
        groups: dict[tuple[int, int], list[int]] = {}
        for x in known:
            groups.setdefault((x % keys, x // size * size), []).append(x * x)
        out = [
            (key, start, start + size, len(squares), sum(squares))
            for (key, start), squares in groups.items()
        ]
        return {"answers": [(x, x * x) for x in known], "out": out, "late": []}

    return Shape(
        "asked", workers, build, expected, fixed=frozenset({"numbers", "time", "count-local"})
    )
