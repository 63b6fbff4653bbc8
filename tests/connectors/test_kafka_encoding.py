"""What records look like as messages of Kafka: keys, values, headers, timestamps."""

import io
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest

from everstream.connectors.kafka.producer import Encoding
from everstream.errors import UserError
from everstream.pipeline.batch import Batch

ROWS: list[Any] = [{"user": "é", "n": 1}, {"user": "b", "n": None}]
FRAME = pl.DataFrame(ROWS)


def messages(batch: Batch, **options: Any) -> dict[str, list[Any]]:
    encoding = Encoding(**options)
    encoding.check()
    return encoding.messages(batch, "out").to_dict(as_series=False)


@pytest.mark.parametrize("batch", [ROWS, FRAME], ids=["records", "columns"])
def test_rows_are_json_objects_and_a_column_is_the_key(batch: Batch) -> None:
    assert messages(batch, key_by="user") == {
        "value": ['{"user":"é","n":1}'.encode(), b'{"user":"b","n":null}'],
        "key": ["é".encode(), b"b"],
    }
    assert messages(batch, key_by="n")["key"] == [b"1", None]
    assert messages(batch, key_by=lambda row: row["user"] * 2)["key"] == ["éé".encode(), b"bb"]


def test_any_record_is_json() -> None:
    assert messages([1, "a\n", ["x"], None]) == {"value": [b"1", b'"a\\n"', b'["x"]', b"null"]}


def test_text_and_bytes_are_what_they_are_and_none_is_a_tombstone() -> None:
    assert messages(["é", None], value="text") == {"value": ["é".encode(), None]}
    assert messages([b"\x00\xff", "x"], value="bytes") == {"value": [b"\x00\xff", b"x"]}
    assert messages([None, None], value="bytes") == {"value": [None, None]}
    copied = pl.DataFrame({"key": [b"k"], "value": [b"v"], "offset": [7]})
    assert messages(copied, value="bytes", key_by="key") == {"value": [b"v"], "key": [b"k"]}
    assert messages(FRAME, value="text", key_by="n")["value"] == ["é".encode(), b"b"]
    with pytest.raises(UserError, match=r"takes one column.*user, n"):
        messages(FRAME, value="text")


def test_a_function_makes_what_it_wants_of_a_record() -> None:
    assert messages(FRAME, value=lambda row: row["user"] + "!") == {
        "value": ["é!".encode(), b"b!"],
    }
    with pytest.raises(UserError, match="encode must be text, bytes or whole numbers, not Float64"):
        messages(FRAME, value=lambda row: 1.5)


@pytest.mark.parametrize("batch", [ROWS, FRAME], ids=["records", "columns"])
def test_rows_as_arrow_share_messages(batch: Batch) -> None:
    (value,) = messages(batch, value="arrow")["value"]
    assert pl.read_ipc_stream(io.BytesIO(value)).equals(FRAME)
    many = pl.DataFrame({"n": range(300_000)})
    values = messages(many, value="arrow")["value"]
    assert len(values) > 2
    assert pl.concat(pl.read_ipc_stream(io.BytesIO(each)) for each in values).equals(many)
    with pytest.raises(UserError, match="can have no key"):
        messages(batch, value="arrow", key_by="user")


def test_headers_and_timestamps_come_from_columns() -> None:
    frame = FRAME.with_columns(at=pl.Series([datetime(2020, 1, 2, tzinfo=UTC), None]))
    assert messages(frame, value="text", headers=["user"], timestamp="at") == {
        "value": [b"1", None],
        "timestamp": [1577923200000, None],
        "header:user": ["é".encode(), b"b"],
    }


def test_a_message_that_is_too_large_is_refused_before_it_waits_for_its_commit() -> None:
    assert messages(["x" * 900_000], value="text")
    with pytest.raises(UserError, match=r"'out': a message of 1000000 bytes.*message\.max\.bytes"):
        messages(["a", "x" * 1_000_000], value="text")
    assert messages(["x" * 1_000_000], value="text", most_bytes=2_000_000)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key_by": "nobody"}, "'nobody', which key_by names"),
        ({"headers": ["nobody"]}, "'nobody', which headers names"),
        ({"headers": "user"}, r"must list columns: \['user'\]"),
        ({"timestamp": "user"}, "must be a datetime or milliseconds"),
        ({"value": "avro"}, "cannot be written: use 'json'"),
    ],
)
@pytest.mark.parametrize("batch", [ROWS, FRAME], ids=["records", "columns"])
def test_wrong_options_are_named(batch: Batch, options: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        messages(batch, **options)
