"""Windows behind joins and behind windows: every row that comes out of the first is in one of the second.

The first stage emits rows that are older than the watermark it has seen, so it must hold the watermark
back; otherwise the second would take them for late.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everstream as es
from everstream import testing
from everstream.errors import UserError
from everstream.pipeline.stream import Pipeline, Stream
from tests.pipeline.sides import as_of, near, side
from tests.pipeline.sim import Sink, rows_source, simulate

QUICK = settings(max_examples=25, suppress_health_check=list(HealthCheck))
SECOND = 40
"""The length of the windows of the second stage, shorter than what the first waits for."""


def timed(
    pipeline: Pipeline, rows: pl.DataFrame, name: str, batch: int, time: str = "t", shards: int = 1
) -> Stream:
    """The least lateness that the rows need: time advances while they come."""
    source = pipeline.source(rows_source(rows, batch), name=name, shards=shards)
    return source.event_time(time, lateness=200 / 1e6, unit="us", name=f"{name}-time")


def counted(times: list[int]) -> list[Any]:
    panes = Counter(time // SECOND * SECOND for time in times)
    return [(start, start + SECOND, n) for start, n in panes.items()]


def behind(stream: Stream, sink: Sink) -> None:
    windows = stream.window(es.Tumbling(SECOND / 1e6))
    counts = windows.aggregate(n=es.count(), name="windows")
    sink(counts, "counts")
    sink(counts.side_output("late"), "late")


def check(build: Callable[[Pipeline], Stream], times: list[int], seed: int) -> None:
    def built(pipeline: Pipeline, sink: Sink) -> None:
        behind(build(pipeline), sink)

    simulate(built, {"counts": counted(times), "late": []}, seed)


@QUICK
@given(side("l"), side("r"), st.integers(1, 7),
       st.sampled_from([(-100, 200), (0, 0), (50, 90), (-300, -10)]),
       st.sampled_from(["inner", "left"]), st.integers(0, 10_000))  # fmt: skip
def test_pairs_of_an_interval_join_are_in_the_window_of_the_left_row(
    left: pl.DataFrame,
    right: pl.DataFrame,
    batch: int,
    between: tuple[int, int],
    how: Any,
    seed: int,
) -> None:
    def build(pipeline: Pipeline) -> Stream:
        one = timed(pipeline, left, "left", batch, shards=2)
        two = timed(pipeline, right, "right", batch + 1)
        bounds = (between[0] / 1e6, between[1] / 1e6)
        more = {"schema": left.schema, "other_schema": right.schema, "name": "join", "shards": 2}
        return one.interval_join(two, on="k", between=bounds, how=how, **more)

    check(build, [row[1] for row in near(left, right, between, how)], seed)


@QUICK
@given(side("l"), side("r"), st.integers(1, 7), st.sampled_from(["inner", "left"]),
       st.integers(0, 10_000))  # fmt: skip
def test_rows_of_a_window_join_are_in_the_window_of_its_end(
    left: pl.DataFrame, right: pl.DataFrame, batch: int, how: Any, seed: int
) -> None:
    def build(pipeline: Pipeline) -> Stream:
        one = timed(pipeline, left, "left", batch, shards=2)
        two = timed(pipeline, right, "right", batch + 1)
        more = {"schema": left.schema, "other_schema": right.schema, "name": "join", "shards": 2}
        return one.window_join(two, on="k", window=es.Tumbling(100 / 1e6), how=how, **more)

    def panes(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(w=pl.col("t") - pl.col("t") % 100)

    pairs = panes(left).join(panes(right), on=["k", "w"], how=how)
    check(build, (pairs["w"] + 99).to_list(), seed)


@QUICK
@given(side("l"), side("r"), st.integers(1, 7), st.sampled_from(["inner", "left"]),
       st.integers(0, 10_000))  # fmt: skip
def test_rows_with_their_version_are_in_the_window_of_the_row(
    left: pl.DataFrame, right: pl.DataFrame, batch: int, how: Any, seed: int
) -> None:
    right = right.with_columns(pl.col("r") + 1)  # the reference takes 0 for the end of a key
    other = right.rename({"t": "since"})  # times that differ in name do not hide those of the left

    def build(pipeline: Pipeline) -> Stream:
        records = timed(pipeline, left, "left", batch, shards=2)
        table = timed(pipeline, other, "right", batch + 1, "since")
        more = {"other_schema": other.schema, "name": "join", "shards": 2}
        return records.join_as_of(table, on="k", how=how, **more)

    check(build, [row[1] for row in as_of(left, right, how, 1_000_000)], seed)


@QUICK
@given(side("l"), st.integers(1, 7), st.integers(0, 10_000))
def test_ranked_rows_are_in_the_window_of_their_time(
    left: pl.DataFrame, batch: int, seed: int
) -> None:
    def build(pipeline: Pipeline) -> Stream:
        windows = (
            timed(pipeline, left, "rows", batch, shards=2)
            .key_by("k")
            .window(es.Tumbling(150 / 1e6))
        )
        placed = windows.with_columns(place=es.rank("t"), name="ranks", shards=2)
        return placed.select(pl.exclude("window_start", "window_end"))

    check(build, left["t"].to_list(), seed)


def test_a_join_that_keeps_rows_of_the_right_alone_has_no_time_unless_it_is_given() -> None:
    pipeline = Pipeline("full")
    kinds = {"k": pl.Int64, "t": pl.Int64}
    one, two = (
        pipeline.source(es.FromList([{"k": 1, "t": 5}]), name=name).event_time("t", unit="s")
        for name in ("one", "two")
    )
    more: Any = {"schema": kinds, "other_schema": kinds}
    joined = one.interval_join(two, on="k", between=("0s", "9s"), how="full", **more)
    with pytest.raises(UserError, match=r"at=pl\.coalesce"):
        joined.window(es.Tumbling("10s"))
    time = pl.coalesce("t", "t_right")
    counts = joined.window(es.Tumbling("10s"), at=time, unit="s").aggregate(n=es.count())
    counts.collect(name="out")
    with testing.harness(pipeline) as h:
        h.push("one", [{"k": 1, "t": 15}, {"k": 1, "t": 40}])
        h.push("two", [{"k": 1, "t": 12}, {"k": 1, "t": 44}])
        h.end()
        assert [row["n"] for row in h.output("out")] == [2, 1]
