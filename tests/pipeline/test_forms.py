"""`map_batches` gives and takes every form, with the values and types that there were, or refuses."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import everstream as es
from everstream.errors import EverstreamError, UserError
from everstream.pipeline.operators.forms import as_batch_of, form_for, in_form

FRAME = pl.DataFrame(
    {
        "n": pl.Series([1, None, 2**62 + 1], dtype=pl.Int64),
        "small": pl.Series([1, 2, 3], dtype=pl.UInt8),
        "x": [0.5, None, float("nan")],
        "text": ["a", None, "ü"],
        "yes": [True, None, False],
        "at": [datetime(2026, 1, 1, tzinfo=UTC), None, datetime(2026, 6, 1, tzinfo=UTC)],
        "price": [Decimal("1.10"), None, Decimal("2.25")],
        "parts": [[1, 2], None, []],
        "inner": [{"a": 1}, {"a": None}, {"a": 3}],
    }
)
FULL = FRAME.select("small", "text").with_columns(n=pl.Series([1, 2, 2**62 + 1]), x=pl.lit(0.5))


@pytest.mark.parametrize("form", ["polars", "pandas", "arrow"])
def test_a_batch_comes_back_as_it_was(form: Any) -> None:
    back = as_batch_of(in_form(FRAME, form, False, "op"), "op")
    assert isinstance(back, pl.DataFrame)
    assert back.schema == FRAME.schema and back.equals(FRAME, null_equal=True)


def test_columns_without_nulls_come_back_from_numpy_as_they_were() -> None:
    frame = FULL.with_columns(at=pl.Series([datetime(2026, 1, n) for n in (1, 2, 3)]))
    columns = in_form(frame, "numpy", False, "op")
    assert columns["n"].dtype == np.int64 and columns["small"].dtype == np.uint8
    back = as_batch_of(columns, "op")
    assert isinstance(back, pl.DataFrame) and back.schema == frame.schema and back.equals(frame)


@pytest.mark.parametrize("column", ["n", "x", "yes", "price"])
def test_nulls_are_not_given_to_numpy(column: str) -> None:
    with pytest.raises(UserError, match=f"column '{column}' has nulls.*as_='arrow'"):
        in_form(FRAME.select(column), "numpy", False, "op")
    zoned = FRAME.select("at").drop_nulls()
    with pytest.raises(UserError, match="has a time zone"):
        in_form(zoned, "numpy", False, "op")


def test_plain_values_are_an_array_if_one_type_holds_them() -> None:
    array = in_form([1, 2, 3], "numpy", False, "op")
    assert isinstance(array, np.ndarray) and as_batch_of(array * 2, "op") == [2, 4, 6]
    for mixed in ([1, 2.5], [1, True], [2**70], [2**63], [(1, 2)], [None, 1]):
        with pytest.raises(UserError, match="no type of NumPy holds"):
            in_form(mixed, "numpy", False, "op")


def test_the_form_is_chosen_by_annotation() -> None:
    def pandas_one(frame: pd.DataFrame) -> pd.DataFrame:
        return frame

    def table(table: pa.Table) -> pa.Table:
        return table

    def record_batch(batch: "pa.RecordBatch") -> "pa.RecordBatch":
        return batch

    def columns(columns: dict[str, np.ndarray]) -> Any:
        return columns

    def array(array: np.ndarray) -> Any:
        return array

    def hidden(frame: "pd.DataFrame") -> "Unknown":  # type: ignore[name-defined]  # noqa: F821
        return frame

    def free(batch: Any) -> Any:
        return batch

    class Method:
        def __call__(self, frame: pl.DataFrame) -> pl.DataFrame:
            return frame

    found = [
        form_for(one, None)
        for one in (pandas_one, table, record_batch, columns, array, hidden, free, len, Method())
    ]
    assert found == [
        *(("pandas", False), ("arrow", False), ("arrow", True), ("numpy", False)),
        *(("numpy", False), ("pandas", False), (None, False), (None, False), ("polars", False)),
    ]
    assert form_for(table, "numpy") == ("numpy", False), "as_ wins"
    with pytest.raises(UserError, match="as_='panda'"):
        form_for(free, "panda")


def test_what_has_no_counterpart_is_refused() -> None:
    counted = pd.DataFrame({"k": [1, 1], "n": [2, 3]}).groupby("k").sum()
    with pytest.raises(UserError, match=r"index 'k'.*reset_index"):
        as_batch_of(counted, "op")
    assert as_batch_of(counted.reset_index(), "op").rows() == [(1, 5)]  # type: ignore[union-attr]
    with pytest.raises(UserError, match="2 dimensions"):
        as_batch_of(np.zeros((2, 2)), "op")
    with pytest.raises(UserError, match="not Series"):
        as_batch_of(pd.Series([1]), "op")


def test_forms_run_in_a_pipeline_one_after_the_other() -> None:
    def double(frame: pd.DataFrame) -> pa.Table:
        return pa.table({"n": (frame["n"] * 2).to_list()})

    def square(columns: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"n": columns["n"] ** 2, "name": columns["n"].astype(str)}

    def take(batch: pa.RecordBatch) -> pd.DataFrame:
        return batch.to_pandas()

    rows = es.Pipeline("forms").source(es.Range(5, column="n", batch=2))
    result = rows.map_batches(double).map_batches(square).map_batches(take).collect().run()
    assert result.to_polars().rows() == [((2 * n) ** 2, str(2 * n)) for n in range(5)]


def test_a_result_of_another_kind_fails_the_run_with_the_forms() -> None:
    rows = es.Pipeline("bad").source(es.Range(2, column="n"))
    with pytest.raises(EverstreamError, match="must return a DataFrame of Polars or pandas"):
        rows.map_batches(lambda batch: 5).collect().run()
