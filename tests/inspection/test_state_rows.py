"""The state of built-in operators is read as rows, with the values and types that they would emit."""

from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream import testing
from everstream.inspection import state_of
from everstream.state.store import CheckpointStore

ROWS = [{"k": "ab"[n % 2], "d": n % 3, "v": n, "x": n / 2, "at": n} for n in range(40)]
OTHERS = [{"k": "ab"[n % 2], "w": n, "at": n} for n in range(6)]
EPOCH = datetime(1970, 1, 1)


def everything() -> es.Pipeline:
    pipeline = es.Pipeline("state")
    rows = pipeline.source(es.FromList([]), name="rows").event_time(
        "at", unit="s", lateness="25s", name="timed"
    )
    others = pipeline.source(es.FromList([]), name="others")
    timed = others.event_time("at", unit="s", lateness="25s", name="timed-others")
    of_each = {"n": es.count(), "total": es.sum("v"), "mean": es.avg("x"), "top": es.top_k("v", 2)}
    keyed = rows.key_by("k")
    sliding = es.Sliding("20s", every="10s")
    keyed.window(sliding).aggregate(**of_each, name="windows", shards=2).collect(name="1")
    keyed.window(es.Session("5s")).aggregate(n=es.count(), name="sessions").collect(name="2")
    own = es.custom(int, lambda n, row: n + 1, lambda one, other: one + other)
    sums = rows.key_by("k", "d").aggregate(
        **of_each, own=own, high=es.max("v"), name="sums", shards=2
    )
    sums.collect(name="3")
    rows.deduplicate(["k", "d"], within="1h", name="seen").collect(name="4")
    joined = rows.interval_join(timed, on="k", between=("-1s", "1s"), name="joined")
    joined.collect(name="5")
    return keyed.fold(int, lambda n, row: n + row["v"], name="folded").collect(name="6")


@pytest.fixture(scope="module")
def store() -> CheckpointStore:
    with testing.harness(everything()) as h:
        h.push("rows", ROWS)
        h.push("others", OTHERS)
        h.checkpoint()
        return CheckpointStore(h._world.disk)


def at(column: str) -> pl.Expr:
    return (pl.lit(EPOCH) + pl.duration(seconds=pl.col(column))).cast(pl.Datetime("us"))


AGGREGATES = [
    pl.len().cast(pl.Int64).alias("n"),
    pl.col("v").sum().alias("total"),
    pl.col("x").mean().alias("mean"),
    pl.col("v").top_k(2).sort(descending=True).alias("top"),
]


def same(found: pl.DataFrame, expected: pl.DataFrame, by: list[str]) -> None:
    found = found.drop("shard")
    assert found.schema == expected.schema
    assert found.sort(by).rows() == expected.sort(by).rows()


def test_windows_are_rows_of_key_window_and_results(store: CheckpointStore) -> None:
    """The watermark is at 39 - 25 = 14 s: windows that end after it are open."""
    rows = pl.DataFrame(ROWS)
    starts = [s for s in range(-10, 40, 10) if s + 20 > 14]
    frames = [
        rows.filter(pl.col("at").is_between(s, s + 19)).with_columns(
            start=pl.lit(s), end=pl.lit(s + 20)
        )
        for s in starts
    ]
    expected = (
        pl.concat(frames)
        .group_by("k", at("start").alias("window_start"), at("end").alias("window_end"))
        .agg(AGGREGATES)
    )
    same(state_of(store, "windows"), expected, ["k", "window_start"])


def test_sessions_are_rows_with_their_times(store: CheckpointStore) -> None:
    found = state_of(store, "sessions").sort("k")
    assert found.columns == ["shard", "k", "window_start", "window_end", "n"]
    ends = [EPOCH + timedelta(seconds=38 + 5), EPOCH + timedelta(seconds=39 + 5)]
    assert found["window_end"].to_list() == ends
    assert found["window_start"].to_list() == [EPOCH, EPOCH + timedelta(seconds=1)]
    assert found["n"].to_list() == [20, 20] and found.schema["n"] == pl.Int64


def test_running_aggregates_are_a_row_per_key(store: CheckpointStore) -> None:
    expected = (
        pl.DataFrame(ROWS).group_by("k", "d").agg(*AGGREGATES, pl.col("v").max().alias("high"))
    )
    same(state_of(store, "sums"), expected, ["k", "d"])
    assert set(state_of(store, "sums")["shard"]) == {0, 1}


def test_joins_and_deduplicate_show_the_rows_that_they_keep(store: CheckpointStore) -> None:
    joined = state_of(store, "joined")
    right = joined.filter(pl.col("state") == "right").drop_nulls("w")
    assert right.sort("at").select("k", "w", "at").rows(named=True) == OTHERS
    left = joined.filter(pl.col("state") == "left").sort("v")
    assert left.select(*ROWS[0]).rows(named=True) == ROWS
    assert left["time"].to_list() == [EPOCH + timedelta(seconds=n) for n in range(40)]
    seen = state_of(store, "seen").sort("k", "d")
    assert seen.select("k", "d").rows() == [(k, d) for k in "ab" for d in range(3)]
    assert seen.schema["time"] == pl.Datetime("us")


def test_other_state_and_as_saved_are_entries(store: CheckpointStore) -> None:
    folded = state_of(store, "folded")
    assert dict(folded.select("key", "value").rows()) == {"a": 380, "b": 400}
    assert state_of(store, "windows", as_saved=True).columns == ["shard", "state", "key", "value"]
    assert state_of(store, "rows").columns == ["shard", "state", "key", "value"]


def test_no_state_is_no_rows() -> None:
    with testing.harness(everything()) as h:
        h.checkpoint()
        empty: Any = state_of(CheckpointStore(h._world.disk), "windows")
        assert empty.height == 0
