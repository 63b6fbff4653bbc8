"""Sums and means of whole numbers of any size and of Decimals: exact, or refused by name."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everstream as es
from everstream.connectors.generate.sources import FromList
from everstream.errors import UserError
from everstream.pipeline.aggregation.aggregates import Aggregates
from everstream.pipeline.aggregation.local_parts import LocalParts
from everstream.pipeline.aggregation.running import RunningChanges, RunningRecords
from everstream.pipeline.operator import Context
from everstream.pipeline.stream import Pipeline
from everstream.runtime.payload import decode_batch, encode_batch
from everstream.state.backends.memory import MemoryBackend
from tests.pipeline.sim import Sink, rows_source, simulate

QUICK = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
AGGREGATES: dict[str, Any] = {
    "total": es.sum("v"),
    "low": es.min("v"),
    "high": es.max("v"),
    "best": es.top_k("v", 1),
}
WHOLE = st.sampled_from([2**62, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)
CENTS = st.integers(-(10**20), 10**20).map(lambda cents: Decimal(cents).scaleb(-2))
Made = list[tuple[int, Any]]


def made_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Made]:
    return st.lists(st.tuples(st.integers(0, 2), st.none() | values), min_size=1, max_size=30)


def in_python(made: Made) -> list[tuple[Any, ...]]:
    """Key, sum, smallest, greatest and mean, worked out by Python."""
    results = []
    for key in dict.fromkeys(key for key, _ in made):
        values = [value for other, value in made if other == key and value is not None]
        best = max(values, default=None)
        results.append(
            (key, sum(values), min(values, default=None), best, (best,) if values else ())
        )
    return results


def frame_of(made: Made, kind: pl.DataType) -> pl.DataFrame:
    columns = {"k": [key for key, _ in made], "v": [value for _, value in made]}
    return pl.DataFrame(columns, schema={"k": pl.Int64, "v": kind}).with_columns(t=pl.lit(1))


@pytest.mark.parametrize(
    ("values", "kind"),
    [(WHOLE, pl.Int64()), (CENTS, pl.Decimal(38, 2))],
    ids=["whole numbers", "decimals"],
)
@QUICK
@given(st.data(), st.integers(1, 9), st.integers(0, 1000))
def test_windows_add_exactly_what_python_adds(
    values: Any, kind: pl.DataType, data: st.DataObject, batch: int, seed: int
) -> None:
    made = data.draw(made_of(values))
    frame = frame_of(made, kind)

    def build(pipeline: Pipeline, sink: Sink) -> None:
        source = pipeline.source(rows_source(frame, batch), name="rows", shards=2)
        timed = source.event_time("t", unit="s")
        windows = timed.key_by("k").window(es.Tumbling("10s"))
        sink(windows.aggregate(**AGGREGATES, shards=2).map(without_times), "out")

    simulate(build, {"out": in_python(made)}, seed)


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("window_")}


@pytest.mark.parametrize(
    ("values", "kind"),
    [(WHOLE, pl.Int64()), (CENTS, pl.Decimal(38, 2))],
    ids=["whole numbers", "decimals"],
)
@QUICK
@given(st.data(), st.integers(1, 9), st.integers(0, 1000))
def test_running_aggregates_add_exactly_what_python_adds(
    values: Any, kind: pl.DataType, data: st.DataObject, batch: int, seed: int
) -> None:
    made = data.draw(made_of(values))
    frame = frame_of(made, kind).with_row_index("n")

    def build(pipeline: Pipeline, sink: Sink) -> None:
        keyed = pipeline.source(rows_source(frame, batch), name="rows").key_by("k")
        simple = {name: AGGREGATES[name] for name in ("total", "low", "high")}
        records = keyed.aggregate(**simple, emit="record", shards=2)
        sink(records.select("n", "total", "low", "high"), "records")
        changes = keyed.aggregate(**AGGREGATES, name="changing", shards=2)
        sink(changes.process(Latest()), "changes")

    expected = []
    for n, (key, _) in enumerate(made):
        so_far = [row for row in in_python(made[: n + 1]) if row[0] == key]
        expected.append((n, *so_far[0][1:4]))
    simulate(build, {"records": expected, "changes": in_python(made)}, seed)


class Latest(es.Operator):
    """The last row of each key, at the end."""

    def process(self, record: dict[str, Any], ctx: Context) -> None:
        ctx.state.put(record["k"], record)

    def on_end(self, ctx: Context) -> None:
        for _, row in ctx.state.items():
            ctx.emit(row)


def results_of(batches: list[pl.DataFrame], **named: Any) -> list[dict[str, Any]]:
    """The rows of the last batch of running aggregates."""
    aggregates = Aggregates(named)
    local, running = LocalParts(None, aggregates), RunningChanges(aggregates)
    ctx = Context("total", 0, 1, MemoryBackend())
    running.on_start(ctx)
    rows: list[dict[str, Any]] = []
    for batch in batches:
        local.process_batch(batch, ctx)
        ((_, parts),) = ctx.take_emitted()
        running.process_batch(parts.rename({"__pane": "k"}), ctx)  # type: ignore[union-attr]
        ((_, out),) = ctx.take_emitted()
        rows = [*out.to_dicts()]  # type: ignore[union-attr]
    return rows


def test_a_mean_of_decimals_is_a_decimal_with_six_digits_after_the_point_or_more() -> None:
    prices = pl.DataFrame({"v": [Decimal("0.10"), Decimal("0.20"), Decimal("0.20")]})
    (row,) = results_of([prices], mean=es.avg("v"))
    assert row["mean"] == Decimal("0.166667") and isinstance(row["mean"], Decimal)
    fine = pl.DataFrame({"v": [Decimal("0.12345678"), Decimal("0.12345679")]})
    (row,) = results_of([fine], mean=es.avg("v"))
    assert str(row["mean"]) == "0.12345678"
    (row,) = results_of([pl.DataFrame({"v": [1, 2]})], mean=es.avg("v"))
    assert row["mean"] == 1.5


def test_a_sum_takes_in_decimals_of_any_scale_and_whole_numbers() -> None:
    batches = [
        pl.DataFrame({"v": [1]}),
        pl.DataFrame({"v": [Decimal("1.25")]}),
        pl.DataFrame({"v": [Decimal("1.2567")]}),
        pl.DataFrame({"v": [Decimal("1.5")]}),
    ]
    aggregates = {"total": es.sum("v"), "high": es.max("v"), "best": es.top_k("v", 2)}
    (row,) = results_of(batches, **aggregates)
    assert row["total"] == Decimal("5.0067") and row["high"] == Decimal("1.5")
    assert row["best"] == [Decimal("1.5"), Decimal("1.2567")]


def test_a_sum_of_whole_numbers_is_of_64_bits_as_long_as_it_fits() -> None:
    small = Aggregates({"total": es.sum("v")})
    parts = small.of_records(pl.DataFrame({"v": [2**62, -(2**62)]}), [pl.lit(0)])
    assert parts.schema["total.sum"] == pl.Int64
    parts = small.of_records(pl.DataFrame({"v": [2**62, 2**62]}), [pl.lit(0)])
    assert parts["total.sum"].to_list() == [2**63]


LARGE = [
    pl.DataFrame({"v": pl.Series([10**37] * 20, dtype=pl.Int128)}),
    pl.DataFrame({"v": pl.Series([Decimal(10**35)] * 20, dtype=pl.Decimal(38, 2))}),
]


@pytest.mark.parametrize("frame", LARGE, ids=["whole numbers", "decimals"])
def test_a_sum_of_more_than_38_digits_is_refused_by_name(frame: pl.DataFrame) -> None:
    refused = pytest.raises(UserError, match="the sum for 'total' has more than 38 digits")
    aggregates = Aggregates({"total": es.sum("v")})
    with refused:
        aggregates.of_records(frame, [pl.lit(0)])
    with refused:
        parts = [aggregates.of_records(frame[n : n + 5], [pl.lit(0)]) for n in range(0, 20, 5)]
        aggregates.merged(pl.concat(parts), ["literal"])
    with refused:
        results_of([frame[n : n + 5] for n in range(0, 20, 5)], total=es.sum("v"))
    records = RunningRecords(aggregates)
    ctx = Context("total", 0, 1, MemoryBackend())
    records.on_start(ctx)
    with refused:
        records.aggregates.named["total"].running("total", frame)  # type: ignore[attr-defined]


def test_decimals_that_become_floats_are_refused_by_name() -> None:
    batches = [pl.DataFrame({"v": [Decimal("1.25")]}), pl.DataFrame({"v": [0.5]})]
    with pytest.raises(UserError, match="for 'total' were Decimals until now and are floats"):
        results_of(batches, total=es.sum("v"))


def test_numbers_of_128_bits_travel_in_frames_of_any_size() -> None:
    for rows in (3, 10_000):
        frame = pl.DataFrame({"n": pl.Series([2**100 + n for n in range(rows)], dtype=pl.Int128)})
        back = decode_batch(encode_batch(frame))
        assert isinstance(back, pl.DataFrame) and back.equals(frame)


def test_the_example_of_the_documentation_keeps_its_cents() -> None:
    prices: list[dict[str, Any]] = [{"item": 1, "price": Decimal("0.10")}] * 3

    def build(pipeline: Pipeline, sink: Sink) -> None:
        keyed = pipeline.source(FromList(prices, batch=1)).key_by("item")
        totals: Callable[..., Any] = keyed.aggregate
        sink(totals(total=es.sum("price")).process(Kinds()), "out")

    simulate(build, {"out": [("Decimal", Decimal(n).scaleb(-1)) for n in (1, 2, 3)]}, faults=False)


class Kinds(es.Operator):
    """The type of each total, and the total."""

    def process(self, record: dict[str, Any], ctx: Context) -> None:
        ctx.emit((type(record["total"]).__name__, record["total"]))
