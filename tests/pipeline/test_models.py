"""Typed rows: declared columns, instances for functions, columns for everything else."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
import polars as pl
import pydantic
import pytest

import everstream as es
from everstream import testing
from everstream.errors import UserError
from everstream.pipeline.operators.models import model_of


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    sku: str
    n: int


@dataclass
class Order:
    user: str
    cents: int
    at: datetime
    color: Color = Color.RED
    lines: list[Line] = field(default_factory=list)
    note: str | None = None
    price: Annotated[Decimal, pl.Decimal(10, 2)] = Decimal("0.00")
    ident: UUID = field(default_factory=lambda: UUID(int=7))


@dataclass(kw_only=True)
class DataRow:
    user: str
    euros: float


class StructRow(msgspec.Struct):
    user: str
    euros: float


class PydanticRow(pydantic.BaseModel):
    user: str
    euros: float


PLAIN = {"user": "ada", "cents": 5, "at": datetime(2020, 1, 1)}
FULL = {
    "user": "bob",
    "cents": 7,
    "at": datetime(2020, 1, 2),
    "color": "blue",
    "lines": [{"sku": "x", "n": 2}],
    "note": "soon",
    "price": Decimal("1.50"),
    "ident": str(UUID(int=3)),
}
INSTANCES = [
    Order("ada", 5, datetime(2020, 1, 1)),
    Order(
        "bob",
        7,
        datetime(2020, 1, 2),
        Color.BLUE,
        [Line("x", 2)],
        "soon",
        Decimal("1.50"),
        UUID(int=3),
    ),
]


def typed(values: list[Any]) -> list[Any]:
    """The values with their types, so that 1 and 1.0 differ."""
    return [(type(value), repr(value)) for value in values]


def orders(**options: Any) -> es.Stream[Order]:
    return es.Pipeline("orders").source(es.FromList([]), name="orders", schema=Order, **options)


def in_data(order: Order) -> DataRow:
    return DataRow(user=order.user, euros=order.cents / 100)


def in_struct(row: DataRow) -> StructRow:
    return StructRow(row.user, row.euros)


def in_pydantic(row: StructRow) -> PydanticRow:
    return PydanticRow(user=row.user, euros=row.euros)


def lines(order: Order) -> Iterable[Line]:
    return order.lines


def test_functions_get_instances_with_exact_values_and_types() -> None:
    pipeline = orders().map(lambda order: order).sink(es.Collect(), name="out")
    with testing.harness(pipeline) as h:
        h.push("orders", [PLAIN, FULL])
        h.end()
        assert typed(h.output("out")) == typed(INSTANCES)


def test_functions_that_return_models_give_columns_with_known_types() -> None:
    stream = orders().map(in_data).map(in_struct).map(in_pydantic)
    assert stream.schema == pl.Schema({"user": pl.String, "euros": pl.Float64})
    pipeline = stream.filter(pl.col("euros") > 0.06).sink(es.Collect(), name="out")
    with testing.harness(pipeline) as h:
        h.push("orders", [PLAIN, FULL])
        h.end()
        assert h.output("out") == [{"user": "bob", "euros": 0.07}]


def test_key_functions_folds_times_windows_and_flat_map_follow() -> None:
    rows = orders()
    timed = rows.event_time(lambda order: order.at, name="timed")
    windows = timed.filter(lambda order: order.cents > 5).window(es.Tumbling("24h"))
    windows.aggregate(n=es.sum("cents"), name="windows").sink(es.Collect(), name="daily")
    totals = rows.key_by(lambda order: order.user).fold(
        int, lambda total, order: total + order.cents, name="totals"
    )
    totals.sink(es.Collect(), name="out")
    pipeline = (
        rows.flat_map(lines).with_columns(twice=pl.col("n") * 2).sink(es.Collect(), name="lines")
    )
    with testing.harness(pipeline) as h:
        h.push("orders", [PLAIN, FULL])
        h.end()
        assert h.output("out") == [("ada", 5), ("bob", 7)]
        assert h.output("lines") == [{"sku": "x", "n": 2, "twice": 4}]
        assert [row["n"] for row in h.output("daily")] == [7]


def test_an_annotated_function_gets_instances_of_rows_that_were_not_declared() -> None:
    rows = es.Pipeline("plain").source(es.FromList([]), name="orders")
    pipeline = rows.map(in_data).select("euros").sink(es.Collect(), name="out")
    with testing.harness(pipeline) as h:
        h.push("orders", [PLAIN])
        h.end()
        assert h.output("out") == [{"euros": 0.05}]


def test_instances_without_a_declaration_stay_instances_and_work_as_columns() -> None:
    rows = es.Pipeline("plain").source(es.FromList([]), name="orders")
    pipeline = rows.key_by("user").aggregate(total=es.sum("cents"), name="sums").sink(
        es.Collect(), name="out"
    )  # fmt: skip
    rows.map(lambda order: order).sink(es.Collect(), name="same")
    with testing.harness(pipeline) as h:
        h.push("orders", INSTANCES)
        h.end()
        assert sorted(h.output("out"), key=str) == [
            {"user": "ada", "total": 5},
            {"user": "bob", "total": 7},
        ]
        assert h.output("same") == INSTANCES


WRONG = [
    ({**PLAIN, "cents": "5"}, "column 'cents': '5' is not an exact Int64"),
    ({"user": "ada", "at": datetime(2020, 1, 1)}, "column 'cents': a value is missing"),
    ({**PLAIN, "user": None}, "column 'user': a value is missing"),
    ({**PLAIN, "cents": 2.5}, "column 'cents': 2.5 is not an exact Int64"),
    (17, "it is of type int"),
]


@pytest.mark.parametrize(("record", "match"), WRONG)
def test_a_record_that_does_not_fit_is_refused_and_named(record: Any, match: str) -> None:
    source = es.FromList([PLAIN, record])
    rows = es.Pipeline("wrong").source(source, name="orders", schema=Order)
    with pytest.raises(Exception, match=rf"a record is not an Order: {match}"):
        rows.collect().run(engine="local", workers=1)


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_a_source_with_on_error_leaves_such_records_out(tmp_path: Path, on_error: Any) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text('{"user": "ada", "euros": 1.5}\n{"user": "ada"}\n{"user": "bob", "euros": 2}\n')
    rows = es.Pipeline("files").source(
        es.JsonLines(path, on_error=on_error), name="orders", schema=DataRow
    )
    result = rows.collect().run(engine="local", workers=1, store=str(tmp_path / "store"))
    assert typed(result.collected()) == typed(
        [{"user": "ada", "euros": 1.5}, {"user": "bob", "euros": 2.0}]
    )
    assert result.skipped == {"orders": 1}


def test_as_rows_applies_the_on_error_of_the_operator() -> None:
    rows = es.Pipeline("rows").source(es.FromList([]), name="rows")
    typed_rows = rows.as_rows(StructRow, on_error="skip")
    pipeline = typed_rows.filter(lambda row: row.euros > 1).sink(es.Collect(), name="out")
    with testing.harness(pipeline) as h:
        h.push("rows", [{"user": "ada", "euros": 2}, {"user": 3, "euros": 2.0}, 9, {"user": "bob"}])
        h.end()
        assert h.output("out") == [{"user": "ada", "euros": 2.0}]


@pytest.mark.parametrize(
    "kind", [DataRow, StructRow, PydanticRow, {"user": pl.String, "euros": pl.Float64}]
)
def test_every_form_of_a_schema_declares_the_same_columns(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "rows.csv").write_text("user,euros\nada,1\n")
    pipeline = es.Pipeline("forms")
    declared = pipeline.source(es.Csv(tmp_path / "rows.csv"), name="declared", schema=kind)
    own = pipeline.source(es.Csv(tmp_path / "rows.csv", schema=kind), name="own")
    expected = pl.Schema({"user": pl.String, "euros": pl.Float64})
    assert declared.schema == own.schema == expected
    declared.union(own).collect(name="out")
    result = pipeline.run(engine="local", workers=1)
    assert result.collected("out") == [{"user": "ada", "euros": 1.0}] * 2


def test_state_continues_when_a_schema_is_declared_later() -> None:
    def totals(schema: Any) -> es.Pipeline:
        rows = es.Pipeline("later").source(es.FromList([]), name="orders", schema=schema)
        counted = rows.key_by("user").fold(int, lambda n, row: n + 1, name="counts")
        return counted.sink(es.Collect(), name="out")

    with testing.harness(totals(None)) as h:
        h.push("orders", [{"user": "ada", "euros": 1.0}])
        h.checkpoint()
        h.restart(totals(DataRow))
        h.push("orders", [{"user": "ada", "euros": 2}])
        h.end()
        assert h.output("out") == [("ada", 1), ("ada", 2)]


def test_a_field_without_a_column_type_is_an_error_that_says_what_to_do() -> None:
    @dataclass
    class Priced:
        price: Decimal

    with pytest.raises(UserError, match=r"Priced.price is Decimal.*Annotated\[Decimal, pl.Decimal"):
        model_of(Priced)
    with pytest.raises(UserError, match="a dataclass, a pydantic model or a msgspec Struct"):
        es.Pipeline("x").source(es.FromList([]), schema=int)


def test_a_result_that_does_not_fit_its_model_goes_through_on_error() -> None:
    def broken(order: Order) -> StructRow:
        return StructRow(order.user, "much" if order.cents > 6 else 1.0)  # type: ignore[arg-type]

    pipeline = orders().map(broken, on_error="skip").sink(es.Collect(), name="out")
    with testing.harness(pipeline) as h:
        h.push("orders", [PLAIN, FULL])
        h.end()
        assert h.output("out") == [{"user": "ada", "euros": 1.0}]
