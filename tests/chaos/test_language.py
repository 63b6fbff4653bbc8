"""Joins, deduplication and ranks in real processes that are killed: the output of a sequential program."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest

import everstream as es
from tests.sampling import sampled

TOTAL, KEYS, SIZE = 6_000, 50, 200
BEGIN = datetime(2024, 3, 29, 12, tzinfo=UTC)


def numbers(start: int, stop: int) -> pl.DataFrame:
    rows = pl.select(t=pl.int_range(start, stop, dtype=pl.Int64))
    return rows.with_columns(k=pl.col("t") * 7919 % KEYS)


def others(start: int, stop: int) -> pl.DataFrame:
    return numbers(start, stop).filter(pl.col("t") >= 0).with_columns(k=pl.col("k") // 2 * 3)


SCHEMA = {"t": pl.Int64, "k": pl.Int64}


def timed(pipeline: es.Pipeline, name: str, make: Any) -> es.Stream:
    source = es.Paced(es.FromFunction(make, TOTAL, batch=60), 6_000)
    return pipeline.source(source, name=name).event_time("t", unit="ms", name=f"{name}-time")


def joined(pipeline: es.Pipeline) -> es.Stream:
    left, right = timed(pipeline, "left", numbers), timed(pipeline, "right", others)
    more: Any = {"schema": SCHEMA, "other_schema": SCHEMA, "name": "work", "shards": 2}
    return left.interval_join(right, on="k", between=("-20ms", "30ms"), how="full", **more)


def as_of(pipeline: es.Pipeline) -> es.Stream:
    left, right = timed(pipeline, "left", numbers), timed(pipeline, "right", others)
    over = pl.col("t") % 5 == 0
    return left.join_as_of(
        right, on="k", how="left", delete=over, other_schema=SCHEMA, name="work", shards=2
    )


def broadcast(pipeline: es.Pipeline) -> es.Stream:
    left, right = timed(pipeline, "left", numbers), timed(pipeline, "right", others)
    over = pl.col("t") % 5 == 0
    return left.broadcast_join(
        right, on="k", how="left", delete=over, other_schema=SCHEMA, name="work", shards=2
    )


def first(pipeline: es.Pipeline) -> es.Stream:
    return timed(pipeline, "left", numbers).deduplicate("k", within="120ms", name="work", shards=2)


def ranked(pipeline: es.Pipeline) -> es.Stream:
    windows = timed(pipeline, "left", numbers).key_by("k").window(es.Tumbling("200ms"))
    place = es.rank("t", descending=True)
    return windows.with_columns(place=place, before=es.lag("t"), name="work", shards=2)


def best(pipeline: es.Pipeline) -> es.Stream:
    windows = timed(pipeline, "left", numbers).key_by("k").window(es.Tumbling("200ms"))
    return windows.top_k(3, by="t", name="work", shards=2)


def running(pipeline: es.Pipeline) -> es.Stream:
    keyed = timed(pipeline, "left", numbers).key_by("k")
    return keyed.with_columns(
        place=es.rank("t", descending=True),
        before=es.lag("t", 2),
        after=es.lead("t"),
        total=es.cumulative(es.sum("t")),
        name="work",
        shards=2,
    )


def squares(keys: pl.DataFrame) -> pl.DataFrame:
    return keys.filter(pl.col("k") % 2 == 0).with_columns(square=pl.col("k") ** 2)


def looked_up(pipeline: es.Pipeline) -> es.Stream:
    return timed(pipeline, "left", numbers).lookup(
        squares,
        on="k",
        schema={"square": pl.Int64},
        refresh="200ms",
        cache=9,
        name="work",
        shards=2,
    )


def counted(pipeline: es.Pipeline) -> es.Stream:
    keyed = timed(pipeline, "left", numbers).key_by("k")
    return keyed.window(es.CountWindow(30, every=20)).aggregate(
        n=es.count(), total=es.sum("t"), name="work", shards=2
    )


def by_calendar(pipeline: es.Pipeline) -> es.Stream:
    dated = timed(pipeline, "left", numbers).with_columns(at=BEGIN + pl.duration(minutes="t"))
    days = dated.key_by("k").window(es.Calendar("1 day", timezone="Europe/Berlin"), at="at")
    return days.aggregate(n=es.count(), total=es.sum("t"), name="work", shards=2)


class Alarm(es.Operator):
    """Emits each record 100 ms after it, and each key once at the end."""

    def process(self, record: Any, ctx: es.Context) -> None:
        ctx.timers.set((record["t"] + 100) * 1_000, name=str(record["t"]))
        ctx.timers.set(9_000_000, name="all")

    def on_timer(self, key: int, name: str, at: int, ctx: es.Context) -> None:
        ctx.emit_batch(pl.DataFrame([(key, name, at)], orient="row"))


def alarms(pipeline: es.Pipeline) -> es.Stream:
    return timed(pipeline, "left", numbers).key_by("k").process(Alarm(), name="work", shards=2)


def alarms_on_disk(pipeline: es.Pipeline) -> es.Stream:
    keyed = timed(pipeline, "left", numbers).key_by("k")
    return keyed.process(Alarm(), name="work", shards=2, state="disk")


class Corrections(es.Operator):
    """What the last result of each session says."""

    rows = es.Keyed[dict[Any, tuple[int, int]]](init=dict)

    def process(self, record: Any, ctx: es.Context) -> None:
        rows, window = self.rows[ctx.key], (record["window_start"], record["window_end"])
        if record["timing"] == "retracted":
            assert rows.pop(window) == (record["n"], record["total"])
        else:
            rows[window] = (record["n"], record["total"])

    def on_end(self, ctx: es.Context) -> None:
        found = [
            (k, *window, *row) for k, rows in self.rows.items() for window, row in rows.items()
        ]
        ctx.emit_batch(pl.DataFrame(found, orient="row"))


def sessions(pipeline: es.Pipeline) -> es.Stream:
    keyed, at = (
        timed(pipeline, "left", numbers).key_by("k"),
        pl.col("t") + pl.col("t") // 1_000 * 500,
    )
    windows = keyed.window(es.Session("60ms"), early="100ms", at=at, unit="ms")
    counts = windows.aggregate(n=es.count(), total=es.sum("t"), name="work", shards=2)
    return counts.key_by("k").process(Corrections(), name="corrections")


def rows(make: Callable[[int, int], pl.DataFrame]) -> list[tuple[int, int]]:
    return make(0, TOTAL).rows()


def by_key(make: Callable[[int, int], pl.DataFrame]) -> dict[int, list[int]]:
    times: dict[int, list[int]] = {}
    for t, k in rows(make):
        times.setdefault(k, []).append(t)
    return times


def expected_joined() -> Counter[Any]:
    right, left = by_key(others), by_key(numbers)
    out: Counter[Any] = Counter()
    for t, k in rows(numbers):
        near = [u for u in right.get(k, []) if -20 <= u - t <= 30]
        out.update([(t, k, u) for u in near] or [(t, k, None)])
    for u, k in rows(others):
        if not any(-20 <= u - t <= 30 for t in left.get(k, [])):
            out[None, k, u] += 1
    return out


def expected_as_of() -> Counter[Any]:
    right = by_key(others)
    out: Counter[Any] = Counter()
    for t, k in rows(numbers):
        newest = max((u for u in right.get(k, []) if u <= t), default=0)
        out[t, k, newest if newest % 5 else None] += 1
    return out


def expected_first() -> Counter[Any]:
    until: dict[int, int] = {}
    out: Counter[Any] = Counter()
    for t, k in rows(numbers):
        if t >= until.get(k, 0):
            out[t, k] += 1
            until[k] = t + 120
    return out


def expected_ranked() -> Counter[Any]:
    out: Counter[Any] = Counter()
    for start in range(0, TOTAL, SIZE):
        for k, times in by_key(numbers).items():
            here = [t for t in times if start <= t < start + SIZE]
            for i, t in enumerate(here):
                out[t, k, len(here) - i, here[i - 1] if i else None, start, start + SIZE] += 1
    return out


def expected_best() -> Counter[Any]:
    return Counter((t, k, *window) for t, k, place, _, *window in expected_ranked() if place <= 3)


def expected_running() -> Counter[Any]:
    out: Counter[Any] = Counter()
    for k, times in by_key(numbers).items():
        for i, t in enumerate(times):
            before = times[i - 2] if i > 1 else None
            out[t, k, 1, before, (*times, None)[i + 1], sum(times[: i + 1])] += 1
    return out


def expected_looked_up() -> Counter[Any]:
    return Counter((t, k, None if k % 2 else k * k) for t, k in rows(numbers))


def expected_counted() -> Counter[Any]:
    out: Counter[Any] = Counter()
    for k, times in by_key(numbers).items():
        for end in range(20, len(times) + 1, 20):
            window = times[max(0, end - 30) : end]
            out[k, max(0, end - 30), end, len(window), sum(window)] += 1
    return out


def expected_alarms() -> Counter[Any]:
    out: Counter[Any] = Counter((k, str(t), (t + 100) * 1_000) for t, k in rows(numbers))
    out.update((k, "all", 9_000_000) for k in range(KEYS))
    return out


def expected_by_calendar() -> Counter[Any]:
    found: dict[Any, list[int]] = {}
    for t, k in rows(numbers):
        at = (BEGIN + timedelta(minutes=t)).astimezone(ZoneInfo("Europe/Berlin"))
        start = at.replace(hour=0, minute=0)
        ends = [day.astimezone(UTC) for day in (start, start + timedelta(days=1))]
        found.setdefault((k, *ends), []).append(t)
    return Counter((*window, len(times), sum(times)) for window, times in found.items())


def expected_sessions() -> Counter[Any]:
    out: Counter[Any] = Counter()
    for k, times in by_key(numbers).items():
        found: list[list[int]] = []
        for t in times:
            if found and t // 1_000 == found[-1][-1] // 1_000:
                found[-1].append(t)
            else:
                found.append([t])
        for each in found:
            gaps = each[0] // 1_000 * 500
            out[k, each[0] + gaps, each[-1] + gaps + 60, len(each), sum(each)] += 1
    return out


CASES = {
    "joined": (joined, expected_joined),
    "as_of": (as_of, expected_as_of),
    "broadcast": (broadcast, expected_as_of),
    "first": (first, expected_first),
    "ranked": (ranked, expected_ranked),
    "best": (best, expected_best),
    "running": (running, expected_running),
    "looked up": (looked_up, expected_looked_up),
    "counted": (counted, expected_counted),
    "by_calendar": (by_calendar, expected_by_calendar),
    "alarms": (alarms, expected_alarms),
    "alarms_on_disk": (alarms_on_disk, expected_alarms),
    "sessions": (sessions, expected_sessions),
}


PROTOCOLS = {
    "aligned": es.Coordinated(every="60ms"),
    "hmnr": es.CommunicationInduced(every="60ms", rule="hmnr"),
}
BOTH = {f"{protocol} {name}": (protocol, name) for protocol in PROTOCOLS for name in CASES}
QUICK = [*(both for both in BOTH if both.startswith("aligned")), "hmnr joined"]
"""Every operator under every protocol is simulated in `tests/simulation/test_language.py`."""


@pytest.mark.parametrize("both", sampled(BOTH, QUICK))
def test_killing_the_workers_of_the_operator_loses_and_doubles_nothing(
    tmp_path: Path, both: str
) -> None:
    protocol, name = BOTH[both]
    build, expected = CASES[name]
    pipeline = es.Pipeline("language")
    build(pipeline).collect(name="out")
    result = pipeline.run(
        engine="local",
        store=str(tmp_path / "store"),
        checkpoint=PROTOCOLS[protocol],
        workers=3,
        kill=["work:0@1200", "work:1@1800"],
        max_restarts=10,
        latency=0,  # so that windows are given as many rows as the kills count
    )
    assert len(result.recoveries) == 2
    frames = [batch for batch in result.batches("out") if isinstance(batch, pl.DataFrame)]
    found: Counter[Any] = Counter(row for frame in frames for row in frame.rows())
    assert found == expected()
