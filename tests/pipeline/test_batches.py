"""Batches and the context an operator is given."""

from functools import partial
from typing import Any

import polars as pl
import pytest

from everstream.errors import UserError
from everstream.pipeline.batch import columns_of, joined, records_of, where
from everstream.pipeline.keys import Keying
from everstream.pipeline.operator import Context, Operator, bind_state
from everstream.pipeline.operators.builtin import FlatMap, Map, MapBatches
from everstream.state.backends.memory import MemoryBackend
from everstream.state.snapshot import ShardState

FRAME = pl.DataFrame({"n": [1, 2, 3]})


def context(keying: Keying | None = None) -> Context:
    return Context("mine", 0, 1, MemoryBackend(None), keying)


def test_records_of_a_frame_are_dicts_and_of_a_list_the_list_itself() -> None:
    records = [1, 2]
    assert records_of(FRAME) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert records_of(records) is records


def test_dicts_become_columns_whatever_the_first_ones_look_like() -> None:
    late = [{"n": None}] * 200 + [{"n": 1.5}]
    assert columns_of(late, "mine")["n"].to_list()[-1] == 1.5
    assert columns_of(FRAME, "mine") is FRAME
    assert columns_of([], "mine").height == 0


def test_objects_do_not_become_columns() -> None:
    with pytest.raises(UserError) as caught:
        columns_of([(1, 2)], "select-2")
    assert str(caught.value) == (
        "'select-2' works on columns, but got records of type tuple. "
        "Turn them into columns first, for example .map(lambda r: {'value': r})."
    )


def test_where_keeps_what_the_mask_says() -> None:
    mask = pl.Series([True, False, True])
    kept = where(FRAME, mask)
    assert isinstance(kept, pl.DataFrame) and kept["n"].to_list() == [1, 3]
    assert where(["a", "b", "c"], mask) == ["a", "c"]


def test_neighbours_of_one_kind_are_joined() -> None:
    other = pl.DataFrame({"m": [1]})
    result = joined([[1], [2], FRAME, FRAME, other, [3]])
    assert [len(batch) for batch in result] == [2, 6, 1, 1]
    assert joined([]) == []


def test_joining_leaves_the_batches_themselves_alone() -> None:
    first = [1]
    joined([first, [2]])
    assert first == [1]


def test_what_is_emitted_keeps_its_order_and_its_port() -> None:
    ctx = context()
    ctx.emit(1)
    ctx.emit(2)
    ctx.emit("late", output="side")
    ctx.emit(3)
    ctx.emit_batch(FRAME)
    ctx.emit_batch([])
    ctx.emit(4)
    first, side, third, frame, last = ctx.take_emitted()
    assert (first, side, third, last) == (
        ("out", [1, 2]),
        ("side", ["late"]),
        ("out", [3]),
        ("out", [4]),
    )
    assert frame[1] is FRAME
    assert ctx.take_emitted() == []


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("operator", [Map, FlatMap])
def test_the_context_knows_the_record_that_failed(operator: Any, failing: int) -> None:
    def function(record: Any) -> Any:
        if record == failing:
            raise ValueError
        return [record]

    ctx = context()
    with pytest.raises(ValueError):
        operator(function).process_batch([0, 1, 2], ctx)
    assert ctx.record == failing


class Picky(Operator):
    def process(self, record: Any, ctx: Context) -> None:
        if ctx.key == 1:
            raise KeyError(record["n"])


def test_the_context_knows_the_row_and_the_key() -> None:
    ctx = context(Keying(pl.col("n") - 1))
    with pytest.raises(KeyError):
        Picky().process_batch(FRAME, ctx)
    assert ctx.record == {"n": 2} and ctx.key == 1


def test_between_steps_there_is_no_record() -> None:
    ctx = context()
    assert ctx.record is None
    Map(abs).process_batch([1, 2], ctx)
    ctx.take_emitted()
    assert ctx.record is None


def test_map_batches_must_return_a_batch() -> None:
    with pytest.raises(UserError, match="a dict of arrays or a list, not tuple"):
        MapBatches(tuple).process_batch([1], context())  # type: ignore[arg-type]


def test_operators_without_declared_state_have_none() -> None:
    operator = Picky()
    bind_state(operator, partial(ShardState().keystore, "mine"))
    assert operator.__dict__["_keyed"] == {}
