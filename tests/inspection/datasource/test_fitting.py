"""Batches become rows of Spark without a value being lost, rounded or made up."""

import datetime
from typing import Any

import polars as pl
import pytest
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from everstream.errors import UserError
from everstream.inspection.datasource.fitting import fitted, rows, schema_of
from everstream.pipeline.batch import Batch

KINDS = {
    "bigint": LongType(),
    "int": IntegerType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "timestamp_ntz": TimestampNTZType(),
    "array<bigint>": ArrayType(LongType()),
}


def ddl(text: str) -> StructType:
    """Spark's own parser is in Java."""
    fields = [field.split() for field in text.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in fields])


def values(batch: Batch, schema: StructType) -> list[dict[str, Any]]:
    return [row for table in fitted(batch, schema) for row in table.to_pylist()]


@pytest.mark.parametrize(
    ("batch", "columns", "first"),
    [
        ([1, 2], "value bigint", {"value": 1}),
        (["a", "b"], "value string", {"value": "a"}),
        ([1, 2.5], "value double", {"value": 1.0}),
        ([("a", 1), ("b", 2)], "_1 string, _2 bigint", {"_1": "a", "_2": 1}),
        ([{"n": 1}, {"n": 2, "m": "x"}], "n bigint, m string", {"n": 1, "m": None}),
        ([{"n": None}], "n string", {"n": None}),
        (
            pl.DataFrame({"n": [1], "s": ["a"]}, schema={"n": pl.UInt32, "s": pl.Categorical}),
            "n bigint, s string",
            {"n": 1, "s": "a"},
        ),
        (
            pl.DataFrame({"at": [datetime.datetime(2020, 1, 2)], "many": [[1, 2]]}),
            "at timestamp_ntz, many array<bigint>",
            {"at": datetime.datetime(2020, 1, 2), "many": [1, 2]},
        ),
    ],
)
def test_a_batch_has_the_columns_one_would_expect(
    batch: Batch, columns: str, first: dict[str, Any]
) -> None:
    schema = schema_of(batch)
    assert schema.simpleString() == ddl(columns).simpleString()
    assert values(batch, schema)[0] == first


def test_wanted_columns_are_taken_in_the_wanted_types() -> None:
    frame = pl.DataFrame({"a": [1, 2], "b": ["x", "y"], "c": [0.5, 1.5]})
    assert values(frame, ddl("c float, a int")) == [{"c": 0.5, "a": 1}, {"c": 1.5, "a": 2}]


@pytest.mark.parametrize(
    ("batch", "columns", "problem"),
    [
        (pl.DataFrame({"n": [2**40]}), "n int", "column 'n' does not fit"),
        (pl.DataFrame({"n": [1.5]}), "n int", "column 'n' does not fit"),
        (pl.DataFrame({"n": [2**63]}, schema={"n": pl.UInt64}), "n bigint", "does not fit"),
        (pl.DataFrame({"n": [1]}), "m int", "no column 'm'; there are: n"),
        ([1, "a"], "value bigint", "do not make a column for Spark"),
        ([(1,), (1, 2)], "_1 bigint", "different lengths"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_the_column(
    batch: Batch, columns: str, problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        values(batch, ddl(columns))


def test_anything_becomes_text_where_text_is_wanted_and_nothing_else_is_bent() -> None:
    columns = {"key": ["a", ("b", 2), None], "value": [1, 2.5, "x"]}
    (table,) = rows(columns, ddl("value string, key string"))
    assert table.to_pydict() == {"value": ["1", "2.5", "x"], "key": ["a", "('b', 2)", None]}
    with pytest.raises(UserError, match="column 'value' has values that are no"):
        list(rows(columns, ddl("value bigint")))
