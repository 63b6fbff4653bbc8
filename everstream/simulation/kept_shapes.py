"""State that expires, and collections per key, for simulated runs; each with a plain sequential program."""

import random
from typing import Any, Literal

from everstream.connectors.generate.sources import Range
from everstream.pipeline.keyed_state.collections import KeyedList, KeyedMap
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.stream import Pipeline
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape, chance_batch

TTL_MS = 10


class Visits(Operator):
    """Counts the visits of each key since it was last silent for the time to live."""

    seen = Keyed[int](init=int, ttl=TTL_MS / 1000, ttl_time="event")

    def process(self, row: dict[str, int], ctx: Context) -> None:
        self.seen[ctx.key] += 1
        ctx.emit((ctx.key, row["n"], self.seen[ctx.key]))


class Sightings(Operator):
    """The same, but it only looks at most of them: a read is a use, too."""

    seen = Keyed[int](ttl=TTL_MS / 1000, ttl_time="event", refresh="read")

    def process(self, row: dict[str, int], ctx: Context) -> None:
        first = self.seen.get(ctx.key)
        if first is None:
            self.seen.put(ctx.key, row["n"])
        ctx.emit((ctx.key, row["n"], first))


def key_of(number: int) -> int:
    """Some keys come often, others after long silences."""
    return (number * 7919 % 101) % (3 if number % 4 else 40)


def expiring(chance: random.Random) -> Shape:
    """A record finds what its key has left, unless that is older than the time to live."""
    n, shards, workers = chance.randint(30, 120), chance.randint(1, 3), chance.randint(1, 3)
    refresh: Literal["write", "read"] = chance.choice(("write", "read"))

    def build(pipeline: Pipeline, world: int) -> None:
        source = Range(n, column="n", batch=chance_batch(n))
        rows = pipeline.source(source, name="numbers").event_time("n", unit="ms", name="time")
        keyed = rows.key_by(lambda row: key_of(row["n"]))
        operator = Visits() if refresh == "write" else Sightings()
        kept = keyed.process(operator, name="seen", shards=shards)
        kept.sink(OutsideSink(world), name="out")

    def expected() -> dict[str, list[Any]]:
        used: dict[int, int] = {}
        kept: dict[int, int] = {}
        out: list[Any] = []
        for x in range(n):
            key = key_of(x)
            lives = key in used and x < used[key] + TTL_MS
            used[key] = x
            if refresh == "write":
                kept[key] = kept[key] + 1 if lives else 1
                out.append((key, x, kept[key]))
            else:
                out.append((key, x, kept[key] if lives else None))
                kept[key] = kept[key] if lives else x
        return {"out": out}

    fixed = frozenset({"numbers", "time"})  # with one source, records are in order for each key
    return Shape("expiring", workers, build, expected, fixed=fixed)


class Baskets(Operator):
    """Keeps a map and a list per key, and changes them in every way."""

    counts = KeyedMap[int, int]()
    last = KeyedList[int]()

    def process(self, number: int, ctx: Context) -> None:
        counts, last = self.counts[ctx.key], self.last[ctx.key]
        change_collections(number, counts, last)
        ctx.emit((ctx.key, number, tuple(sorted(counts.items())), tuple(last)))


def change_collections(number: int, counts: Any, last: Any) -> None:
    """As a program with a dict and a list would."""
    counts[number % 7] = counts.get(number % 7, 0) + 1
    last.append(number)
    if number % 5 == 0:
        counts.pop(number % 3, None)
    if len(last) > 4:
        del last[0]
    if number % 6 == 0:
        last.insert(1, -number)
    if number % 31 == 0:
        counts.clear()
        last.clear()


def baskets(chance: random.Random) -> Shape:
    """Collections whose entries are saved one by one are those of a plain program."""
    n, keys = chance.randint(30, 120), chance.randint(1, 5)
    shards, workers = chance.randint(1, 3), chance.randint(1, 3)

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, batch=chance_batch(n)), name="numbers")
        kept = numbers.key_by(lambda x: x % keys).process(Baskets(), name="keep", shards=shards)
        kept.sink(OutsideSink(world), name="out")

    def expected() -> dict[str, list[Any]]:
        counts: dict[int, dict[int, int]] = {}
        last: dict[int, list[int]] = {}
        out: list[Any] = []
        for x in range(n):
            mine = counts.setdefault(x % keys, {}), last.setdefault(x % keys, [])
            change_collections(x, *mine)
            out.append((x % keys, x, tuple(sorted(mine[0].items())), tuple(mine[1])))
        return {"out": out}

    return Shape("baskets", workers, build, expected, fixed=frozenset({"numbers"}))
