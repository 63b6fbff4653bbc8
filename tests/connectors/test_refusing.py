"""What a sink cannot write exactly is refused record by record, so that `on_error` can decide."""

import json
import math
from collections.abc import Callable
from datetime import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from everstream.connectors import Binary, JsonLines, Sqlite
from everstream.connectors.files.json_lines import JsonEncoder
from everstream.connectors.kafka.producer import KEY, VALUE, Encoding
from everstream.connectors.options import KeyTemplate
from everstream.connectors.redis.sink import _Rows
from everstream.connectors.refusing import encoded_or_refused
from everstream.core.permits import permit
from everstream.errors import ConnectorError, RefusedRecords, UserError
from everstream.pipeline.sink import Sink, SinkShard


def sink_shard(folder: Path) -> SinkShard:
    return SinkShard("p", "out", 0, 1, 1, str(folder / "store"))


BAD = object()


@pytest.mark.parametrize(
    ("make", "batch", "bad"),
    [
        (lambda f: JsonLines(f), [{"a": 1}, {"a": math.nan}, {"a": 3}, {"a": BAD}], [1, 3]),
        (lambda f: JsonLines(f), pl.DataFrame({"a": [1.0, math.nan, None, math.inf]}), [1, 3]),
        (lambda f: JsonLines(f), pl.DataFrame({"a": [[1.0], [None], [math.nan]]}), [2]),
        (lambda f: JsonLines(f), pl.DataFrame({"a": [{"x": math.inf}, {"x": None}]}), [0]),
        (lambda f: Binary(f), [b"a", "text", b"c"], [1]),
        (lambda f: Binary(f, encode=lambda r: bytes([r])), [1, 300, 2], [1]),
    ],
)
def test_only_the_records_at_fault_are_refused(
    tmp_path: Path, make: Callable[[Path], Sink], batch: Any, bad: list[int]
) -> None:
    sink = make(tmp_path / "out")
    sink.start_fresh("p", "out", str(tmp_path / "store"), replace=False)
    writer = sink.open(sink_shard(tmp_path))
    writer.recover([], permit(0))
    with pytest.raises(RefusedRecords) as refused:
        writer.write(batch)
    assert list(refused.value.rows) == bad
    assert all("operator 'out'" in reason for reason in refused.value.rows.values())
    writer.close()


def test_an_error_of_the_environment_is_no_records() -> None:
    def away(batch: Any) -> bytes:
        raise ConnectorError("the broker is away")

    with pytest.raises(ConnectorError, match="away"):
        encoded_or_refused([1, 2], away, "out")


def test_what_no_single_record_is_to_blame_for_stays_an_error_of_the_batch() -> None:
    def in_pairs(batch: Any) -> bytes:
        if len(batch) == 2:
            raise UserError("these two do not go together")
        return b""

    with pytest.raises(UserError, match="do not go together") as raised:
        encoded_or_refused([1, 2], in_pairs, "out")
    assert not isinstance(raised.value, RefusedRecords)


def test_keys_of_several_kinds_do_not_depend_on_how_batches_are_cut() -> None:
    encoding = Encoding(key_by="k")
    records = [{"k": "a"}, {"k": 1}, {"k": b"b"}, {"k": True}, {"k": None}]
    together = encoding.messages(records, "out")[KEY].to_list()
    alone = [encoding.messages([record], "out")[KEY][0] for record in records]
    assert together == alone == [b"a", b"1", b"b", b"true", None]


def test_rows_in_arrow_messages_keep_their_values() -> None:
    encoding = Encoding(value="arrow")
    with pytest.raises(RefusedRecords) as refused:
        encoding.messages([{"a": 2**53 + 1}, {"a": 0.5}, {"a": True}], "out")
    assert list(refused.value.rows)
    values = encoding.messages([{"a": 1}, {"a": 0.5}], "out")[VALUE].to_list()
    rows = [row for value in values for row in pl.read_ipc_stream(value)["a"]]
    assert rows == [1.0, 0.5]


def packed(form: Any, column: pl.Series, value: str | None = None) -> list[Any]:
    rows = _Rows(KeyTemplate("id"), form, value, 0)
    frame = pl.DataFrame([pl.Series("id", range(len(column))), column.alias("a")])
    return rows._columns(frame, "out")


def test_redis_has_no_value_that_was_changed_on_the_way() -> None:
    precise = pl.Series([time(1, 2, 3, 4), time(1, 2, 3), None])
    assert packed("hash", precise)[1][0] == "01:02:03.000004"
    assert packed("hash", precise)[1][1:] == ["01:02:03", None]
    for form, column in [
        ("json", pl.Series([1.0, math.nan])),
        ("json", pl.Series([[math.inf]])),
        ("hash", pl.Series([{"x": math.nan}])),
    ]:
        with pytest.raises(UserError, match="NaN or an infinity"):
            packed(form, column)
    assert packed("hash", pl.Series([{"x": 1.5}, {"x": None}, None]))[1] == [
        '{"x":1.5}',
        '{"x":null}',
        None,
    ]


def test_rows_without_a_key_to_replace_are_refused(tmp_path: Path) -> None:
    sink = Sqlite(tmp_path / "out.db", "t", upsert_on=["k"])
    sink.start_fresh("p", "out", str(tmp_path / "store"), replace=False)
    writer = sink.open(sink_shard(tmp_path))
    writer.recover([], permit(0))
    with pytest.raises(RefusedRecords, match="no value for k") as refused:
        writer.write([{"k": 1, "v": 1}, {"k": None, "v": 2}])
    assert list(refused.value.rows) == [1]
    writer.write([{"k": 1, "v": 1}])
    writer.close()


def test_null_is_still_null_in_json_of_columns() -> None:
    frame = pl.DataFrame({"a": [None, 1.5], "b": ["null", None]})
    lines = JsonEncoder("out").encode(frame).splitlines()
    assert [json.loads(line) for line in lines] == frame.to_dicts()
