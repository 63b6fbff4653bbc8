"""Joins by event time against plain Polars over the same rows, out of order and with faults."""

from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everstream as es
from everstream.connectors.generate.sources import FromList
from everstream.core.plan import make_plan
from everstream.errors import RunFailed, UserError
from everstream.pipeline.event_time.interval_join import IntervalJoin
from everstream.pipeline.event_time.outer import How
from everstream.pipeline.event_time.window_join import WindowJoin
from everstream.pipeline.operator import Context
from everstream.pipeline.stream import Pipeline, Stream
from everstream.pipeline.times import TimeOf
from everstream.state.backends.memory import MemoryBackend
from tests.pipeline.sides import near, side
from tests.pipeline.sim import Sink, rows, rows_source, simulate

HOWS: list[How] = ["inner", "left", "right", "full"]
QUICK = settings(max_examples=25, suppress_health_check=list(HealthCheck))


def sources(
    pipeline: Pipeline, left: pl.DataFrame, right: pl.DataFrame, batch: int
) -> tuple[Stream, Stream]:
    one = pipeline.source(rows_source(left, batch), name="left", shards=2)
    two = pipeline.source(rows_source(right, batch + 1), name="right")
    return one.event_time("t", lateness="5ms", unit="us"), two.event_time(
        "t", lateness="5ms", unit="us"
    )


@QUICK
@given(side("l"), side("r"), st.integers(1, 7), st.sampled_from([(100, 100), (200, 100)]),
       st.sampled_from(HOWS), st.integers(0, 10_000))  # fmt: skip
def test_a_window_join_pairs_what_lies_in_the_same_window(
    left: pl.DataFrame,
    right: pl.DataFrame,
    batch: int,
    shape: tuple[int, int],
    how: How,
    seed: int,
) -> None:
    size, every = shape

    def build(pipeline: Pipeline, sink: Sink) -> None:
        one, two = sources(pipeline, left, right, batch)
        window = es.Sliding(size / 1e6, every=every / 1e6)
        joined = one.window_join(
            two,
            on="k",
            window=window,
            how=how,
            schema=left.schema,
            other_schema=right.schema,
            shards=2,
        )
        sink(joined, "out")

    def spread(frame: pl.DataFrame) -> pl.DataFrame:
        start = pl.col("t") - pl.col("t") % every
        copies = [frame.with_columns(w=start - shift) for shift in range(0, size, every)]
        return pl.concat(copies)

    pairs = spread(left).join(spread(right), on=["k", "w"], how=how, coalesce=True)
    expected = pairs.select("k", "t", "l", "t_right", "r", "w", e=pl.col("w") + size)
    simulate(build, {"out": rows(expected)}, seed)


@QUICK
@given(side("l"), side("r"), st.integers(1, 7),
       st.sampled_from([(-100, 200), (0, 0), (50, 90), (-300, -10)]), st.sampled_from(HOWS),
       st.integers(0, 10_000))  # fmt: skip
def test_an_interval_join_pairs_what_is_near_in_time(
    left: pl.DataFrame,
    right: pl.DataFrame,
    batch: int,
    between: tuple[int, int],
    how: How,
    seed: int,
) -> None:
    def build(pipeline: Pipeline, sink: Sink) -> None:
        one, two = sources(pipeline, left, right, batch)
        lowest, highest = (bound / 1e6 for bound in between)
        joined = one.interval_join(
            two,
            on="k",
            between=(lowest, highest),
            how=how,
            schema=left.schema,
            other_schema=right.schema,
            shards=2,
        )
        sink(joined, "out")

    simulate(build, {"out": near(left, right, between, how)}, seed)


def test_keys_may_have_other_names_and_several_columns() -> None:
    left = pl.DataFrame({"a": [1, 1, 2], "b": ["x", "y", "x"], "t": [0, 1, 2]})
    right = pl.DataFrame({"c": [1, 2, 2], "d": ["x", "x", "y"], "t": [5, 6, 7]})

    def build(pipeline: Pipeline, sink: Sink) -> None:
        one, two = sources(pipeline, left, right, 2)
        joined = one.interval_join(
            two, on=["a", "b"], other_on=["c", "d"], between=("-1s", "1s"), shards=2
        )
        sink(joined, "out")

    simulate(build, {"out": [(1, "x", 0, 5), (2, "x", 2, 6)]})


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_the_windows_of_a_join_are_datetimes_if_the_times_are(zone: str | None) -> None:
    days = pl.datetime_range(
        pl.datetime(2024, 1, 1), pl.datetime(2024, 1, 3), "1d", time_zone="UTC", eager=True
    )
    at = days.dt.convert_time_zone(zone) if zone else days.dt.replace_time_zone(None)
    frame = pl.DataFrame({"k": [1, 1, 1], "at": at})

    def build(pipeline: Pipeline, sink: Sink) -> None:
        one = pipeline.source(rows_source(frame, 1), name="left").event_time(pl.col("at"))
        two = pipeline.source(rows_source(frame, 2), name="right").event_time(pl.col("at"))
        sink(one.window_join(two, on="k", window=es.Tumbling("24h")), "out")

    ends = (at + timedelta(days=1)).to_list()
    expected = [(1, t, t, t, end) for t, end in zip(at.to_list(), ends, strict=True)]
    simulate(build, {"out": expected})


def at_work(operator: Any) -> tuple[Any, Context]:
    ctx = Context("join", 0, 1, MemoryBackend())
    operator.on_start(ctx)
    return operator, ctx


def feed(operator: Any, ctx: Context, side: str, times: list[int]) -> dict[str, list[int]]:
    ctx.input = side
    operator.process_batch(pl.DataFrame({"k": [1] * len(times), "t": times}), ctx)
    out: dict[str, list[int]] = {}
    for output, batch in ctx.take_emitted():
        assert isinstance(batch, pl.DataFrame)
        out.setdefault(output, []).extend(batch["t"].to_list())
    return out


def pass_time(operator: Any, ctx: Context, watermark: int) -> None:
    ctx.watermark = watermark
    operator.on_watermark(watermark, ctx)


KEYS = {"left": ["k"], "right": ["k"]}
TIMES = {"left": TimeOf("t", "s"), "right": TimeOf("t", "s")}
SECOND = 1_000_000


def test_rows_that_can_find_no_partner_any_more_are_forgotten() -> None:
    it, ctx = at_work(IntervalJoin(KEYS, TIMES, -2 * SECOND, 4 * SECOND))
    feed(it, ctx, "left", list(range(100)))
    feed(it, ctx, "right", list(range(100)))
    pass_time(it, ctx, 50 * SECOND)
    kept = {side: chunks.read(chunks.groups)["t"].to_list() for side, chunks in it.sides.items()}
    assert 44 <= min(kept["left"]) <= 46
    assert 46 <= min(kept["right"]) <= 48
    assert feed(it, ctx, "right", [50])["out"] == [46, 47, 48, 49, 50, 51, 52]
    pass_time(it, ctx, es.END_OF_TIME)
    assert not ctx.state.keys()


def test_late_rows_of_joins_are_at_the_side_output() -> None:
    it, ctx = at_work(IntervalJoin(KEYS, TIMES, -SECOND, SECOND))
    pass_time(it, ctx, 10 * SECOND)
    assert feed(it, ctx, "left", [9, 10, 3]) == {"late": [9, 3]}
    it, ctx = at_work(WindowJoin(KEYS, TIMES, es.Tumbling("5s")))
    pass_time(it, ctx, 12 * SECOND)
    assert feed(it, ctx, "left", [9, 10, 3]) == {"late": [9, 3]}


def stream(pipeline: Pipeline | None = None) -> Stream:
    return (
        (pipeline or Pipeline("test"))
        .source(FromList([{"k": 1, "t": 1}]))
        .event_time("t", unit="us")
    )


@pytest.mark.parametrize(
    ("join", "problem"),
    [
        (lambda a, b: a.window_join(b, on="k", window=es.Session("1s")), "Tumbling"),
        (lambda a, b: a.interval_join(b, on="k", between=("2s", "1s")), "greater"),
        (lambda a, b: a.interval_join(b, on=[], between=("1s", "2s")), "at least one"),
        (lambda a, b: a.interval_join(stream(), on="k", between=(0, 0)), "same pipeline"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_runs(join: Any, problem: str) -> None:
    pipeline = Pipeline("test")
    one, two = stream(pipeline), stream(pipeline)
    with pytest.raises(UserError, match=problem):
        join(one, two)


def test_the_two_inputs_of_a_join_may_be_keyed_each_in_its_way() -> None:
    pipeline = Pipeline("test")
    one, two = stream(pipeline), stream(pipeline)
    one.interval_join(two, on="k", between=(0, 0), shards=2).collect()
    plan = make_plan(pipeline, 2)
    assert {edge.side for edge in plan.graph.inputs("interval_join")} == {"left", "right"}


@pytest.mark.parametrize("join", ["interval", "as_of"])
def test_a_name_that_is_taken_by_an_earlier_join_is_refused(join: str) -> None:
    pipeline = Pipeline("twice")
    rows = [{"k": 1, "at": 5, "at_right": 4}]
    left = pipeline.source(FromList(rows), name="left").event_time("at", unit="s")
    right = pipeline.source(FromList([{"k": 1, "at": 5}]), name="right").event_time("at", unit="s")
    if join == "interval":
        joined = left.interval_join(right, on="k", between=(0, 1))
    else:
        joined = left.join_as_of(right, on="k")
    with pytest.raises(RunFailed, match="'at_right' is taken, too"):
        joined.collect().run(engine="local")
