"""Small pipelines for simulated runs, each with a plain sequential program of its output."""

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl

from everstream.connectors.generate.paced import Paced
from everstream.connectors.generate.sources import Range
from everstream.pipeline.aggregation.aggregates import count
from everstream.pipeline.aggregation.aggregates import sum as sum_of
from everstream.pipeline.event_time.windows import Tumbling
from everstream.pipeline.keyed_state.spreading import Spread
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.stream import Pipeline, Stream
from everstream.simulation.outside import OutsideClock, OutsideSink


@dataclass(frozen=True)
class Shape:
    """A pipeline over the numbers 0 to n-1, and its expected output, sink by sink."""

    name: str
    workers: int
    build: Callable[[Pipeline, int], None]
    expected: Callable[[], dict[str, list[Any]]]
    ordered: bool = False
    fixed: frozenset[str] = frozenset()
    """Operators whose number of shards shows in the output."""

    def pipeline(self, world: int) -> Pipeline:
        pipeline = Pipeline(self.name)
        self.build(pipeline, world)
        return pipeline


def chance_batch(n: int) -> int:
    return 1 + n % 4


def chance_shards(n: int) -> int:
    return 1 + n % 2


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


class Pairs(Operator):
    """Emits the sum of each two neighbours per key: a lost or duplicated record shows."""

    last = Keyed[list[int]](init=list)

    def process(self, record: Any, ctx: Context) -> None:
        seen = self.last[ctx.key]
        seen.append(record)
        ctx.emit((ctx.key, len(seen), sum(seen)))


def _count(value: int, record: Any) -> int:
    return value + 1


def line(chance: random.Random) -> Shape:
    n, shards, workers = chance.randint(20, 120), chance.randint(1, 3), chance.randint(1, 3)

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, batch=chance_batch(n)), name="numbers", shards=shards)
        odd = numbers.filter(lambda x: x % 2 == 1, name="odd").on_demand()
        odd.map(lambda x: x * 10, name="times").sink(OutsideSink(world), name="out")

    return Shape("line", workers, build, lambda: {"out": [x * 10 for x in range(n) if x % 2]})


def shuffle(chance: random.Random) -> Shape:
    n, keys = chance.randint(20, 120), chance.randint(1, 7)
    sources, shards, workers = chance.randint(1, 3), chance.randint(1, 3), chance.randint(1, 4)

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, batch=chance_batch(n)), name="numbers", shards=sources)
        keyed = numbers.key_by(lambda x: x % keys)
        keyed.fold(init=int, update=_count, name="count", shards=shards).sink(
            OutsideSink(world), name="out", shards=chance_shards(n)
        )

    def expected() -> dict[str, list[Any]]:
        totals = Counter(x % keys for x in range(n))
        return {"out": [(key, i + 1) for key, total in totals.items() for i in range(total)]}

    return Shape("shuffle", workers, build, expected)


def diamond(chance: random.Random) -> Shape:
    n, workers = chance.randint(20, 100), chance.randint(1, 4)
    left, right = chance.randint(1, 3), chance.randint(1, 2)

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, batch=chance_batch(n)), name="numbers")
        small, large = numbers.branch(lambda x: x < n // 3)
        doubled = small.on_demand().map(lambda x: x * 2, name="double", shards=left)
        negated = large.on_demand().map(lambda x: -x, name="negate", shards=right)
        both = doubled.union(negated).key_by(lambda x: x % 3)
        both.process(Tally(), name="tally", shards=2).sink(OutsideSink(world), name="out")

    def expected() -> dict[str, list[Any]]:
        values = [x * 2 if x < n // 3 else -x for x in range(n)]
        totals = Counter(value % 3 for value in values)
        seen = [(key, i + 1) for key, total in totals.items() for i in range(total)]
        return {"out": seen}

    return Shape("diamond", workers, build, expected)


class Tally(Operator):
    """Counts per key in the plain key store."""

    spread: Spread = "key"

    def process(self, record: Any, ctx: Context) -> None:
        count = ctx.state.get(ctx.key, 0) + 1
        ctx.state.put(ctx.key, count)
        ctx.emit((ctx.key, count))


def many_sinks(chance: random.Random) -> Shape:
    n, m, workers = chance.randint(10, 60), chance.randint(10, 60), chance.randint(1, 4)

    def build(pipeline: Pipeline, world: int) -> None:
        first = pipeline.source(Range(n, batch=3), name="first")
        second = pipeline.source(Range(1000, 1000 + m, batch=7), name="second", shards=2)
        first.broadcast().map(lambda x: x, name="copy", shards=3).sink(
            OutsideSink(world), name="copies"
        )
        pairs = first.union(second).key_by(lambda x: x // 1000)
        pairs.process(Pairs(), name="pairs", shards=2).map(
            lambda seen: (seen[0], seen[1]), name="trim"
        ).sink(OutsideSink(world), name="pairs-out")

    def expected() -> dict[str, list[Any]]:
        pairs = [(0, i + 1) for i in range(n)] + [(1, i + 1) for i in range(m)]
        return {"copies": [x for x in range(n) for _ in range(3)], "pairs-out": pairs}

    return Shape("many-sinks", workers, build, expected, fixed=frozenset({"copy", "copies"}))


def ordered_farm(chance: random.Random) -> Shape:
    n, workers, workers = chance.randint(20, 100), chance.randint(1, 4), chance.randint(1, 4)

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, batch=chance_batch(n)), name="numbers")
        farm = numbers.on_demand().filter(lambda x: x % 5 != 0, name="work", shards=workers)
        farm.on_demand().sink(OutsideSink(world), name="out", ordered=True)

    return Shape(
        "ordered-farm",
        workers,
        build,
        lambda: {"out": [x for x in range(n) if x % 5]},
        ordered=True,
        fixed=frozenset({"numbers", "out"}),
    )


def windows(chance: random.Random) -> Shape:
    """Counts per key and window, with a separate sink for late records."""
    n, keys, size = chance.randint(20, 120), chance.randint(1, 4), chance.randint(5, 30)
    sources, shards, workers = chance.randint(1, 3), chance.randint(1, 3), chance.randint(1, 4)
    batch, back = chance_batch(n), chance.randint(1, 20)
    times = [number - chance.randint(0, back) for number in range(n)]
    lateness = chance.choice((0, back))

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, batch=batch), name="numbers", shards=sources)
        timed = numbers.event_time(
            lambda x: times[x], lateness=lateness / 1e6, name="time", unit="us"
        )
        window = timed.key_by(lambda x: x % keys).window(Tumbling(size / 1e6))
        counted = window.aggregate(n=count(), total=sum_of("value"), name="count", shards=shards)
        rows = counted.map(lambda row: tuple(row.values()), name="rows")
        rows.sink(OutsideSink(world), name="out")
        counted.side_output("late").sink(OutsideSink(world), name="late")

    def expected() -> dict[str, list[Any]]:
        watermarks = [-(10**9)] * sources
        kept: dict[tuple[int, int], list[int]] = {}
        late = []
        for block in range(0, n, batch):
            shard, numbers = block // batch % sources, range(block, min(n, block + batch))
            for x in numbers:
                start = times[x] // size * size
                if start + size <= watermarks[shard]:
                    late.append(x)
                else:
                    kept.setdefault((x % keys, start), []).append(x)
                watermarks[shard] = max(watermarks[shard], times[x] - lateness)
        out = [
            (key, start, start + size, len(numbers), sum(numbers))
            for (key, start), numbers in kept.items()
        ]
        return {"out": out, "late": late}

    return Shape(
        "windows", workers, build, expected, fixed=frozenset({"numbers", "time", "count-local"})
    )


def joined(chance: random.Random) -> Shape:
    """Two streams of unequal speed, joined where their times are close."""
    n, m, keys = chance.randint(10, 50), chance.randint(10, 90), chance.randint(1, 4)
    shards, workers, near = chance.randint(1, 3), chance.randint(1, 4), chance.randint(0, 5)

    def build(pipeline: Pipeline, world: int) -> None:
        def side(name: str, total: int, batch: int, shards: int) -> Stream:
            source = pipeline.source(
                Range(total, column="t", batch=batch), name=name, shards=shards
            )
            keyed = source.with_columns(k=pl.col("t") % keys, name=f"{name}-key")
            return keyed.event_time("t", lateness=1e-4, name=f"{name}-time", unit="us")

        left, right = side("left", n, 3, 1), side("right", m, 7, 2)
        pairs = left.interval_join(
            right, on="k", between=(-near / 1e6, near / 1e6), name="join", shards=shards
        )
        rows = pairs.map(lambda row: (row["t"], row["t_right"]), name="rows")
        rows.sink(OutsideSink(world), name="out")

    def expected() -> dict[str, list[Any]]:
        near_ones = [(a, b) for a in range(n) for b in range(m) if abs(a - b) <= near]
        return {"out": [(a, b) for a, b in near_ones if a % keys == b % keys]}

    return Shape("joined", workers, build, expected)


def two_loops(chance: random.Random) -> Shape:
    """A cycle behind another: the first runs dry long before the second."""
    n, keys, hops = chance.randint(10, 40), chance.randint(1, 4), chance.randint(1, 3)
    workers, shards = chance.randint(1, 4), chance.randint(1, 2)

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, batch=chance_batch(n)), name="numbers")
        starts = numbers.map(lambda x: (x, hops), name="start")
        first = starts.key_by(lambda r: r[0] % keys).process(Hop(), name="first", shards=shards)
        first.side_output("round").feedback(to=first)
        again = first.side_output("visits").map(lambda visit: (visit[0], hops), name="again")
        second = again.key_by(lambda r: r[0] % keys).process(Hop(), name="second", shards=shards)
        second.side_output("round").feedback(to=second)
        second.side_output("visits").sink(OutsideSink(world), name="out")

    def expected() -> dict[str, list[Any]]:
        visits = _visits([(x, hops) for x in range(n)], keys)
        return {"out": _visits([(key, hops) for key, _ in visits], keys)}

    return Shape("two-loops", workers, build, expected)


class Matches(Operator):
    """Joins numbers that leave the same remainder: each pair once, in either order."""

    seen = Keyed[list[tuple[str, int]]](init=list)

    def process(self, record: tuple[str, int], ctx: Context) -> None:
        side, number = record
        seen = self.seen[ctx.key]
        for other_side, other in seen:
            if other_side != side:
                ctx.emit(tuple(sorted((number, other))))
        seen.append(record)


def uneven_join(chance: random.Random) -> Shape:
    """Two sources: one emits in a few large batches what the other emits one by one."""
    n, m, keys = chance.randint(5, 30), chance.randint(5, 30), chance.randint(2, 6)
    workers, shards = chance.randint(1, 4), chance.randint(1, 3)

    def build(pipeline: Pipeline, world: int) -> None:
        few = pipeline.source(Range(n, batch=10), name="few").map(lambda x: ("few", x), name="f")
        many = pipeline.source(Range(1000, 1000 + m, batch=1), name="many", shards=2)
        both = few.union(many.map(lambda x: ("many", x), name="m"))
        both.key_by(lambda record: record[1] % keys).process(
            Matches(), name="join", shards=shards
        ).sink(OutsideSink(world), name="out")

    def expected() -> dict[str, list[Any]]:
        pairs = [(x, 1000 + y) for x in range(n) for y in range(m) if x % keys == (1000 + y) % keys]
        return {"out": pairs}

    return Shape("uneven-join", workers, build, expected)


class Hop(Operator):
    """Counts the visits of each key, and sends a record round as often as it asks."""

    spread: Spread = "key"

    def process(self, record: tuple[int, int], ctx: Context) -> None:
        number, left = record
        visits = ctx.state.get(ctx.key, 0) + 1
        ctx.state.put(ctx.key, visits)
        ctx.emit((ctx.key, visits), output="visits")
        if left:
            ctx.emit((number + 1, left - 1), output="round")


def _visits(starts: list[tuple[int, int]], keys: int) -> list[Any]:
    totals = Counter((x + hop) % keys for x, hops in starts for hop in range(hops + 1))
    return [(key, i + 1) for key, total in totals.items() for i in range(total)]


def loop(chance: random.Random) -> Shape:
    """An operator that feeds itself."""
    n, keys, hops = chance.randint(10, 50), chance.randint(1, 5), chance.randint(1, 4)
    workers, shards = chance.randint(1, 3), chance.randint(1, 3)

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, batch=chance_batch(n)), name="numbers")
        starts = numbers.map(lambda x: (x, x % (hops + 1)), name="start")
        hop = starts.key_by(lambda r: r[0] % keys).process(Hop(), name="hop", shards=shards)
        hop.side_output("round").feedback(to=hop)
        hop.side_output("visits").sink(OutsideSink(world), name="out")

    def expected() -> dict[str, list[Any]]:
        return {"out": _visits([(x, x % (hops + 1)) for x in range(n)], keys)}

    return Shape("loop", workers, build, expected)


def long_loop(chance: random.Random) -> Shape:
    """A cycle over several operators and workers, behind a shuffle and beside a branch."""
    n, keys, hops = chance.randint(10, 40), chance.randint(1, 5), chance.randint(1, 3)
    workers, shards, others = chance.randint(2, 4), chance.randint(1, 2), chance.randint(1, 3)

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, batch=chance_batch(n)), name="numbers", shards=2)
        starts = numbers.map(lambda x: (x, hops), name="start")
        hop = starts.key_by(lambda r: r[0] % keys).process(Hop(), name="hop", shards=shards)
        moved = hop.side_output("round").on_demand().map(lambda r: r, name="carry", shards=others)
        checked = moved.on_demand().filter(lambda r: True, name="check", shards=1)
        checked.feedback(to="hop")
        hop.side_output("visits").sink(OutsideSink(world), name="out")
        starts.sink(OutsideSink(world), name="starts")

    def expected() -> dict[str, list[Any]]:
        starts = [(x, hops) for x in range(n)]
        return {"out": _visits(starts, keys), "starts": starts}

    return Shape("long-loop", workers, build, expected)


def columns(chance: random.Random) -> Shape:
    """A source whose output can be read again instead of being logged, to two kinds of channels."""
    n, keys, batch = chance.randint(20, 160), chance.randint(1, 5), chance.randint(1, 9)
    sources, shards, workers = chance.randint(1, 3), chance.randint(1, 3), chance.randint(1, 4)

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, column="n", batch=batch), name="numbers", shards=sources)
        keyed = numbers.with_columns(k=pl.col("n") % keys, name="key")
        kept = keyed.filter(pl.col("n") % 4 != 1, name="keep")
        double = kept.on_demand().map(lambda row: row["n"] * 2, name="double", shards=shards)
        double.sink(OutsideSink(world), name="doubled")
        pair = kept.key_by("k").map(lambda row: (row["k"], row["n"]), name="pair", shards=shards)
        pair.sink(OutsideSink(world), name="pairs")

    def expected() -> dict[str, list[Any]]:
        kept = [x for x in range(n) if x % 4 != 1]
        return {"doubled": [2 * x for x in kept], "pairs": [(x % keys, x) for x in kept]}

    return Shape("columns", workers, build, expected)


class Echo(Operator):
    """Emits each number a while after it, in event time, and a second time after that."""

    def process(self, record: dict[str, int], ctx: Context) -> None:
        ctx.timers.set(record["n"] * 1_000 + 7_000, name=f"{record['n']}:0")
        ctx.timers.set(0, name="cancelled")
        ctx.timers.cancel("cancelled")

    def on_timer(self, key: int, name: str, at: int, ctx: Context) -> None:
        number, echoes = map(int, name.split(":"))
        ctx.emit((key, number, echoes, at))
        if not echoes:
            ctx.timers.set(at + 11_000, name=f"{number}:1")


def echoes(chance: random.Random) -> Shape:
    """Timers of event time: each fires once, at its own time, whatever fails."""
    n, keys, batch = chance.randint(20, 80), chance.randint(1, 5), chance.randint(1, 9)
    sources, shards, workers = chance.randint(1, 3), chance.randint(1, 3), chance.randint(1, 4)

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, column="n", batch=batch), name="numbers", shards=sources)
        keyed = numbers.event_time("n", unit="ms").key_by(lambda row: row["n"] % keys)
        keyed.process(Echo(), name="echo", shards=shards).sink(OutsideSink(world), name="out")

    def expected() -> dict[str, list[Any]]:
        times = ((0, 7_000), (1, 18_000))
        return {"out": [(x % keys, x, e, x * 1_000 + at) for x in range(n) for e, at in times]}

    return Shape("echoes", workers, build, expected)


CLOCK_SHAPES = (alarms,)
"""Shapes that depend on the clock of a machine, for runs in which clocks are set."""
EVENT_TIME_SHAPES = (windows, joined, echoes)
"""These work on columns and cost ten times as much: seeds select from the others."""
CYCLES = (loop, long_loop)
SHAPES = (line, shuffle, diamond, many_sinks, ordered_farm, uneven_join)


def shape_for(seed: int, *, cycles: bool = False, clocks: bool = False) -> Shape:
    """The shape that a seed selects; with a cycle, or perhaps with a clock, if requested."""
    chance = random.Random(seed)
    others = (*SHAPES, *CLOCK_SHAPES) if clocks else SHAPES
    return chance.choice(CYCLES if cycles else others)(chance)
