"""What Spark's workers read and write, and what they are spared between two tasks."""

import gc
from collections.abc import Iterator
from io import BytesIO
from itertools import count
from typing import Any, cast

import pytest

from everstream.engine.microbatch import spark_task
from everstream.engine.microbatch.rows import Row, report_row
from everstream.engine.microbatch.spark_task import Arriving, Ending, Leaving, Starting

HEADER = report_row(0, "report").header
PAYLOADS = [None, b"", b"x", memoryview(b"12345678"), bytes(1 << 17)]


@pytest.fixture
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_rows_for_the_driver_arrive_as_they_left_without_and_with_a_payload() -> None:
    stream = BytesIO()
    Ending().dump_stream([Row(3, HEADER, payload) for payload in PAYLOADS], stream)
    stream.seek(0)
    found = list(cast("Any", Arriving()).load_stream(stream))
    assert [row.header for row in found] == [HEADER] * len(PAYLOADS)
    got = [None if row.payload is None else bytes(row.payload) for row in found]
    assert got == [None if payload is None else bytes(payload) for payload in PAYLOADS]


def test_rows_for_the_shuffle_come_with_the_partition_they_go_to() -> None:
    stream, plain = BytesIO(), BytesIO()
    row = Row(7, HEADER, b"payload")
    Leaving().dump_stream([row], stream)
    Ending().dump_stream([row], plain)
    key = (8).to_bytes(4, "big") + (7).to_bytes(8, "big")
    assert stream.getvalue() == key + plain.getvalue()


def test_payloads_begin_where_arrow_can_read_them_in_place() -> None:
    stream = BytesIO()
    Ending().dump_stream([Row(0, HEADER, b"payload")], stream)
    assert (stream.getvalue().index(b"payload") - 4) % 16 == 0, "4: the length is read before it"


def test_what_makes_spark_start_the_first_stage_is_no_row() -> None:
    assert cast("Any", Starting()).loads(b"\x80\x05K\x00.") is None


def test_what_is_in_use_is_left_out_when_spark_looks_for_garbage_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, unfrozen: None
) -> None:
    monkeypatch.setattr(spark_task, "_TASKS", count(1))
    monkeypatch.setattr(spark_task, "_LOOK_AT_ALL_EVERY", 3)
    frozen = []
    for _ in range(6):
        spark_task._spare_the_collector()
        frozen.append(gc.get_freeze_count() > 0)
    assert frozen == [True, True, False, True, True, False]
