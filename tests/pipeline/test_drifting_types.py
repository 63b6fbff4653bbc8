"""Columns and keys whose type differs between batches: values stay what they are, or are refused."""

from decimal import Decimal
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream.errors import UserError
from everstream.pipeline.aggregation.aggregates import Aggregates
from everstream.pipeline.aggregation.chunks import Chunks
from everstream.pipeline.aggregation.local_parts import key_frame, records_frame
from everstream.pipeline.aggregation.running import PAGE, Slots
from everstream.pipeline.keys import Keying
from everstream.pipeline.operator import Context
from everstream.state.backends.memory import MemoryBackend
from everstream.state.canonical_key import row_keys

SEVERAL = "of several types|is .* in some rows and .* in others|not an exact|other keys are equal"


def context() -> Context:
    return Context("op", 0, 1, MemoryBackend())


@pytest.mark.parametrize(
    "values",
    [[1, "1"], ["a", 1], [2**53 + 1, 0.5], [Decimal("1.25"), 0.5], [True, 4000], [4000, True]],
)
def test_records_that_are_plain_values_of_several_types_are_refused(values: list[Any]) -> None:
    with pytest.raises(UserError, match=SEVERAL):
        records_frame(values, context())
    assert records_frame([1, 2.5, None], context())["value"].to_list() == [1.0, 2.5, None]


@pytest.mark.parametrize("keys", [[(1, "x"), ("1", "x")], [(2**53 + 1, 0), (0.5, 0)], [1, "1"]])
def test_keys_that_are_not_equal_do_not_become_equal(keys: list[Any]) -> None:
    with pytest.raises(UserError, match=SEVERAL):
        key_frame(Keying(lambda key: key), keys)


def test_keys_of_equal_numbers_are_told_apart_as_python_does() -> None:
    found = key_frame(Keying(lambda key: key), [(1, "x"), (2.5, "x"), (1.0, "x")])
    assert row_keys(found) == [(1, "x"), (2.5, "x"), (1.0, "x")]
    with pytest.raises(UserError, match="several lengths"):
        key_frame(Keying(lambda key: key), [(1, 2), (1, 2, 3)])


@pytest.mark.parametrize("first", [1, PAGE])
@pytest.mark.parametrize(("one", "other"), [(1, "1"), (2**53 + 1, 0.5), (Decimal("1.25"), 0.5)])
def test_running_aggregates_refuse_keys_that_would_change_with_those_of_another_type(
    one: Any, other: Any, first: int
) -> None:
    store = MemoryBackend[Any, Any]()
    slots = Slots(store)
    slots.of(pl.DataFrame({"k": [one + type(one)(n) for n in range(first)]}))
    before = dict(store.pairs()).keys(), len(slots)
    with pytest.raises(UserError, match=SEVERAL):
        slots.of(pl.DataFrame({"k": [other]}))
    assert (dict(store.pairs()).keys(), len(slots)) == before, "nothing was kept"
    again = Slots(store)
    assert again.of(pl.DataFrame({"k": [one]})).tolist() == [0] and len(again) == first


def test_running_aggregates_keep_keys_of_equal_value_in_one_slot() -> None:
    store = MemoryBackend[Any, Any]()
    slots = Slots(store)
    assert slots.of(pl.DataFrame({"k": [1, 2]})).tolist() == [0, 1]
    assert slots.of(pl.DataFrame({"k": [2.5, 2.0]})).tolist() == [2, 1]
    assert Slots(store).of(pl.DataFrame({"k": [1.0, 2.5]})).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("one", "other"),
    [([1], ["1"]), ([Decimal("1.25")], [0.5]), ([2**53 + 1], [0.5]), ([0.5], [2**53 + 1])],
)
@pytest.mark.parametrize("restarted", [True, False])
def test_rows_that_wait_for_their_window_or_partner_are_not_changed(
    one: list[Any], other: list[Any], restarted: bool
) -> None:
    store = MemoryBackend[Any, Any]()
    chunks = Chunks(store, "left", owner="join")
    chunks.add(1, pl.DataFrame({"a": one}))
    if restarted:
        chunks = Chunks(store, "left", owner="join")
    with pytest.raises(UserError, match=SEVERAL) as refused:
        chunks.add(1, pl.DataFrame({"a": other}))
    assert "'join'" in str(refused.value)
    assert chunks.read([1])["a"].to_list() == one, "nothing of it was kept"


def test_rows_of_types_that_go_together_are_read_together() -> None:
    chunks = Chunks(MemoryBackend[Any, Any](), "left")
    for values in ([1], [2.5], [None], [7]):
        chunks.add(1, pl.DataFrame({"a": values}))
    assert chunks.read([1])["a"].to_list() == [1.0, 2.5, None, 7.0]


def test_results_of_custom_aggregates_keep_their_types() -> None:
    def result_of(values: list[Any]) -> list[Any]:
        lookup = es.custom(int, lambda n, row: row["v"], max, lambda n: values[n])
        aggregates = Aggregates({"x": lookup})
        frame = pl.DataFrame({"k": range(len(values)), "v": range(len(values))})
        parts = aggregates.of_records(frame, [pl.col("k")]).sort("k")
        return aggregates.results(parts, ["k"])["x"].to_list()

    with pytest.raises(UserError, match="several types"):
        result_of([1, "a"])
    assert result_of([1, 2.5]) == [1.0, 2.5]
    assert result_of([{1}, {2}]) == [{1}, {2}]
