"""Conversions change no value: what does not fit is named, and nothing else is."""

import math
import random
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstream.errors import UserError
from everstream.pipeline.batch import columns_of
from everstream.pipeline.exact import SeriesColumn, column_of, holds, is_open, wider

BERLIN = ZoneInfo("Europe/Berlin")


class Number(IntEnum):
    ONE = 1


class Word(StrEnum):
    ONE = "one"


KEPT: list[tuple[list[Any], pl.DataType]] = [
    ([1, None, 2], pl.Int64()),
    ([1, 2.5], pl.Float64()),
    ([2**63, 1], pl.UInt64()),
    ([2**63, -1], pl.Int128()),
    ([Decimal("1.25"), Decimal("1.2567"), 3, Decimal("1E+3")], pl.Decimal(38, 4)),
    ([date(2024, 1, 1), datetime(2024, 1, 1, 1)], pl.Datetime("us")),
    ([datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN)], pl.Datetime("us", "Europe/Berlin")),
    ([datetime(2024, 1, 1, tzinfo=BERLIN), datetime(2024, 1, 1, tzinfo=UTC)], pl.Datetime("us", "UTC")),
    ([np.float64(1.5), np.int64(3)], pl.Float64()),
    ([np.bool_(True), False], pl.Boolean()),
    ([np.array([1, 2])], pl.List(pl.Int64())),
    ([np.datetime64("2024-01-01T00:00")], pl.Datetime("us")),
    ([Number.ONE, 2], pl.Int64()),
    ([Word.ONE, "two"], pl.String()),
    ([{"x": 1}, {"y": 2.5}, {"x": 0.5}], pl.Struct({"x": pl.Float64(), "y": pl.Float64()})),
    ([[1], [2.5], []], pl.List(pl.Float64())),
    ([None, None], pl.Null()),
    ([float("nan"), 1], pl.Float64()),
]  # fmt: skip


@pytest.mark.parametrize(("values", "kind"), KEPT)
def test_values_that_go_together_stay_what_they_are(values: list[Any], kind: pl.DataType) -> None:
    column = column_of("a", values)
    converted, misfits = column.fitted(column.kind)
    assert converted.dtype == kind
    assert not misfits
    for sent, found in zip(values, converted.to_list(), strict=True):
        if isinstance(sent, dict):
            assert sent == {name: found[name] for name in sent}
        elif isinstance(sent, np.ndarray | np.datetime64):
            assert sent.tolist() == found
        elif isinstance(found, datetime) and not isinstance(sent, datetime):
            assert datetime.combine(sent, datetime.min.time()) == found
        else:
            assert sent == found or math.isnan(sent)


REFUSED: list[tuple[list[Any], str]] = [
    ([1, True], "True is not an exact Int64"),
    ([True, 2], "2 is not an exact Boolean"),
    ([1.5, False], "False is not an exact Float64"),
    ([0.5, 2**53 + 1], "9007199254740993 is not an exact Float64"),
    (["a", 1], "1 is not an exact String"),
    ([b"a", "b"], "'b' is not an exact Binary"),
    ([Decimal("1.5"), 1.5], "1.5 is not an exact Decimal"),
    ([1, Decimal("NaN")], r"Decimal\('NaN'\) is not an exact Decimal"),
    ([datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)], "is not an exact Datetime"),
    ([timedelta(1), timedelta.max], "is not an exact Duration"),
    ([1, object()], "is a Python object"),
    ([1, 2**200], "is larger than any integer type"),
    (["a", "\ud800"], "half a surrogate"),
    ([[1], [1, True]], r"\[1, True\] is not an exact Int64"),
    ([{"x": 1}, {"x": True}], "{'x': True} is not an exact Int64"),
    ([{"x": 1}, {1: 1}], "additional field|keys are not all text"),
]


@pytest.mark.parametrize(("values", "reason"), REFUSED)
def test_a_value_that_would_become_another_is_named(values: list[Any], reason: str) -> None:
    column = column_of("a", values)
    converted, misfits = column.fitted(column.kind)
    assert list(misfits) == [1]
    assert re.search(reason, misfits[1])
    assert converted[1] is None
    assert converted.to_list()[0] == values[0]


SERIES = [
    *(pl.Series([1, -1, None], dtype=kind) for kind in (pl.Int8, pl.Int32, pl.Int64, pl.Int128)),
    *(pl.Series([1, 200, None], dtype=kind) for kind in (pl.UInt8, pl.UInt32, pl.UInt64)),
    pl.Series([2**53 + 1, 2**63 - 1, 5]),
    pl.Series([2**64 - 1, 2], dtype=pl.UInt64),
    pl.Series([0.1, 4.0, float("nan"), float("inf"), -0.0, None]),
    pl.Series([0.5, 1e30], dtype=pl.Float32),
    pl.Series([True, False, None]),
    pl.Series(["1", "", None]),
    pl.Series(["a", "b"], dtype=pl.Categorical),
    pl.Series([b"1", None]),
    pl.Series([Decimal("1.25"), Decimal("123456789.5")], dtype=pl.Decimal(38, 2)),
    pl.Series([Decimal("1.2567"), None], dtype=pl.Decimal(10, 4)),
    pl.Series([date(1, 1, 1), date(2024, 2, 29)]),
    pl.Series([datetime(1, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 5)]),
    pl.Series([5, None]).cast(pl.Datetime("ns")),
    pl.Series([5, 5000]).cast(pl.Datetime("us", "Europe/Berlin")),
    pl.Series([5, 5000]).cast(pl.Datetime("us", "UTC")),
    pl.Series([1, 10**15]).cast(pl.Duration("ns")),
    pl.Series([1, 10**15]).cast(pl.Duration("ms")),
    pl.Series([[1, 2], [], None, [2**53 + 1]]),
    pl.Series([[0.5], [None]]),
    pl.Series([{"x": 1}, {"x": None}, None]),
    pl.Series([{"x": 0.5, "y": "t"}]),
    pl.Series([[{"x": 1}], []]),
    pl.Series([None, None]),
]


@pytest.mark.parametrize("seed", range(5))
def test_columns_of_frames_keep_every_value_or_give_it_up_as_none(seed: int) -> None:
    chance = random.Random(seed)
    for series in chance.sample(SERIES, len(SERIES)):
        for other in SERIES:
            converted, misfits = SeriesColumn(series).fitted(other.dtype)
            assert converted.dtype == other.dtype
            for row, (sent, found) in enumerate(
                zip(series.to_list(), converted.to_list(), strict=True)
            ):
                if row in misfits:
                    assert sent is not None
                else:
                    assert _equal(sent, found), (series.dtype, other.dtype, sent, found)


def _equal(sent: Any, found: Any) -> bool:
    if isinstance(sent, bool) or isinstance(found, bool):
        return type(sent) is type(found) and sent == found
    if isinstance(sent, list) and isinstance(found, list):
        return len(sent) == len(found) and all(map(_equal, sent, found))
    if isinstance(sent, dict) and isinstance(found, dict):
        return all(_equal(sent.get(name), value) for name, value in found.items())
    if isinstance(sent, float) and math.isnan(sent):
        return isinstance(found, float) and math.isnan(found)
    if isinstance(found, datetime) and isinstance(sent, date) and not isinstance(sent, datetime):
        return found == datetime.combine(sent, datetime.min.time())
    return bool(sent == found)


KINDS = [series.dtype for series in SERIES]
kinds = st.recursive(
    st.sampled_from(KINDS),
    lambda inner: st.one_of(
        inner.map(pl.List),
        st.dictionaries(st.sampled_from("xyz"), inner, min_size=1).map(pl.Struct),
    ),
    max_leaves=4,
)


@settings(max_examples=300)
@given(kinds, kinds)
def test_the_wider_type_holds_both_and_does_not_depend_on_which_came_first(
    one: pl.DataType, other: pl.DataType
) -> None:
    both = wider(one, other)
    turned = wider(other, one)
    assert (both is None) == (turned is None)
    if both is not None and turned is not None:
        assert holds(both, one) and holds(both, other)
        assert holds(both, turned) and holds(turned, both)
        assert is_open(both) <= (is_open(one) or is_open(other))
    assert wider(one, one) == one and wider(one, pl.Null()) == one


def test_operators_on_columns_get_every_value_as_it_is() -> None:
    frame = columns_of([{"n": 2**63, "x": None}, {"n": 1}], "map")
    assert frame.schema == {"n": pl.UInt64, "x": pl.Null}
    with pytest.raises(
        UserError, match=r"'map' .* column 'n' .* '1' is not an exact Int64.*Record: {'n': '1'}"
    ):
        columns_of([{"n": 1}, {"n": "1"}], "map")
    things = [object(), None]
    assert columns_of([{"a": thing} for thing in things], "map")["a"].to_list() == things


def test_nanoseconds_of_pandas_are_refused_and_its_other_times_kept() -> None:
    whole = column_of("at", [pd.Timestamp("2024-01-01 00:00:00.000001")])
    values, misfits = whole.fitted(whole.kind)
    assert (values.to_list(), misfits) == ([datetime(2024, 1, 1, 0, 0, 0, 1)], {})
    for value in (pd.Timestamp("2024-01-01 00:00:00.000000001"), pd.Timedelta("1ns")):
        column = column_of("at", [value])
        for kind in (pl.Datetime("us"), pl.Datetime("ns"), pl.Duration("us")):
            _, misfits = column.fitted(kind)
            assert "has nanoseconds" in misfits[0]
