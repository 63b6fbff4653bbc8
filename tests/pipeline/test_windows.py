"""Windows of event time against plain Polars over the same events, with faults and late records."""

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everstream as es
from everstream.connectors.generate.sources import FromList
from everstream.core.plan import make_plan
from everstream.errors import UserError
from everstream.pipeline.aggregation.aggregates import top_k
from everstream.pipeline.aggregation.local_parts import stretches
from everstream.pipeline.event_time.windows import Session, Sliding, Tumbling
from everstream.pipeline.stream import Pipeline, Stream
from tests.pipeline.aggregations import AGGREGATES, IN_POLARS
from tests.pipeline.sim import Sink, rows, rows_source, simulate

QUICK = settings(max_examples=25, suppress_health_check=list(HealthCheck))
SCHEMA = {"k": pl.String, "t": pl.Int64, "v": pl.Int64}


@st.composite
def events(draw: st.DrawFn, jitter: int = 300) -> pl.DataFrame:
    """Out of order by at most the jitter."""
    steps = draw(st.lists(st.integers(0, 60), min_size=1, max_size=80))
    now, made = 0, []
    for step in steps:
        now += step
        at = now + draw(st.integers(-jitter, 0))
        value = draw(st.one_of(st.none(), st.integers(-5, 5)))
        made.append((draw(st.sampled_from(["a", "b", None])), at, value))
    return pl.DataFrame(made, schema=SCHEMA, orient="row")


cuts = st.integers(1, 9)
shard_counts = st.integers(1, 3)
seeds = st.integers(0, 10_000)


def in_polars(frame: pl.DataFrame, size: int, every: int, **aggregates: pl.Expr) -> pl.DataFrame:
    """Each record once per window it lies in, then a plain group_by."""
    copies = [
        frame.with_columns(window_start=pl.col("t") - pl.col("t") % every - shift)
        for shift in range(0, size, every)
    ]
    spread = pl.concat(copies).filter(pl.col("t") < pl.col("window_start") + size)
    return (
        spread.with_columns(window_end=pl.col("window_start") + size)
        .group_by("k", "window_start", "window_end")
        .agg(**aggregates)
    )


def sessions_in_polars(frame: pl.DataFrame, gap: int, **aggregates: pl.Expr) -> pl.DataFrame:
    if frame.is_empty():
        return frame
    ordered = frame.sort("k", "t")
    apart = (pl.col("t").diff().over("k") >= gap).fill_null(True)
    numbered = ordered.with_columns(session=apart.cast(pl.Int64).cum_sum())
    return (
        numbered.group_by("k", "session")
        .agg(window_start=pl.col("t").min(), window_end=pl.col("t").max() + gap, **aggregates)
        .drop("session")
    )


@QUICK
@given(events(), cuts, shard_counts, shard_counts, seeds)
def test_tumbling_windows_hold_what_polars_finds_in_them(
    frame: pl.DataFrame, batch: int, sources: int, shards: int, seed: int
) -> None:
    def build(pipeline: Pipeline, sink: Sink) -> None:
        timed = pipeline.source(rows_source(frame, batch), shards=sources).event_time(
            "t", lateness="5ms", unit="us"
        )
        windows = timed.key_by("k").window(Tumbling(1e-4)).aggregate(**AGGREGATES, shards=shards)
        sink(windows, "out")
        sink(windows.side_output("late"), "late")

    expected = in_polars(frame, 100, 100, **IN_POLARS)
    simulate(build, {"out": rows(expected), "late": []}, seed)


@QUICK
@given(events(), cuts, shard_counts, st.sampled_from([(200, 100), (300, 100), (250, 100)]), seeds)
def test_sliding_windows_hold_what_polars_finds_in_them(
    frame: pl.DataFrame, batch: int, shards: int, shape: tuple[int, int], seed: int
) -> None:
    size, every = shape

    def build(pipeline: Pipeline, sink: Sink) -> None:
        timed = pipeline.source(rows_source(frame, batch), shards=2).event_time(
            "t", lateness="5ms", unit="us"
        )
        window = Sliding(size / 1e6, every=every / 1e6)
        sink(timed.key_by("k").window(window).aggregate(**AGGREGATES, shards=shards), "out")

    simulate(build, {"out": rows(in_polars(frame, size, every, **IN_POLARS))}, seed)


@QUICK
@given(events(), cuts, shard_counts, st.sampled_from([1, 20, 70, 300]), seeds)
def test_sessions_are_those_that_polars_finds(
    frame: pl.DataFrame, batch: int, shards: int, gap: int, seed: int
) -> None:
    def build(pipeline: Pipeline, sink: Sink) -> None:
        timed = pipeline.source(rows_source(frame, batch), shards=2).event_time(
            "t", lateness="5ms", unit="us"
        )
        sessions = timed.key_by("k").window(Session(gap / 1e6))
        sink(sessions.aggregate(**AGGREGATES, shards=shards), "out")

    simulate(build, {"out": rows(sessions_in_polars(frame, gap, **IN_POLARS))}, seed)


def split_by_lateness(
    frame: pl.DataFrame, batch: int, sources: int, lateness: int, over: Any
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What each source shard finds in time and late: each record is judged by those before it."""
    in_time, late = [frame.clear()], [frame.clear()]
    watermark = dict.fromkeys(range(sources), -(2**63))
    for row, t in enumerate(frame["t"].to_list()):
        shard = row // batch % sources
        found = late if over(t) <= watermark[shard] else in_time
        found.append(frame[row : row + 1])
        watermark[shard] = max(watermark[shard], t - lateness)
    return pl.concat(in_time), pl.concat(late)


@QUICK
@given(events(jitter=500), cuts, shard_counts, st.sampled_from([0, 50, 200]), seeds)
def test_late_records_are_all_at_the_side_output_and_only_those(
    frame: pl.DataFrame, batch: int, sources: int, lateness: int, seed: int
) -> None:
    def build(pipeline: Pipeline, sink: Sink) -> None:
        source = pipeline.source(rows_source(frame, batch), shards=sources)
        timed = source.event_time("t", lateness=lateness / 1e6, unit="us")
        windows = timed.key_by("k").window(Tumbling(1e-4)).aggregate(**AGGREGATES, shards=2)
        sink(windows, "out")
        sink(windows.side_output("late"), "late")

    in_time, late = split_by_lateness(frame, batch, sources, lateness, lambda t: t - t % 100 + 100)
    expected = in_polars(in_time, 100, 100, **IN_POLARS)
    simulate(build, {"out": rows(expected), "late": rows(late)}, seed)


@QUICK
@given(events(jitter=500), cuts, shard_counts, seeds)
def test_late_records_of_sessions_are_all_at_the_side_output_and_only_those(
    frame: pl.DataFrame, batch: int, sources: int, seed: int
) -> None:
    def build(pipeline: Pipeline, sink: Sink) -> None:
        timed = pipeline.source(rows_source(frame, batch), shards=sources).event_time(
            "t", unit="us"
        )
        windows = timed.key_by("k").window(Session(5e-5), allowed_lateness=1e-4)
        counted = windows.aggregate(n=es.count(), shards=2)
        sink(counted, "out")
        sink(counted.side_output("late"), "late")

    in_time, late = split_by_lateness(frame, batch, sources, 100, lambda t: t + 1)
    expected = sessions_in_polars(in_time, 50, n=pl.len().cast(pl.Int64))
    simulate(build, {"out": rows(expected), "late": rows(late)}, seed)


def test_allowed_lateness_emits_a_window_again_for_the_keys_that_changed() -> None:
    made = [("a", 10), ("b", 20), ("a", 150), ("a", 30), ("a", 350), ("b", 40), ("a", 1000)]

    def build(pipeline: Pipeline, sink: Sink) -> None:
        records = [{"k": key, "t": at} for key, at in made]
        timed = pipeline.source(FromList(records, batch=1)).event_time("t", unit="us")
        windows = timed.key_by("k").window(Tumbling(1e-4), allowed_lateness=2e-4)
        counted = windows.aggregate(n=es.count())
        sink(counted, "out")
        sink(counted.side_output("late"), "late")

    expected = [
        *[("a", 0, 100, 1), ("b", 0, 100, 1)],
        ("a", 0, 100, 2),
        *[("a", 100, 200, 1), ("a", 300, 400, 1), ("a", 1000, 1100, 1)],
    ]
    simulate(build, {"out": expected, "late": [("b", 40)]})


def test_a_sliding_window_is_emitted_again_when_any_of_its_panes_changes() -> None:
    made = [("a", 10), ("a", 260), ("a", 120), ("a", 900)]

    def build(pipeline: Pipeline, sink: Sink) -> None:
        records = [{"k": key, "t": at} for key, at in made]
        timed = pipeline.source(FromList(records, batch=1)).event_time("t", unit="us")
        window = timed.key_by("k").window(Sliding(2e-4, every=1e-4), allowed_lateness=2e-4)
        sink(window.aggregate(n=es.count()), "out")

    expected = [
        *[("a", -100, 100, 1), ("a", 0, 200, 1), ("a", 0, 200, 2)],
        *[("a", 100, 300, 2), ("a", 200, 400, 1), ("a", 800, 1000, 1), ("a", 900, 1100, 1)],
    ]
    simulate(build, {"out": expected})


def test_a_stream_without_key_has_windows_as_a_whole() -> None:
    frame = pl.DataFrame({"t": range(0, 1000, 7), "v": range(143)})

    def build(pipeline: Pipeline, sink: Sink) -> None:
        timed = pipeline.source(rows_source(frame, 10), shards=3).event_time(
            "t", lateness=1, unit="us"
        )
        sink(timed.window(Tumbling(1e-4)).aggregate(n=es.count(), high=es.max("v")), "out")
        sink(timed.window(Tumbling(5e-4)).aggregate(top=top_k("v", 2, "t"), name="top"), "tops")
        sink(timed.window(Session(3e-6)).aggregate(n=es.count(), name="sessions"), "alone")

    dated = frame.with_columns(s=pl.col("t") - pl.col("t") % 100)
    counts = dated.group_by("s").agg(pl.col("s").first().alias("e") + 100, pl.len(), pl.max("v"))
    tops = [(0, 500, ((71, 497), (70, 490))), (500, 1000, ((142, 994), (141, 987)))]
    alone = [(t, t + 3, 1) for t in frame["t"]]
    simulate(build, {"out": rows(counts), "tops": tops, "alone": alone})


def test_windows_over_the_results_of_windows_hold_one_window_each() -> None:
    """The auctions with most bids per sliding window, as in query 5 of NEXMark."""
    frame = pl.DataFrame({"k": [f"k{i * i % 7}" for i in range(300)], "t": range(0, 3000, 10)})

    def build(pipeline: Pipeline, sink: Sink) -> None:
        timed = pipeline.source(rows_source(frame, 20), shards=2).event_time(
            "t", lateness="1s", unit="us"
        )
        counts = (
            timed.key_by("k").window(Sliding(5e-4, every=1e-4)).aggregate(n=es.count(), shards=2)
        )
        sink(
            counts.window(Tumbling(1e-4)).aggregate(
                top=top_k("n", 1, "k", "window_end"), name="hot"
            ),
            "out",
        )

    counts = in_polars(frame, 500, 100, n=pl.len())
    hot = counts.sort("n", "k").group_by("window_end", maintain_order=True).last()
    expected = [
        (row["window_end"] - 100, row["window_end"], ((row["n"], row["k"], row["window_end"]),))
        for row in hot.rows(named=True)
    ]
    simulate(build, {"out": expected})


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_that_are_datetimes_stay_datetimes(zone: str | None) -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC if zone else None)
    times = [start + timedelta(seconds=s) for s in (0, 1, 7, 12)]
    frame = pl.DataFrame({"k": ["a"] * 4, "at": times})

    def build(pipeline: Pipeline, sink: Sink) -> None:
        timed = pipeline.source(rows_source(frame, 1)).event_time("at", lateness="10s")
        keyed = timed.key_by("k")
        sink(keyed.window(Tumbling("5s")).aggregate(n=es.count()), "out")
        sink(keyed.window(Session("6s")).aggregate(n=es.count(), name="session"), "sessions")
        again = keyed.window(Tumbling("5s")).aggregate(n=es.count(), name="first")
        sink(again.window(Tumbling("10s")).aggregate(n=es.sum("n"), name="second"), "twice")

    def at(seconds: int) -> datetime:
        return start + timedelta(seconds=seconds)

    simulate(
        build,
        {
            "out": [("a", at(0), at(5), 2), ("a", at(5), at(10), 1), ("a", at(10), at(15), 1)],
            "sessions": [("a", at(0), at(7), 2), ("a", at(7), at(18), 2)],
            "twice": [(at(0), at(10), 3), (at(10), at(20), 1)],
        },
    )


def test_plain_objects_and_functions_have_windows_too() -> None:
    def build(pipeline: Pipeline, sink: Sink) -> None:
        numbers = pipeline.source(FromList(list(range(100)), batch=9), shards=2)
        timed = numbers.event_time(lambda n: n, unit="ms", lateness="1s")
        odd = timed.key_by(lambda n: n % 2 == 1)
        sink(odd.window(Tumbling("50ms")).aggregate(total=es.sum("value")), "out")
        both = timed.key_by(lambda n: (n % 2, n % 3))
        sink(both.window(Tumbling("100ms")).aggregate(n=es.count(), name="both"), "pairs")

    halves = [(odd, s) for odd in (False, True) for s in (0, 50)]
    totals = [
        (odd, s, s + 50, sum(n for n in range(s, s + 50) if n % 2 == odd)) for odd, s in halves
    ]
    pairs = [
        (a, b, 0, 100, sum(n % 2 == a and n % 3 == b for n in range(100)))
        for a in (0, 1)
        for b in (0, 1, 2)
    ]
    simulate(build, {"out": totals, "pairs": pairs})


def stream() -> Stream:
    return Pipeline("test").source(FromList([{"k": 1, "t": 1}]))


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: stream().window(Tumbling("1s")), "put .event_time"),
        (lambda: stream().event_time("t", unit="s").window(Tumbling("250ms")), "finer"),
        (lambda: stream().event_time("t", lateness="-1s", unit="us"), "negative"),
        (lambda: stream().event_time("t", unit="us").window("1s"), "es.Tumbling"),
        (
            lambda: stream().event_time("t", unit="us").window(Tumbling("1s")).aggregate(),
            "at least one",
        ),
        (
            lambda: stream().event_time("t", unit="us").window(Tumbling("1s")).aggregate(n=3),
            "is not an aggregate",
        ),
        (
            lambda: (
                stream()
                .event_time("t", unit="us")
                .window(Tumbling("1s"))
                .aggregate(n=es.count(), shards=2)
            ),
            "has no key",
        ),
        (lambda: Sliding("1s", every="2s"), "gaps"),
        (lambda: Tumbling("0s"), "positive"),
        (lambda: Session("0s"), "gap"),
        (lambda: es.top_k("v", 0), "at least 1"),
        (lambda: stream().window(Session("1s"), time="processing"), "processing"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_runs(build: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        build()


def test_the_local_half_of_an_aggregation_is_fused_to_where_its_records_come_from() -> None:
    timed = (
        Pipeline("test").source(FromList([{"k": 1, "t": 1}]), shards=2).event_time("t", unit="us")
    )
    counted = timed.key_by("k").window(Tumbling("1s")).aggregate(n=es.count(), name="count")
    plan = make_plan(counted.collect(), 2)
    assert plan.chains["from_list"].operators == ("from_list", "event_time", "count-local")
    assert "count" in plan.chains


@pytest.mark.parametrize("far", [10**3, 10**12])
def test_stretches_hang_together_by_the_furthest_end_so_far_of_the_same_key(far: int) -> None:
    keys = pl.DataFrame({"k": ["a", "b", "a", "a", None, "a", "b", None]})
    start = pl.Series([0, 5 * far, 2, 4, 1, 9, 6 * far, 2 - far])
    end = pl.Series([3, 6 * far, 4, 10, 2, 11, 7 * far, 4])
    numbers = stretches(keys, start, end)
    same = numbers.to_list()
    assert [same[0] == same[2], same[2] == same[3], same[3] == same[5]] == [True, False, True]
    assert same[4] == same[7] and same[1] != same[6]
    assert len({same[0], same[3], same[1], same[6], same[4]}) == 5


def test_a_stretch_is_found_also_when_times_are_too_far_apart_to_be_lifted() -> None:
    keys = pl.DataFrame({"k": [1, 2, 2, 2]})
    start = pl.Series([0, 0, 1, 2**62])
    end = pl.Series([5, 7, 2, 2**62 + 1])
    one, two, three, four = stretches(keys, start, end).to_list()
    assert two == three and len({one, two, four}) == 3


def test_the_functions_of_a_custom_aggregate_see_records_as_they_are() -> None:
    frame = pl.DataFrame({"k": ["a"] * 3, "t": [1, 2, 3]})
    seen = es.custom(list, lambda rows, row: [*rows, str(row)], lambda a, b: a + b, sorted)

    def build(pipeline: Pipeline, sink: Sink) -> None:
        timed = pipeline.source(rows_source(frame, 2)).event_time("t", unit="us")
        sink(timed.key_by("k").window(Session("1s")).aggregate(rows=seen), "out")

    wanted = tuple(str({"k": "a", "t": t}) for t in (1, 2, 3))
    simulate(build, {"out": [("a", 1, 1_000_003, wanted)]})
