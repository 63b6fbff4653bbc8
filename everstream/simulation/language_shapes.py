"""Small pipelines for simulated runs: operators that join, ask and rank, on columns and event time."""

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

import polars as pl

from everstream.connectors.generate.sources import Range
from everstream.pipeline.aggregation.aggregates import count
from everstream.pipeline.aggregation.aggregates import sum as sum_of
from everstream.pipeline.aggregation.window_functions import cumulative, lag, lead, rank
from everstream.pipeline.event_time.outer import KEPT, LEFT, RIGHT, How
from everstream.pipeline.event_time.windows import (
    Calendar,
    CountWindow,
    PanedWindow,
    Session,
    Sliding,
    Tumbling,
)
from everstream.pipeline.operator import Context, Keyed, Operator, StateKind
from everstream.pipeline.stream import Pipeline, Stream
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape


def timed(pipeline: Pipeline, name: str, total: int, batch: int, shards: int, keys: int) -> Stream:
    """The numbers `t` from 0 on, which are their own times, with a key `k`."""
    numbers = pipeline.source(Range(total, column="t", batch=batch), name=name, shards=shards)
    keyed = numbers.with_columns(k=pl.col("t") * 7 % keys, name=f"{name}-key")
    return keyed.event_time("t", lateness=1e-4, name=f"{name}-time", unit="us")


def into(stream: Stream, world: int, name: str = "out") -> None:
    """Rows as tuples into a sink."""
    rows = stream.map(lambda row: tuple(row.values()), name=f"{name}-rows")
    rows.sink(OutsideSink(world), name=name)


def outer_joined(chance: random.Random) -> Shape:
    """Two streams of unequal speed and length: each row finds its partners, or comes out alone."""
    n, m, keys = chance.randint(10, 50), chance.randint(10, 90), chance.randint(2, 9)
    shards, workers = chance.randint(1, 3), chance.randint(1, 4)
    how: How = chance.choice(("left", "right", "full"))
    low = chance.randint(-6, 4)
    between = (low, low + chance.randint(0, 6))
    window = chance.choice((None, (10, 10), (12, 4)))

    def build(pipeline: Pipeline, world: int) -> None:
        left, right = timed(pipeline, "left", n, 3, 1, keys), timed(pipeline, "right", m, 7, 2, 5)
        if window is None:
            bounds = (between[0] / 1e6, between[1] / 1e6)
            out = left.interval_join(
                right, on="k", between=bounds, how=how, name="join", shards=shards
            )
        else:
            size = Sliding(window[0] / 1e6, every=window[1] / 1e6)
            out = left.window_join(right, on="k", window=size, how=how, name="join", shards=shards)
        into(out, world)

    def rows(total: int, modulus: int) -> list[tuple[int, int]]:
        return [(t, t * 7 % modulus) for t in range(total)]

    def expected() -> dict[str, list[Any]]:
        left, right = rows(n, keys), rows(m, 5)
        if window is None:
            return {"out": _pairs(left, right, how, lambda a, b: between[0] <= b - a <= between[1])}
        size, every = window
        out: list[Any] = []
        for start in range(-size, max(n, m), every):
            end = start + size
            here = [[row for row in side if start <= row[0] < end] for side in (left, right)]
            pairs = _pairs(here[0], here[1], how, lambda a, b: True)
            out += [(*pair, start, end) for pair in pairs if start % every == 0]
        return {"out": out}

    return Shape("outer-joined", workers, build, expected)


def _pairs(left: Any, right: Any, how: How, near: Any) -> list[Any]:
    """(t, k, t_right) of pairs, and of rows without a partner."""
    found = [(a, b) for a in left for b in right if a[1] == b[1] and near(a[0], b[0])]
    ones, others = {a for a, _ in found}, {b for _, b in found}
    out: list[Any] = [(*a, b[0]) for a, b in found]
    if LEFT in KEPT[how]:
        out += [(*a, None) for a in left if a not in ones]
    if RIGHT in KEPT[how]:
        out += [(None, b[1], b[0]) for b in right if b not in others]
    return out


def versioned(chance: random.Random) -> Shape:
    """Records that ask for the version of their key at their time; some versions end their key.

    The versions are with their keys, or in every shard."""
    n, m, keys = chance.randint(10, 90), chance.randint(10, 60), chance.randint(2, 9)
    shards, workers, step = chance.randint(1, 3), chance.randint(1, 4), chance.randint(1, 3)
    how: Literal["inner", "left"] = chance.choice(("inner", "left"))
    ends, everywhere = chance.randint(2, 9), chance.random() < 0.5

    def build(pipeline: Pipeline, world: int) -> None:
        records = timed(pipeline, "records", n, 3, 2, keys)
        numbers = pipeline.source(Range(m, column="v", batch=7), name="table", shards=2)
        rows = numbers.with_columns(k=pl.col("v") * 3 % 5, t=pl.col("v") * step, name="row")
        table = rows.event_time("t", lateness=1e-3, name="row-time", unit="us")
        over = pl.col("v") % ends == 0
        join = records.broadcast_join if everywhere else records.join_as_of
        out = join(table, on="k", how=how, delete=over, name="join", shards=shards)
        into(out, world)

    def expected() -> dict[str, list[Any]]:
        out: list[Any] = []
        for t, k in ((t, t * 7 % keys) for t in range(n)):
            versions = [v for v in range(m) if v * 3 % 5 == k and v * step <= t]
            if versions and versions[-1] % ends:
                out.append((t, k, versions[-1], versions[-1] * step))
            elif how == "left":
                out.append((t, k, None, None))
        return {"out": out}

    return Shape("versioned", workers, build, expected)


def deduplicated(chance: random.Random) -> Shape:
    """The first number of each key passes, and the next one after a while of event time."""
    n, keys, batch = chance.randint(60, 240), chance.randint(1, 30), chance.randint(1, 5)
    shards, workers = chance.randint(1, 3), chance.randint(1, 4)
    within = chance.choice((None, chance.randint(1, 40)))

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = timed(pipeline, "numbers", n, batch, 1, keys)
        duration = None if within is None else within / 1e6
        first = numbers.deduplicate("k", within=duration, name="first", shards=shards)
        into(first, world)

    def expected() -> dict[str, list[Any]]:
        until: dict[int, float] = {}
        out: list[Any] = []
        for t, k in ((t, t * 7 % keys) for t in range(n)):
            if t >= until.get(k, -1):
                out.append((t, k))
                until[k] = math.inf if within is None else t + within
        return {"out": out}

    fixed = frozenset({"numbers", "numbers-key", "numbers-time"})
    return Shape("deduplicated", workers, build, expected, fixed=fixed)


def ranked(chance: random.Random) -> Shape:
    """The records of each window with their place, their neighbours and the sum so far."""
    n, keys, batch = chance.randint(20, 120), chance.randint(1, 6), chance.randint(1, 9)
    shards, workers = chance.randint(1, 3), chance.randint(1, 4)
    size, every = chance.choice(((10, 10), (25, 25), (12, 4)))

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = timed(pipeline, "numbers", n, batch, 2, keys).with_columns(
            x=pl.col("t") * 5 % 7, name="x"
        )
        windows = numbers.key_by("k").window(Sliding(size / 1e6, every=every / 1e6))
        rows = windows.with_columns(
            place=rank("x", descending=True),
            before=lag("t"),
            after=lead("t", 2),
            total=cumulative(sum_of("x")),
            name="ranked",
            shards=shards,
        )
        into(rows, world)

    def expected() -> dict[str, list[Any]]:
        out: list[Any] = []
        for start in range(-size // every * every, n, every):
            for k in range(keys):
                times = [t for t in range(max(start, 0), min(start + size, n)) if t * 7 % keys == k]
                xs = [t * 5 % 7 for t in times]
                for i, (t, x) in enumerate(zip(times, xs, strict=True)):
                    place = 1 + sum(y > x for y in xs) + xs[:i].count(x)
                    before = times[i - 1] if i else None
                    after = times[i + 2] if i + 2 < len(times) else None
                    row = (t, k, x, place, before, after, sum(xs[: i + 1]))
                    out.append((*row, start, start + size))
        return {"out": out}

    return Shape("ranked", workers, build, expected)


def best(chance: random.Random) -> Shape:
    """The few best of each window; of equal ones the first in time."""
    n, keys, batch = chance.randint(20, 120), chance.randint(0, 6), chance.randint(1, 9)
    shards, workers, k = chance.randint(1, 3), chance.randint(1, 4), chance.randint(1, 4)
    size, every = chance.choice(((10, 10), (25, 25), (12, 4)))

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = timed(pipeline, "numbers", n, batch, 2, max(keys, 1)).with_columns(
            x=pl.col("t") * 5 % 7, name="x"
        )
        keyed = numbers.key_by("k") if keys else numbers
        windows = keyed.window(Sliding(size / 1e6, every=every / 1e6))
        into(windows.top_k(k, by="x", name="best", shards=shards if keys else 1), world)

    def expected() -> dict[str, list[Any]]:
        out: list[Any] = []
        for start in range(-size // every * every, n, every):
            for key in range(max(keys, 1)):
                times = range(max(start, 0), min(start + size, n))
                rows = [(t, key, t * 5 % 7) for t in times if t * 7 % max(keys, 1) == key]
                first = sorted(rows, key=lambda row: (-row[2], row[0]))[:k]
                out += [(*row, start, start + size) for row in first]
        return {"out": out}

    fixed = frozenset() if keys else frozenset({"best"})
    return Shape("best", workers, build, expected, fixed=fixed)


def running(chance: random.Random) -> Shape:
    """Each record with its place, its neighbours and the sum, among those of its key until then."""
    n, keys, batch = chance.randint(20, 120), chance.randint(1, 6), chance.randint(1, 9)
    shards, workers, ahead = chance.randint(1, 3), chance.randint(1, 4), chance.randint(0, 3)

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = timed(pipeline, "numbers", n, batch, 1, keys).with_columns(
            x=pl.col("t") * 5 % 7, name="x"
        )
        functions: dict[str, Any] = {
            "place": rank("x", method="min"),
            "before": lag("t", 2),
            "total": cumulative(sum_of("x")),
        }
        if ahead:
            functions["after"] = lead("t", ahead)
        keyed = numbers.key_by("k")
        into(keyed.with_columns(**functions, name="running", shards=shards), world)

    def expected() -> dict[str, list[Any]]:
        out: list[Any] = []
        for key in range(keys):
            times = [t for t in range(n) if t * 7 % keys == key]
            xs = [t * 5 % 7 for t in times]
            for i, (t, x) in enumerate(zip(times, xs, strict=True)):
                before = times[i - 2] if i > 1 else None
                after = times[i + ahead] if i + ahead < len(times) else None
                row = (t, key, x, 1 + sum(y < x for y in xs[:i]), before, sum(xs[: i + 1]))
                out.append((*row, after) if ahead else row)
        return {"out": out}

    fixed = frozenset({"numbers", "numbers-key", "numbers-time", "x"})
    return Shape("running", workers, build, expected, fixed=fixed)


def _answers(keys: pl.DataFrame) -> pl.DataFrame:
    return keys.filter(pl.col("k") % 2 == 0).with_columns(v=pl.col("k") * 10)


def looked_up(chance: random.Random) -> Shape:
    """A function is asked about keys, and its answers are kept for a while or not at all."""
    n, keys, batch = chance.randint(20, 120), chance.randint(1, 9), chance.randint(1, 9)
    shards, workers = chance.randint(1, 3), chance.randint(1, 4)
    how: Literal["inner", "left"] = chance.choice(("inner", "left"))
    keep: dict[str, Any] = chance.choice(
        ({}, {"refresh": "100ms"}, {"refresh": "1h"}, {"cache": 3}, {"refresh": "1h", "cache": 2})
    )

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = timed(pipeline, "numbers", n, batch, 2, keys)
        out = numbers.lookup(
            _answers,
            on="k",
            schema={"v": pl.Int64},
            how=how,
            batch=2,
            name="ask",
            shards=shards,
            **keep,
        )
        into(out, world)

    def expected() -> dict[str, list[Any]]:
        rows = [(t, t * 7 % keys) for t in range(n)]
        found = [(t, k, None if k % 2 else k * 10) for t, k in rows]
        return {"out": [row for row in found if how == "left" or row[2] is not None]}

    return Shape("looked-up", workers, build, expected)


def counted_off(chance: random.Random) -> Shape:
    """Windows of a number of records of each key."""
    n, keys, batch = chance.randint(20, 200), chance.randint(1, 6), chance.randint(1, 30)
    shards, workers = chance.randint(1, 3), chance.randint(1, 4)
    size, every = chance.choice(((1, 1), (4, 4), (6, 4), (9, 3), (30, 30)))

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = timed(pipeline, "numbers", n, batch, 1, keys)
        windows = numbers.key_by("k").window(CountWindow(size, every))
        into(windows.aggregate(n=count(), total=sum_of("t"), name="count", shards=shards), world)

    def expected() -> dict[str, list[Any]]:
        out: list[Any] = []
        for k in range(keys):
            times = [t for t in range(n) if t * 7 % keys == k]
            for end in range(every, len(times) + 1, every):
                start = max(end - size, 0)
                out.append((k, start, end, end - start, sum(times[start:end])))
        return {"out": out}

    fixed = frozenset({"numbers", "numbers-key", "numbers-time"})
    return Shape("counted-off", workers, build, expected, fixed=fixed)


def by_calendar(chance: random.Random) -> Shape:
    """Days of Berlin over the change to summer time or back, and days from another hour."""
    n, keys, batch = chance.randint(20, 120), chance.randint(1, 4), chance.randint(1, 9)
    shards, workers, hours = chance.randint(1, 3), chance.randint(1, 4), chance.randint(1, 9)
    begin = datetime(2024, chance.choice((3, 10)), 24, 5, tzinfo=UTC)
    zone, local_days = ZoneInfo("Europe/Berlin"), chance.random() < 0.5

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, column="t", batch=batch), name="numbers", shards=2)
        hour = pl.col("t") * hours
        at = begin + pl.duration(hours=hour)
        dated = numbers.with_columns(k=pl.col("t") % keys, at=at, name="row")
        known = dated.event_time("at", lateness=f"{hours * 60}h", name="time")
        days: PanedWindow = Calendar("1 day", timezone="Europe/Berlin")
        window = days if local_days else Tumbling("1d", offset="6h")
        counts = known.key_by("k").window(window)
        into(counts.aggregate(n=count(), total=sum_of("t"), name="count", shards=shards), world)

    def day_of(at: datetime) -> tuple[datetime, datetime]:
        if not local_days:
            start = (at - timedelta(hours=6)).replace(hour=6)
            return start, start + timedelta(days=1)
        midnight = at.astimezone(zone).replace(hour=0)
        after = (midnight + timedelta(days=1)).replace(hour=0)
        return midnight.astimezone(UTC), after.astimezone(UTC)

    def expected() -> dict[str, list[Any]]:
        found: dict[Any, list[int]] = {}
        for t in range(n):
            found.setdefault((t % keys, *day_of(begin + timedelta(hours=t * hours))), []).append(t)
        return {"out": [(*window, len(times), sum(times)) for window, times in found.items()]}

    fixed = frozenset({"numbers", "row", "time", "count-local"})
    return Shape("by-calendar", workers, build, expected, fixed=fixed)


class LastResults(Operator):
    """What the last results of all windows say, as a table that is replaced row by row would."""

    rows = Keyed[dict[Any, tuple[int, int]]](init=dict)

    def process(self, record: Any, ctx: Context) -> None:
        rows, window = self.rows[ctx.key], (record["window_start"], record["window_end"])
        if record["timing"] == "retracted":
            assert rows.pop(window) == (record["n"], record["total"])
        else:
            rows[window] = (record["n"], record["total"])

    def on_end(self, ctx: Context) -> None:
        for key, rows in self.rows.items():
            for window, row in rows.items():
                ctx.emit((key, *window, *row))


class AddedResults(LastResults):
    """The same for results that are to be added up."""

    def process(self, record: Any, ctx: Context) -> None:
        rows, window = self.rows[ctx.key], (record["window_start"], record["window_end"])
        n, total = rows.get(window, (0, 0))
        rows[window] = (n + record["n"], total + record["total"])


def corrected(chance: random.Random) -> Shape:
    """Windows with early results and late corrections: what they come to, and what is too late."""
    n, keys, batch = chance.randint(60, 240), chance.randint(1, 4), chance.randint(1, 9)
    sources, shards, workers = chance.randint(1, 2), chance.randint(1, 3), chance.randint(1, 4)
    back, gap = chance.randint(1, 40), chance.randint(2, 9)
    times = [t - chance.randint(0, back) for t in range(0, 2 * n, 2)]
    lateness, allowed = chance.randint(0, back), chance.randint(0, back)
    kind = chance.choice(("session", "accumulating", "discarding"))
    size, every = chance.choice(((10, 10), (12, 4)))
    if size != every:
        lateness = back  # a record that is late for some of its windows is in the others
    early = chance.choice((None, 0.005, 0.05))

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(Range(n, column="x", batch=batch), name="numbers", shards=sources)
        moment = pl.lit(pl.Series(times)).gather(pl.col("x"))
        known = numbers.with_columns(k=pl.col("x") % keys, t=moment, name="row").event_time(
            "t", lateness=lateness / 1e6, name="time", unit="us"
        )
        sliding = Sliding(size / 1e6, every=every / 1e6)
        windows = known.key_by("k").window(
            Session(gap / 1e6) if kind == "session" else sliding,
            allowed_lateness=allowed / 1e6,
            early=early,
            panes="discarding" if kind == "discarding" else "accumulating",
            timing=True,
        )
        results = windows.aggregate(n=count(), total=sum_of("x"), name="count", shards=shards)
        table = AddedResults() if kind == "discarding" else LastResults()
        results.key_by("k").process(table, name="table").sink(OutsideSink(world), name="out")
        into(results.side_output("late").select("x"), world, "late")

    def expected() -> dict[str, list[Any]]:
        watermarks, late = [-(10**9)] * sources, []
        kept: dict[int, list[tuple[int, int]]] = {}
        for x, time in enumerate(times):
            shard = x // batch % sources
            last_end = time + 1 if kind == "session" else time // every * every + size
            if last_end + allowed <= watermarks[shard]:
                late.append((x,))
            else:
                kept.setdefault(x % keys, []).append((time, x))
            watermarks[shard] = max(watermarks[shard], time - lateness)
        return {"late": late, "out": [row for k in kept for row in windows_of(k, sorted(kept[k]))]}

    def windows_of(k: int, records: list[tuple[int, int]]) -> list[Any]:
        found: list[Any] = []
        if kind != "session":
            starts = {s for t, _ in records for s in range(t // every * every, t - size, -every)}
            return [
                (k, s, s + size, len(here), sum(here))
                for s in starts
                if (here := [x for t, x in records if s <= t < s + size])
            ]
        for t, x in records:
            if found and t < found[-1][2]:
                _, first, _, so_far, total = found.pop()
                found.append((k, first, t + gap, so_far + 1, total + x))
            else:
                found.append((k, t, t + gap, 1, x))
        return found

    fixed = frozenset({"numbers", "row", "time", "count-local"})
    return Shape("corrected", workers, build, expected, fixed=fixed)


class Due(Operator):
    """Timers that are moved, cancelled and due together; those that fire look at no others."""

    fired = Keyed[int](init=int)

    def process(self, record: Any, ctx: Context) -> None:
        t = record["t"]
        for name in ("kept", "moved", "cancelled"):
            ctx.timers.set(t // 16 * 16 + 24, f"{name} {t}")
        ctx.timers.set(t // 8 * 8 + 40, f"moved {t}")
        ctx.timers.set(t // 16 * 16 + 24, f"moved {t}" if t % 2 else f"kept {t}")
        ctx.timers.cancel(f"cancelled {t}")

    def on_timer(self, key: int, name: str, at: int, ctx: Context) -> None:
        self.fired[key] += 1
        ctx.emit((key, name, at))

    def on_end(self, ctx: Context) -> None:
        for key, fired in self.fired.items():
            ctx.emit((key, "all", fired))


def rung(chance: random.Random) -> Shape:
    """Many timers that are due together, in memory or on disk: each fires once, at its last time."""
    n, keys, batch = chance.randint(20, 160), chance.randint(1, 12), chance.randint(1, 30)
    shards, workers = chance.randint(1, 3), chance.randint(1, 4)
    state: StateKind = chance.choice(("memory", "disk"))

    def build(pipeline: Pipeline, world: int) -> None:
        numbers = timed(pipeline, "numbers", n, batch, 2, keys).key_by("k")
        due = numbers.process(Due(), name="due", shards=shards, state=state)
        due.sink(OutsideSink(world), name="out")

    def expected() -> dict[str, list[Any]]:
        out: list[Any] = []
        for t in range(n):
            early, late = t // 16 * 16 + 24, t // 8 * 8 + 40
            out += [(t * 7 % keys, f"kept {t}", early)]
            out += [(t * 7 % keys, f"moved {t}", early if t % 2 else late)]
        for key in {t * 7 % keys for t in range(n)}:
            out.append((key, "all", 2 * sum(t * 7 % keys == key for t in range(n))))
        return {"out": out}

    return Shape("rung", workers, build, expected)


LANGUAGE_SHAPES = (
    outer_joined,
    versioned,
    deduplicated,
    ranked,
    best,
    running,
    looked_up,
    counted_off,
    by_calendar,
    corrected,
    rung,
)
