"""Calendar windows, windows with an offset and windows of a number of records, against plain programs."""

import math
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everstream as es
from everstream import testing
from everstream.errors import UserError
from everstream.pipeline.aggregation.aggregates import Aggregates
from everstream.pipeline.event_time.count_windows import CountWindows
from everstream.pipeline.event_time.windows import Calendar, CountWindow, Sliding, described
from everstream.pipeline.keys import Keying
from everstream.pipeline.operator import Context
from everstream.pipeline.stream import Pipeline, Stream
from everstream.state.backends.memory import MemoryBackend
from tests.pipeline.aggregations import AGGREGATES, IN_POLARS
from tests.pipeline.sim import Sink, rows, rows_source, simulate
from tests.simulation.changing import Build, Changing

QUICK = settings(max_examples=30, suppress_health_check=list(HealthCheck))
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Havana",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Pacific/Apia",
]
"""With hours of summer time that begin at midnight, half hours, and a day that was left out."""


@QUICK
@given(
    st.sampled_from(ZONES),
    st.sampled_from(["1 day", "3 days", "week", "2w", "1 month", "1q", "2 years"]),
    st.sampled_from(["0", "6h", "-1d"]),
    st.lists(st.integers(0, 2_000_000_000), min_size=1, max_size=50),
)
def test_calendar_windows_follow_each_other_without_gaps_and_begin_as_the_clock_shows(
    zone: str, every: str, offset: str, seconds: list[int]
) -> None:
    calendar = es.Calendar(every, timezone=zone, offset=offset)
    times = pl.Series(seconds) * 1_000_000
    starts = calendar.panes_of(times)
    assert (starts <= times).all()
    for start, time in zip(starts.to_list(), times.to_list(), strict=True):
        end = calendar.end(start)
        assert time < end <= start + calendar.longest_us
        assert calendar.panes_of(pl.Series([end]))[0] == end
        assert calendar.starts(start, end - 1, end) == [start]
        assert not calendar.starts(start, end) and not calendar.starts(start, None, end - 1)
    assert (calendar.open_from(times) == starts).all()
    assert calendar.open_from(es.END_OF_TIME) == es.END_OF_TIME
    assert described(calendar.describe()).describe() == calendar.describe()


@pytest.mark.parametrize(
    "zone", ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]
)
@pytest.mark.parametrize(("every", "polars"), [("1 day", "1d"), ("week", "1w"), ("1 month", "1mo")])
def test_calendar_windows_are_those_of_group_by_dynamic(zone: str, every: str, polars: str) -> None:
    begin = datetime(2024, 3, 1, tzinfo=UTC)
    hours = pl.datetime_range(begin, begin + timedelta(days=250), "5h", eager=True, time_unit="us")
    frame = pl.DataFrame({"at": hours.dt.convert_time_zone(zone)}).with_columns(
        k=pl.Series(range(len(hours))) % 3
    )

    def build(pipeline: Pipeline, sink: Sink) -> None:
        timed = pipeline.source(rows_source(frame, 70), shards=2).event_time("at", lateness="9d")
        days = timed.key_by("k").window(es.Calendar(every, timezone=zone))
        sink(days.aggregate(n=es.count(), first=es.min("at"), shards=2), "out")

    by_polars = frame.group_by_dynamic("at", every=polars, group_by="k", include_boundaries=True)
    expected = by_polars.agg(n=pl.len(), first=pl.col("at").min()).select(
        "k", "_lower_boundary", "_upper_boundary", "n", "first"
    )
    simulate(build, {"out": rows(expected)}, faults=False)


def test_the_days_of_a_zone_have_as_many_hours_as_its_clock_shows() -> None:
    begin = datetime(2024, 3, 29, 23, tzinfo=UTC)
    frame = pl.DataFrame({"at": [begin + timedelta(hours=h) for h in range(24 + 23 + 24)]})
    pipeline = Pipeline("days")
    timed = pipeline.source(rows_source(frame, 5), name="rows").event_time("at")
    days = timed.window(es.Calendar("1 day", timezone="Europe/Berlin"))
    days.aggregate(n=es.count()).collect(name="out")
    counted = pipeline.run(engine="local").to_polars("out")
    assert counted.schema == {
        "window_start": pl.Datetime("us", "UTC"),
        "window_end": pl.Datetime("us", "UTC"),
        "n": pl.Int64,
    }
    assert [n for _, _, n in counted.sort("window_start").rows()] == [24, 23, 24]


def test_calendar_windows_join_rank_and_divide_the_clock_too() -> None:
    begin = datetime(2024, 10, 26, 22, tzinfo=UTC)
    day = es.Calendar("1 day", timezone="Europe/Berlin")
    left = [{"k": 1, "at": begin + timedelta(hours=h)} for h in (0, 24, 25, 48)]
    right = [{"k": 1, "at": begin + timedelta(hours=h)} for h in (1, 24, 26)]
    pipeline = Pipeline("calendar")
    one = pipeline.source(es.FromList(left), name="left").event_time("at", name="left-time")
    two = pipeline.source(es.FromList(right), name="right").event_time("at", name="right-time")
    one.window_join(two, on="k", window=day, name="pairs").collect(name="joined")
    one.key_by("k").window(day).with_columns(n=es.rank("at"), name="rank").collect(name="ranked")
    by_clock = one.key_by("k").window(day, time="processing")
    by_clock.aggregate(n=es.count(), name="clock").collect(name="clocked")
    result = pipeline.run(engine="local")
    hours = [(row["at"] - begin).total_seconds() / 3600 for row in result.collected("joined")]
    assert sorted(hours) == [0, 0, 24, 24, 25, 48], "the first day has 25 hours"
    places = {row["at"]: row["n"] for row in result.collected("ranked")}
    assert [places[row["at"]] for row in left] == [1, 2, 1, 2]
    assert sum(row["n"] for row in result.collected("clocked")) == 4


@QUICK
@given(
    st.lists(st.integers(-1000, 1000), min_size=1, max_size=60),
    st.sampled_from([(10, 10), (12, 4), (15, 10)]),
    st.integers(-30, 30),
    st.integers(1, 9),
)
def test_windows_with_an_offset_hold_what_a_plain_program_finds_in_them(
    times: list[int], shape: tuple[int, int], offset: int, batch: int
) -> None:
    size, every = shape
    frame = pl.DataFrame({"t": times, "k": [t % 2 for t in times], "v": times})

    def build(pipeline: Pipeline, sink: Sink) -> None:
        timed = pipeline.source(rows_source(frame, batch)).event_time("t", lateness="1s", unit="us")
        windows = Sliding(size / 1e6, every=every / 1e6, offset=offset / 1e6)
        sink(timed.key_by("k").window(windows).aggregate(**AGGREGATES, shards=2), "out")

    starts = [s for s in range(-1100, 1100) if (s - offset) % every == 0]
    spread = pl.concat(
        frame.filter(pl.col("t").is_between(s, s + size, closed="left")).select(
            "k", pl.lit(s).alias("s"), pl.lit(s + size).alias("e"), "t", "v"
        )
        for s in starts
    )
    expected = spread.group_by("k", "s", "e").agg(**IN_POLARS)
    simulate(build, {"out": rows(expected)}, faults=False)


def at_work(size: int, every: int, keyed: bool = True) -> tuple[CountWindows, Context]:
    operator = CountWindows(Aggregates(AGGREGATES), CountWindow(size, every))
    ctx = Context("count", 0, 1, MemoryBackend(), Keying("k") if keyed else None)
    operator.on_start(ctx)
    return operator, ctx


@QUICK
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(-9, 9)), max_size=120),
    st.sampled_from([(1, 1), (3, 3), (10, 10), (6, 4), (5, 1), (7, 3)]),
    st.lists(st.integers(1, 40), min_size=1),
    st.sets(st.integers(0, 9)),
    st.booleans(),
)
def test_windows_of_records_are_those_of_a_sequential_program_however_batches_are_cut(
    records: list[tuple[str | None, int]],
    shape: tuple[int, int],
    cuts: list[int],
    restarts: set[int],
    keyed: bool,
) -> None:
    size, every = shape
    operator, ctx = at_work(size, every, keyed)
    frame = pl.DataFrame(records, schema={"k": pl.String, "v": pl.Int64}, orient="row")
    frame = frame.with_columns(t=pl.Series(range(len(records)), dtype=pl.Int64))
    at = number = 0
    while at < len(frame):
        operator.process_batch(frame[at : at + cuts[number % len(cuts)]], ctx)
        at, number = at + cuts[number % len(cuts)], number + 1
        if number in restarts:
            operator.on_start(ctx)
    found = [batch for _, batch in ctx.take_emitted()]
    expected = []
    for key in ("a", "b", None) if keyed else (0,):
        here = frame.filter(pl.col("k").eq_missing(key)) if keyed else frame
        for end in range(every, len(here) + 1, every):
            start = max(end - size, 0)
            window = (
                here[start:end].group_by(x=pl.lit(0)).agg(**IN_POLARS).drop("x").row(0, named=True)
            )
            head = {"k": key} if keyed else {}
            expected.append({**head, "window_start": start, "window_end": end, **window})
    shown = [row for batch in found for row in batch.rows(named=True)]
    assert Counter(map(str, shown)) == Counter(map(str, expected))
    for batch in found:
        assert batch.schema["window_start"] == batch.schema["window_end"] == pl.Int64
        assert batch.schema["mean"] == pl.Float64 and batch.schema["best"] == pl.List(pl.Int64)


def test_only_parts_of_windows_that_are_not_full_are_kept() -> None:
    operator, ctx = at_work(4, 2)
    for start in range(0, 200_000, 10_000):
        rows_of = pl.DataFrame({"t": range(start, start + 10_000)})
        rows_of = rows_of.with_columns(k=pl.col("t") % 1000, v=pl.col("t"))
        operator.process_batch(rows_of, ctx)
    operator.parts.add(0, operator.parts.read([0]).clear())
    kept = operator._compacted(operator.parts.read([0]))
    assert len(kept) == 1000


def pairs(**more: Any) -> Pipeline:
    pipeline = Pipeline("pairs")
    clicks = pipeline.source(es.FromList([{"user": "a", "n": 1}]), name="clicks")
    windows = clicks.key_by("user").window(es.CountWindow(2))
    windows.aggregate(total=es.sum("n"), name="pairs", **more).collect(name="out")
    return pipeline


def test_a_window_that_is_not_full_survives_a_crash_and_a_change_of_shards() -> None:
    with testing.harness(pairs()) as h:
        h.push("clicks", [{"user": user, "n": 1} for user in "abcdefgh"])
        h.checkpoint()
        h.crash("pairs:0")
        h.push("clicks", [{"user": "a", "n": 10}])
        h.checkpoint()
        assert h.output("out") == [{"user": "a", "window_start": 0, "window_end": 2, "total": 11}]
        h.restart(pairs(shards=3))
        h.push("clicks", [{"user": user, "n": 100} for user in "bcdefgha"])
        h.end()
        totals = {row["user"]: row["total"] for row in h.output("out")}
        assert totals == dict.fromkeys("bcdefgh", 101) | {"a": 11}


RECORDS = 300


def changing(window: Any) -> Build:
    def build(pipeline: Pipeline) -> Stream:
        frame = pl.DataFrame({"t": range(RECORDS)}).with_columns(k=pl.col("t") % 4)
        timed = pipeline.source(rows_source(frame, 3), name="rows").event_time("t", unit="s")
        out = timed.key_by("k").window(window).aggregate(n=es.count(), name="count", shards=2)
        return out.map(lambda row: tuple(row.values()), name="tuples")

    return build


def test_windows_that_are_open_when_their_rule_changes_end_as_they_began() -> None:
    stopped = Changing(changing(es.Tumbling("20s", offset="5s"))).stop_at(3)
    read = stopped.read_by("rows")
    stopped.change(changing(es.Calendar("1 day", timezone="Europe/Berlin")))
    shown = stopped.finish()
    before, after = range(read), range(read, RECORDS)
    expected = Counter((t % 4, (t - 5) // 20 * 20 + 5, (t - 5) // 20 * 20 + 25) for t in before)
    expected.update((t % 4, -3600, -3600 + 86400) for t in after)
    assert shown == Counter((*window, n) for window, n in expected.items())


def test_a_window_of_records_keeps_its_size() -> None:
    stopped = Changing(changing(es.CountWindow(10))).stop_at(3)
    with pytest.raises(UserError, match="'10 records every 10' is now '20 records every 20'"):
        stopped.change(changing(es.CountWindow(20)))
    stopped.change(changing(es.CountWindow(10)))
    full = math.floor(RECORDS / 4 / 10)
    expected = [(k, w * 10, w * 10 + 10, 10) for k in range(4) for w in range(full)]
    assert sorted(stopped.finish()) == expected


def stream() -> Stream:
    return Pipeline("test").source(es.FromList([{"k": 1, "t": 1}]))


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: es.Calendar("1 hour"), "give days, weeks"),
        (lambda: es.Calendar("0 days"), "give days, weeks"),
        (lambda: es.Calendar("1 day", timezone="Europe/Berlinn"), "not a time zone"),
        (lambda: es.CountWindow(0), "whole numbers"),
        (lambda: es.CountWindow(2, every=3), "between 1 and size"),
        (lambda: es.CountWindow(2.5), "whole numbers"),  # type: ignore[arg-type]
        (lambda: stream().window(es.CountWindow(2), early="1s"), "neither"),
        (lambda: stream().window(es.CountWindow(2), at="t", unit="s"), "neither"),
        (lambda: stream().window(es.CountWindow(2)).with_columns(n=es.rank("t")), "event time"),
        (
            lambda: stream().window(es.CountWindow(2)).aggregate(n=es.count(), shards=2),
            "has no key",
        ),
        (
            lambda: (
                stream()
                .event_time("t", unit="s")
                .window(es.Tumbling("10s", offset="500ms"))
                .aggregate(n=es.count())
            ),
            "finer",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(build: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        build()


def test_times_far_outside_the_calendar_are_refused_with_what_to_check() -> None:
    with pytest.raises(UserError, match="Check the unit"):
        Calendar("1 day").panes_of(pl.Series([2**62]))
