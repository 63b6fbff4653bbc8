"""The temporal join against a plain sequential program: the version that was valid at the time."""

from typing import Any, Literal

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everstream as es
from everstream import testing
from everstream.errors import UserError
from everstream.pipeline.event_time.as_of_join import AsOfJoin
from everstream.pipeline.operator import Context
from everstream.pipeline.stream import Pipeline, Stream
from everstream.pipeline.times import TimeOf
from everstream.state.backends.memory import MemoryBackend
from tests.pipeline.sides import as_of, side
from tests.pipeline.sim import Sink, rows_source, simulate
from tests.simulation.changing import Build, Changing

How = Literal["inner", "left"]
QUICK = settings(max_examples=25, suppress_health_check=list(HealthCheck))


@QUICK
@given(side("l"), side("r"), st.integers(1, 7), st.sampled_from(["inner", "left"]),
       st.integers(2, 9), st.booleans(), st.integers(0, 10_000))  # fmt: skip
def test_each_record_gets_the_newest_version_that_is_not_after_it(
    left: pl.DataFrame,
    right: pl.DataFrame,
    batch: int,
    how: How,
    ends: int,
    everywhere: bool,
    seed: int,
) -> None:
    def build(pipeline: Pipeline, sink: Sink) -> None:
        one = pipeline.source(rows_source(left, batch), name="left", shards=2)
        two = pipeline.source(rows_source(right, batch + 1), name="right")
        records = one.event_time("t", lateness="5ms", unit="us")
        table = two.event_time("t", lateness="5ms", unit="us")
        over = pl.col("r") % ends == 0
        join = records.broadcast_join if everywhere else records.join_as_of
        out = join(table, on="k", how=how, delete=over, other_schema=right.schema, shards=2)
        sink(out, "out")

    simulate(build, {"out": as_of(left, right, how, ends)}, seed)


def prices(how: How = "left", **more: Any) -> Pipeline:
    pipeline = Pipeline("prices")
    rows = [{"item": 1, "at": 0, "price": 10, "gone": False}]
    orders = pipeline.source(es.FromList([{"item": 1, "at": 0}]), name="orders")
    table = pipeline.source(es.FromList(rows), name="prices").event_time("at", unit="s")
    priced = orders.event_time("at", unit="s").join_as_of(table, on="item", how=how, **more)
    priced.collect(name="out")
    return pipeline


def test_a_record_waits_until_its_version_is_final() -> None:
    with testing.harness(prices(delete="gone")) as h:
        h.push("prices", [{"item": 1, "at": 0, "price": 10, "gone": False}])
        h.push("orders", [{"item": 1, "at": 20}, {"item": 2, "at": 21}])
        h.watermark("orders", 40)
        h.watermark("prices", 20)
        assert h.uncommitted("out") == []
        h.push("prices", [{"item": 1, "at": 20, "price": 12, "gone": False}])
        h.checkpoint()
        h.crash("join_as_of:0")
        h.watermark("prices", 22)
        rows = [(row["item"], row["price"]) for row in h.uncommitted("out")]
        assert rows == [(1, 12), (2, None)]
        h.push("prices", [{"item": 1, "at": 30, "price": 0, "gone": True}])
        h.push("orders", [{"item": 1, "at": 50}])
        h.push("prices", [{"item": 1, "at": 3, "price": 1, "gone": False}])
        assert [row["price"] for row in h.late("join_as_of")] == [1]
        h.end()
        assert [row["price"] for row in h.output("out")] == [12, None, None]


def at_work() -> tuple[AsOfJoin, Context]:
    keys = {"left": ["k"], "right": ["k"]}
    join = AsOfJoin(keys, {"left": TimeOf("t", "s"), "right": TimeOf("t", "s")})
    ctx = Context("join", 0, 1, MemoryBackend())
    join.on_start(ctx)
    return join, ctx


def feed(join: AsOfJoin, ctx: Context, side: str, rows: pl.DataFrame) -> None:
    ctx.input = side
    join.process_batch(rows, ctx)


def test_versions_are_kept_as_long_as_a_record_can_ask_for_them_and_little_longer() -> None:
    join, ctx = at_work()
    for t in range(600):
        feed(join, ctx, "right", pl.DataFrame({"k": list(range(10)), "t": [t] * 10}))
        feed(join, ctx, "left", pl.DataFrame({"k": [t % 10], "t": [t]}))
        ctx.watermark = t * 1_000_000
        join.on_watermark(ctx.watermark, ctx)
    kept = dict.fromkeys(("left", "right", "current"), 0)
    for key, rows in ctx.state.items():
        if isinstance(key, tuple):
            kept[key[0]] += len(rows)
    assert kept["left"] == 1 and kept["right"] == 10
    assert kept["current"] < 10 * (256 + 64)
    out = [row for _, batch in ctx.take_emitted() for row in batch.rows()]
    assert out == [(t % 10, t, t) for t in range(599)]
    join.on_watermark(es.END_OF_TIME, ctx)
    assert not any(isinstance(key, tuple) for key in ctx.state)


@pytest.mark.parametrize(
    ("left", "right", "pairs"),
    [
        ([1, 2], [1.0, 3.0], 1),
        ([float("nan"), None], [float("nan"), None], 1),
        ([True, False], [True, None], 1),
        (["a", None], ["a", "b"], 1),
    ],
)
def test_keys_are_compared_as_in_every_join(left: Any, right: Any, pairs: int) -> None:
    join, ctx = at_work()
    feed(join, ctx, "right", pl.DataFrame({"k": right, "t": [0] * 2}))
    join.on_watermark(1_000_000, ctx)
    feed(join, ctx, "left", pl.DataFrame({"k": left, "t": [5] * 2}))
    join.on_watermark(es.END_OF_TIME, ctx)
    assert sum(len(batch) for _, batch in ctx.take_emitted()) == pairs


def test_what_makes_no_sense_is_refused_before_anything_runs() -> None:
    with pytest.raises(UserError, match="'inner' or 'left'"):
        prices("full")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="a column or a Polars expression"):
        prices(delete=lambda row: True)


# Upgrades.

RECORDS = 240


def versioned(how: How, everywhere: bool) -> Build:
    def build(pipeline: Pipeline) -> Stream:
        rows = pl.DataFrame({"t": range(RECORDS)}).with_columns(k=pl.col("t") % 7)
        records = pipeline.source(rows_source(rows, 3), name="records").event_time("t", unit="s")
        table = pipeline.source(rows_source(rows.filter(pl.col("k") < 5), 4), name="table")
        timed = table.with_columns(t=pl.col("t") // 10 * 10).event_time("t", unit="s", lateness=10)
        join = records.broadcast_join if everywhere else records.join_as_of
        types = {"t": pl.Int64, "k": pl.Int64}
        out = join(timed, on="k", how=how, other_schema=types, name="join", shards=2)
        return out.map(lambda row: tuple(row.values()), name="tuples")

    return build


@pytest.mark.parametrize("everywhere", [False, True])
def test_another_version_may_also_emit_records_without_a_version(everywhere: bool) -> None:
    whole = {how: Changing(versioned(how, everywhere)).finish() for how in ("inner", "left")}
    stopped = Changing(versioned("inner", everywhere)).stop_at(2)
    before = stopped.shown()
    stopped.change(versioned("left", everywhere))
    assert "continues as a left join instead of an inner join" in stopped.notes[0]
    shown = stopped.finish()
    assert not shown - whole["left"] and not whole["inner"] - shown
    alone = sorted(row[0] for row in whole["left"] - shown)
    assert alone and all(row[2] is not None for row in before)
    assert max(alone) < min(row[0] for row in shown if row[2] is None) + 10


def test_a_join_that_goes_by_key_is_not_one_in_every_shard() -> None:
    stopped = Changing(versioned("left", True)).stop_at(2)
    with pytest.raises(UserError, match="'broadcast_join' is now 'as_of_join'"):
        stopped.change(versioned("left", False))
