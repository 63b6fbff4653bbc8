"""JSON lines hold what JSON can hold, exactly, and refuse the rest."""

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from math import inf
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstream.connectors import JsonLines
from everstream.core.permits import permit
from everstream.errors import UserError
from everstream.testing.sinks import default_batches
from tests.connectors.writing import sink_shard, write_checkpoint

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_what_json_lines_wrote_it_can_read(tmp_path: Path) -> None:
    write_checkpoint(JsonLines(tmp_path), pl.DataFrame(default_batches()[1])).commit(permit(1))
    JsonLines(tmp_path).open(sink_shard(2)).write([{"open": 1}])
    source = JsonLines(tmp_path)
    source.check()
    assert source.open(0, 1).read() == default_batches()[1]


class Colour(Enum):
    RED = "red"


class Name(str):
    """A text with a class of its own."""


@dataclass
class Amount:
    cents: int | None


@pytest.mark.parametrize("neighbour", ["nothing unusual", None, "\ud800"])
def test_what_has_no_json_form_of_its_own_is_written_in_the_usual_one(
    tmp_path: Path, neighbour: str | None
) -> None:
    written = {
        date(2020, 1, 1): "2020-01-01",
        datetime(2020, 1, 1, 12, tzinfo=UTC): "2020-01-01T12:00:00Z",
        UUID(int=1): "00000000-0000-0000-0000-000000000001",
        Decimal("1.50"): "1.50",
        b"bytes": "Ynl0ZXM=",
        Colour.RED: "red",
        Name("a name"): "a name",
        frozenset({1}): [1],
        np.float64(0.5): 0.5,
        2**70: 2**70,
    }
    records = [*({"v": value, "n": neighbour} for value in written), [Amount(3), Amount(None)]]
    write_checkpoint(JsonLines(tmp_path), records).commit(permit(1))
    *values, amounts = JsonLines(tmp_path).open(0, 1).read()
    assert values == [{"v": value, "n": neighbour} for value in written.values()]
    assert amounts == [{"cents": 3}, {"cents": None}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda values: st.lists(values) | st.dictionaries(st.text() | st.integers() | st.none(), values),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=60)
@given(records=st.lists(JSON, min_size=1))
def test_any_json_comes_back_as_pythons_own_json_would_give_it(
    records: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("json")
    write_checkpoint(JsonLines(folder), records).commit(permit(1))
    (part,) = folder.glob("*.jsonl")
    expected = [json.loads(json.dumps(record)) for record in records]
    assert [json.loads(line) for line in part.read_bytes().split(b"\n") if line] == expected
    assert JsonLines(folder).open(0, 1).read() == expected


def test_half_a_surrogate_pair_survives(tmp_path: Path) -> None:
    write_checkpoint(JsonLines(tmp_path), ["\ud800", "é"]).commit(permit(1))
    assert JsonLines(tmp_path).open(0, 1).read() == ["\ud800", "é"]


@pytest.mark.parametrize(
    "record", [range(3), np.int64(5), float("nan"), [None, -inf], {(1, 2): 3}, 1j]
)
def test_a_record_that_json_cannot_hold_is_shown_with_the_fix(tmp_path: Path, record: Any) -> None:
    writer = JsonLines(tmp_path).open(sink_shard())
    with pytest.raises(UserError, match="cannot be written as JSON") as caught:
        writer.write(["fine", {"value": record}])
    assert repr(record) in str(caught.value)
    assert "operator 'counts'" in str(caught.value)
    assert writer.prepare(1) is None, "nothing of the batch was taken"


def test_a_record_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    record: list[Any] = []
    for _ in range(100_000):
        record = [record]
    with pytest.raises(UserError, match="a list that is nested too deeply"):
        JsonLines(tmp_path).open(sink_shard()).write(["fine", record])


@pytest.mark.parametrize("column", [[b"ab"], [[b"ab"]], [{"x": b"ab"}]])
def test_a_column_that_json_cannot_hold_is_named(tmp_path: Path, column: list[Any]) -> None:
    writer = JsonLines(tmp_path).open(sink_shard())
    with pytest.raises(UserError, match="column 'raw'"):
        writer.write(pl.DataFrame({"raw": column}))
