"""Compressed files give the lines they hold, from any offset, whoever reads which of them."""

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import everstream as es
from everstream.connectors import Csv, JsonLines, TextLines
from everstream.connectors.files.ranges import CODECS
from everstream.errors import ConnectorError
from everstream.pipeline.batch import records_of
from everstream.pipeline.source import END, Reader, Source
from everstream.testing.sources import check_source
from tests.spark import MASTER

LINES = [f"line {number} {'x' * (number % 50)}" for number in range(2_000)]


def pack(file: Path, lines: list[str], end: str = "\n") -> None:
    """In two streams one after the other, as appending to a gzip file leaves them."""
    codec = CODECS[file.suffix]
    text = ("\n".join(lines) + end).encode()
    with pa.OSFile(str(file), "wb") as raw:
        for half in (text[: len(text) // 2], text[len(text) // 2 :]):
            with pa.CompressedOutputStream(raw, codec) as packed:
                packed.write(half)
            raw = pa.OSFile(str(file), "ab")


def read_all(reader: Reader) -> list[Any]:
    found: list[Any] = []
    while (batch := reader.read()) is not END:
        assert batch is not None
        found += records_of(batch)
    return found


@pytest.mark.parametrize("ending", CODECS)
@pytest.mark.parametrize("batch_bytes", [100, 1 << 20])
def test_lines_are_those_the_file_holds(tmp_path: Path, ending: str, batch_bytes: int) -> None:
    pack(tmp_path / f"a.txt{ending}", LINES[:1_000])
    pack(tmp_path / f"b.txt{ending}", LINES[1_000:], end="")
    (tmp_path / "c.txt").write_text("plain\n")
    (tmp_path / "d.txt.gz").write_bytes(b"")
    source = TextLines(tmp_path, batch_bytes=batch_bytes)
    source.check()
    found = [line for shard in range(3) for line in read_all(source.open(shard, 3))]
    assert sorted(found) == sorted([*LINES, "plain"])


def test_every_offset_goes_on_with_the_next_line(tmp_path: Path) -> None:
    pack(tmp_path / "a.txt.gz", LINES[:40])
    source = TextLines(tmp_path, batch_bytes=64)
    reader, offsets, batches = source.open(0, 1), [], []
    while True:
        offsets.append(pickle.dumps(reader.offset))
        batch = reader.read()
        if batch is END:
            break
        batches.append(records_of(batch))  # type: ignore[arg-type]
    again = source.open(0, 1)
    for number in reversed(range(len(batches))):
        again.seek(pickle.loads(offsets[number]))
        assert records_of(again.read()) == batches[number]  # type: ignore[arg-type]


SOURCES: dict[str, Callable[[Path], Source]] = {
    "json": lambda path: JsonLines(path / "*.jsonl.zst", batch_bytes=200),
    "csv": lambda path: Csv(path / "*.csv.gz", batch_bytes=200),
    "plain csv": lambda path: Csv(path / "*.csv.gz", batch_bytes=200, quoted_newlines=False),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_compressed_files_keep_the_promises_of_a_source(tmp_path: Path, kind: str) -> None:
    numbers = list(range(200))
    for part in range(3):
        own = numbers[part::3]
        pack(tmp_path / f"{part}.jsonl.zst", [f'{{"n":{n},"t":"é"}}' for n in own])
        pack(tmp_path / f"{part}.csv.gz", ["n,t", *(f'{n},"é"' for n in own)])
    expected = [{"n": number, "t": "é"} for number in numbers]
    check_source(
        lambda: SOURCES[kind](tmp_path), shards=(1, 2), expected=expected, redistributes=True
    )


def test_a_quoted_line_end_in_a_compressed_csv_file(tmp_path: Path) -> None:
    pack(tmp_path / "a.csv.gz", ["n,t", *(f'{n},"one\ntwo {"x" * n}"' for n in range(30))])
    (frame,) = [Csv(tmp_path / "a.csv.gz").open(0, 1).read()]
    assert isinstance(frame, pl.DataFrame)
    assert frame["t"].to_list() == [f"one\ntwo {'x' * n}" for n in range(30)]
    found = read_all(Csv(tmp_path / "a.csv.gz", batch_bytes=20).open(0, 1))
    assert [row["n"] for row in found] == list(range(30))


def test_a_file_that_is_cut_off_is_an_error_that_names_it(tmp_path: Path) -> None:
    whole = gzip.compress("\n".join(LINES).encode())
    (tmp_path / "cut.txt.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConnectorError, match=r"cut\.txt\.gz"):
        read_all(TextLines(tmp_path).open(0, 1))


def test_a_file_that_was_replaced_is_an_error(tmp_path: Path) -> None:
    pack(tmp_path / "a.txt.gz", LINES)
    source = TextLines(tmp_path)
    source.check()
    pack(tmp_path / "a.txt.gz", LINES[:10])
    with pytest.raises(ConnectorError, match="when it was listed"):
        read_all(source.open(0, 1))


def test_a_source_that_follows_takes_up_compressed_files(tmp_path: Path) -> None:
    reader = TextLines(tmp_path, follow=True).open(0, 1)
    assert reader.read() is None
    pack(tmp_path / "later.txt.gz", LINES[:5])
    assert reader.read() == LINES[:5]
    assert reader.read() is None


def test_a_pipeline_counts_the_lines_of_compressed_files(tmp_path: Path) -> None:
    for number in range(3):
        pack(tmp_path / f"{number}.txt.gz", LINES[number::3])
    pipeline = es.Pipeline("packed")
    pipeline.source(es.TextLines(tmp_path), shards=2).collect()
    result = pipeline.run(master=MASTER, workers=3, store=tmp_path / ".store")
    assert sorted(result.collected()) == sorted(LINES)
