"""What a collect sink gathered as one DataFrame: every value as it was, whatever the rows differ in."""

from typing import Any

import polars as pl
import pytest

from everstream.engine.result import Outcome, RunResult
from everstream.errors import UserError
from everstream.pipeline.batch import Batch


def gathered(*batches: Batch) -> pl.DataFrame:
    outputs = {"collect": list(batches)}
    return RunResult("p", Outcome.FINISHED, 1.0, 0.1, {}, (), (), outputs=outputs).to_polars()


def test_rows_may_differ_in_their_columns() -> None:
    frame = gathered([{"a": 1}, {"b": "x"}], pl.DataFrame({"c": [0.5], "a": [2]}), [{"b": None}])
    assert frame.to_dicts() == [
        {"a": 1, "b": None, "c": None},
        {"a": None, "b": "x", "c": None},
        {"a": 2, "b": None, "c": 0.5},
        {"a": None, "b": None, "c": None},
    ]
    assert gathered([(1, 2), (3,)]).to_dicts() == [{"_1": 1, "_2": 2}, {"_1": 3, "_2": None}]


def test_numbers_become_wider_where_nothing_is_lost() -> None:
    assert gathered([1, 2.5], [2**53]).to_dict(as_series=False) == {"value": [1, 2.5, 2**53]}
    assert gathered([2**63], [1]).to_dict(as_series=False) == {"value": [2**63, 1]}


@pytest.mark.parametrize(
    ("batches", "problem"),
    [
        (([{"a": 1}], [{"a": "x"}]), "column 'a' is Int64 in some rows and String in others"),
        (
            ([{"a": 1}, {"a": True}],),
            "column 'a' has values of several types: True is not an exact",
        ),
        (
            ([{"a": 2**53 + 1}], [{"a": 0.5}]),
            "column 'a': 9007199254740993 is not an exact Float64",
        ),
    ],
)
def test_what_does_not_fit_into_one_column_is_named(batches: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        gathered(*batches)
