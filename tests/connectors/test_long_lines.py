"""Lines that are too long: left to on_error, and never in memory as a whole."""

import gzip
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from everstream.connectors import Csv, JsonLines, TextLines
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import records_of
from everstream.pipeline.source import EndOfStream, Reader

MOST = 1_000


def everything(reader: Reader) -> tuple[list[Any], list[Any]]:
    """What a reader gives, and what it rejects; sought to its own offset after each batch."""
    records, rejected = list[Any](), list[Any]()
    while not isinstance(batch := reader.read(), EndOfStream):
        records += records_of(batch) if batch is not None else []
        rejected += reader.take_rejected()
        reader.seek(pickle.loads(pickle.dumps(reader.offset)))
    return records, rejected


@pytest.mark.parametrize("batch_bytes", [7, 100, 1_000, 1 << 20])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("last_end", ["", "\n"])
def test_a_line_that_is_too_long_is_left_out_and_its_neighbours_are_not(
    tmp_path: Path, batch_bytes: int, shards: int, last_end: str
) -> None:
    fits, too_long = "f" * (MOST - 1), "x" * MOST
    lines = ["a", fits, too_long, "b", "y" * 5_000, "c", "z" * 3_000]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + last_end)
    source = TextLines(
        tmp_path / "lines.txt", batch_bytes=batch_bytes, max_record_bytes=MOST, on_error="skip"
    )
    source.check()
    records, rejected = list[Any](), list[Any]()
    for shard in range(shards):
        more, bad = everything(source.open(shard, shards))
        records += more
        rejected += bad
    assert sorted(records) == sorted(["a", fits, "b", "c"])
    assert sorted(each.record[0] for each in rejected) == ["x", "y", "z"]
    assert all(len(each.record) <= MOST for each in rejected)


def test_a_line_that_is_too_long_fails_with_its_place_and_the_option(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\n" + "x" * 2_000_000 + "\nb\n")
    reader = TextLines(tmp_path / "lines.txt", max_record_bytes=MOST, batch_bytes=1).open(0, 1)
    assert reader.read() == ["a"]
    for _ in range(2):
        with pytest.raises(
            ConnectorError, match=r"line 2, byte 2: .* 2,000,001 bytes, .*max_record_bytes=1,000;"
        ):
            reader.read()
    with pytest.raises(UserError, match="max_record_bytes must be at least 1"):
        TextLines(tmp_path, max_record_bytes=0)


@pytest.mark.parametrize("columns", [False, True])
def test_json_lines_that_are_too_long_are_left_out(tmp_path: Path, columns: bool) -> None:
    long = '{"n": 2, "t": "' + "x" * 9_999 + '"}'
    (tmp_path / "a.jsonl").write_text(f'{{"n": 1, "t": ""}}\n{long}\n{{"n": 3, "t": ""}}\n')
    source = JsonLines(
        tmp_path / "a.jsonl",
        schema={"n": pl.Int64, "t": pl.String} if columns else None,
        max_record_bytes=MOST,
        on_error="dead_letter",
    )
    records, rejected = everything(source.open(0, 1))
    assert [record["n"] for record in records] == [1, 3]
    assert "10,017 bytes" in rejected[0].error


@pytest.mark.parametrize("quoted_newlines", [False, True])
def test_csv_rows_that_are_too_long_are_left_out(tmp_path: Path, quoted_newlines: bool) -> None:
    (tmp_path / "a.csv").write_text(f"n,t\n1,a\n2,{'x' * 9_999}\n3,c\n")
    source = Csv(
        tmp_path / "a.csv",
        schema={"n": pl.Int64, "t": pl.String},
        quoted_newlines=quoted_newlines,
        max_record_bytes=MOST,
        on_error="skip",
    )
    records, rejected = everything(source.open(0, 1))
    assert [record["n"] for record in records] == [1, 3]
    assert len(rejected) == 1


def test_a_quote_that_is_opened_before_a_line_that_is_too_long_costs_these_two(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_text(f'n,t\n1,a\n2,"open\n{"x" * 9_999}\n3,c\n')
    source = Csv(
        tmp_path / "a.csv",
        schema={"n": pl.Int64, "t": pl.String},
        max_record_bytes=MOST,
        batch_bytes=10,
        on_error="skip",
    )
    records, rejected = everything(source.open(0, 1))
    assert [record["n"] for record in records] == [1, 3]
    assert len(rejected) == 2


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_without_end_takes_no_memory(tmp_path: Path, packed: bool) -> None:
    """64 million bytes without a line end; packed they are a file of 64 thousand."""
    file = tmp_path / ("bomb.txt.gz" if packed else "bomb.txt")
    with gzip.open(file, "wb") if packed else file.open("wb") as out:
        out.write(b"a\n")
        for _ in range(64):
            out.write(b"x" * 1_000_000)
    source = TextLines(file, max_record_bytes=1 << 20, on_error="skip")
    source.check()
    tracemalloc.start()
    try:
        records, rejected = everything(source.open(0, 1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert records == ["a"] and len(rejected) == 1
    assert peak < 16 << 20
