"""Frames: batches become bytes once, and the same batch again."""

import datetime as dt
import decimal
import threading
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from everstream.errors import InternalError, UserError
from everstream.pipeline.batch import Batch
from everstream.runtime import payload
from everstream.runtime.payload import BatchPayload, decode_batch, encode_batch

COLUMNS: dict[str, pl.Series] = {
    "int": pl.Series([1, None, -(2**62)]),
    "small": pl.Series([1, None, 3], dtype=pl.UInt8),
    "float": pl.Series([1.5, None, float("inf")]),
    "bool": pl.Series([True, None, False]),
    "text": pl.Series(["a", None, "long " * 40]),
    "bytes": pl.Series([b"a", None, b""]),
    "date": pl.Series([dt.date(2024, 2, 29), None, dt.date(1, 1, 1)]),
    "time": pl.Series([dt.time(1, 2, 3), None, dt.time(0)]),
    "datetime": pl.Series([dt.datetime(2024, 1, 1, 1, 2, 3, 4), None, dt.datetime(1970, 1, 1)]),
    "zoned": pl.Series([dt.datetime(2024, 1, 1), None, None]).dt.replace_time_zone("Europe/Paris"),
    "duration": pl.Series([dt.timedelta(1), None, dt.timedelta(microseconds=-5)]),
    "decimal": pl.Series([decimal.Decimal("1.25"), None, decimal.Decimal("-3.50")]),
    "list": pl.Series([[1, 2], None, []], dtype=pl.List(pl.Int64)),
    "nested": pl.Series([[["a"], []], None, [None]], dtype=pl.List(pl.List(pl.String))),
    "array": pl.Series([[1, 2], None, [3, 4]], dtype=pl.Array(pl.Int16, 2)),
    "struct": pl.Series([{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
    "category": pl.Series(["a", None, "b"], dtype=pl.Categorical),
    "null": pl.Series([None, None, None]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_every_type_comes_back_as_it_was(name: str) -> None:
    frame = pl.DataFrame({name: COLUMNS[name]})
    for batch in (frame, frame.head(0), frame.slice(1, 1), frame.slice(1)):
        back = decode_batch(encode_batch(batch))
        assert isinstance(back, pl.DataFrame)
        assert_frame_equal(back, batch)


def test_an_enum_column_comes_back_with_its_categories() -> None:
    frame = pl.DataFrame({"e": pl.Series(["x", "y"], dtype=pl.Enum(["x", "y", "z"]))})
    back = decode_batch(encode_batch(frame))
    assert isinstance(back, pl.DataFrame) and back.schema == frame.schema


@pytest.mark.parametrize(
    "batch",
    [
        pl.DataFrame(COLUMNS),
        pl.DataFrame(),
        pl.concat([pl.DataFrame(COLUMNS)] * 3, rechunk=False),
        pl.DataFrame({"n": range(100_000), "text": ["some text"] * 100_000}),
        pl.DataFrame({"n": range(100_000), "text": ["x" * 50] * 100_000}).slice(50_000, 10),
        pl.DataFrame({f"column {number}": [number] for number in range(300)}),
    ],
    ids=["all types", "no columns", "chunks", "many rows", "a small slice", "many columns"],
)
def test_a_data_frame_comes_back_as_it_was(batch: pl.DataFrame) -> None:
    back = decode_batch(encode_batch(batch))
    assert isinstance(back, pl.DataFrame)
    assert_frame_equal(back, batch)


def test_a_slice_is_sent_without_the_rows_around_it() -> None:
    frame = pl.DataFrame({"n": range(100_000)})
    assert len(memoryview(encode_batch(frame.slice(5, 10)))) < 10_000


@pytest.mark.parametrize(
    "batch",
    [[], [1, "a", None, b"x", (1, 2), {"k": [1.5]}], [dt.datetime(2024, 1, 1)], [{1, 2}]],
)
def test_a_list_comes_back_as_it_was(batch: Batch) -> None:
    assert decode_batch(encode_batch(batch)) == batch
    assert decode_batch(bytes(encode_batch(batch))) == batch


def test_records_of_a_class_from_a_users_script_travel_by_value() -> None:
    # On a worker the script is not the main module: the class is there, its name is not.
    order = type("Order", (), {"__module__": "__main__"})()
    order.amount = 5
    (back,) = decode_batch(encode_batch([order]))
    assert back.amount == 5


def test_records_that_do_not_pickle_are_refused_in_words() -> None:
    with pytest.raises(UserError, match=r"must pickle.*Turn them into plain values"):
        encode_batch([threading.Lock()])


def test_unknown_bytes_are_refused() -> None:
    with pytest.raises(InternalError, match="no known encoding"):
        decode_batch(b"\xff" * 16)


def test_a_payload_is_encoded_once_and_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counting(name: str, function: Any) -> Any:
        def call(argument: Any) -> Any:
            calls.append(name)
            return function(argument)

        return call

    monkeypatch.setattr(payload, "encode_batch", counting("encode", encode_batch))
    monkeypatch.setattr(payload, "decode_batch", counting("decode", decode_batch))
    sent = BatchPayload([1, 2])
    assert sent.encoded is sent.encoded and sent.batch is sent.batch
    assert calls == ["encode"]
    received = BatchPayload(encoded=sent.encoded)
    assert received.batch is received.batch and received.encoded is sent.encoded
    assert calls == ["encode", "decode"]


IMAGES = [(n, np.arange(n, n + 24_000, dtype=np.uint16).reshape(40, 200, 3)) for n in range(5)]


def test_images_travel_as_they_lie_in_memory_and_not_as_part_of_a_pickle() -> None:
    encoded = bytes(encode_batch(IMAGES))
    for _, image in IMAGES:
        place = encoded.index(image.tobytes())
        assert place % 64 == 0
    assert bytes(encode_batch(IMAGES)) == encoded, "nothing else is in it"
    assert len(encoded) < 1.05 * sum(image.nbytes for _, image in IMAGES)
    again = decode_batch(encoded)
    assert [number for number, _ in again] == [number for number, _ in IMAGES]
    for (_, sent), (_, received) in zip(IMAGES, again, strict=True):
        assert np.array_equal(sent, received)
        assert received.dtype == sent.dtype


def test_a_received_image_can_be_drawn_on_without_changing_what_was_sent() -> None:
    encoded = encode_batch(IMAGES)
    before = bytes(encoded)
    decode_batch(encoded)[0][1][:] = 7
    assert bytes(encoded) == before


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(9_000.0).reshape(90, 100)),
        np.arange(20_000, dtype=np.int64)[::2],
        np.arange(6_000, dtype=">i4"),
        np.array([{"an": "object"}] * 2_000),
    ],
    ids=["by columns", "every other", "big-endian", "objects"],
)
def test_an_array_of_any_shape_comes_back_as_it_was(array: np.ndarray) -> None:
    [(received, text)] = decode_batch(encode_batch([(array, "and more")]))
    assert received.dtype == array.dtype
    assert np.array_equal(received, array)
    assert text == "and more"


@pytest.mark.parametrize("kept", [20, 100, -1], ids=["head", "lengths", "all but a byte"])
def test_a_frame_of_images_that_was_cut_is_refused(kept: int) -> None:
    with pytest.raises(InternalError, match="pieces"):
        decode_batch(bytes(encode_batch(IMAGES))[:kept])


KINDS = pl.DataFrame(
    {
        "whole": [1, None, 3],
        "small": pl.Series([1, 2, None], dtype=pl.UInt8),
        "real": [0.5, float("nan"), None],
        "text": ["a", None, "ß" * 40],
        "binary": [b"", None, b"\x00\xff"],
        "flag": [True, None, False],
        "day": pl.Series([0, None, 3], dtype=pl.Date),
        "moment": pl.Series([0, None, 3], dtype=pl.Datetime("us", "Europe/Berlin")),
        "lasted": pl.Series([0, None, 3], dtype=pl.Duration("ms")),
        "time": pl.Series([0, None, 3], dtype=pl.Time),
        "list": [[1, 2], None, []],
        "struct": [{"x": 1, "y": "a"}, None, {"x": 2, "y": None}],
        "kind": pl.Series(["a", None, "b"], dtype=pl.Categorical),
        "chosen": pl.Series(["b", None, "a"], dtype=pl.Enum(["a", "b"])),
        "nothing": pl.Series([None, None, None]),
        "array": pl.Series([[1, 2], None, [3, 4]], dtype=pl.Array(pl.Int16, 2)),
        "price": pl.Series(["1.25", None, "2.50"]).cast(pl.Decimal(10, 2)),
    }
)


@pytest.mark.parametrize("name", KINDS.columns)
def test_small_frames_and_large_ones_bring_the_same_columns(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = KINDS.select(name, number=pl.int_range(3))
    small = encode_batch(frame)
    monkeypatch.setattr(payload, "_SMALL_FRAME", 0)
    large = encode_batch(frame)
    assert isinstance(small, bytes) and not isinstance(large, bytes)
    for encoded in (small, bytes(large), memoryview(small), large):
        received = decode_batch(encoded)
        assert received.equals(frame, null_equal=True) and received.schema == frame.schema


def test_an_empty_frame_keeps_its_columns() -> None:
    assert decode_batch(encode_batch(KINDS.clear())).schema == KINDS.schema
