"""The file sinks, against writing the same files by hand with the same library, as durably.

By hand, too, a file is written under another name, synced and renamed once a second, so that
no reader sees half of one and a power failure loses at most the last second.
"""

import os
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import polars as pl
import pyarrow as pa
from pyarrow import parquet

from everstream.connectors.files.csv import Csv
from everstream.connectors.files.json_lines import JsonLines
from everstream.connectors.files.parquet import Parquet
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Sink
from everstream_lab.bench.connectors.file_sources import ROWS_PER_BATCH, sample
from everstream_lab.bench.connectors.row import Row, SinkRow, per_checkpoint

OBJECTS_PER_BATCH = 4_096
ROWS_PER_GROUP = 262_144


class _FilesRow(SinkRow):
    ending: str

    def write(self, folder: Path, batches: Iterator[Batch]) -> None:
        (folder / "out").mkdir()
        for number, part in enumerate(per_checkpoint(batches)):
            self._write_part(folder / "out" / f"part-{number}{self.ending}", part)

    def _write_part(self, path: Path, part: Iterator[Batch]) -> None:
        pending = path.with_suffix(".pending")
        with pending.open("wb") as file:
            self.fill(file, part)
            file.flush()
            os.fsync(file.fileno())
        pending.rename(path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    @abstractmethod
    def fill(self, file: IO[bytes], part: Iterator[Batch]) -> None:
        """Write these batches into one file."""

    def arrived(self, folder: Path) -> int:
        return sum(map(self.count, (folder / "out").glob(f"*{self.ending}")))

    @abstractmethod
    def count(self, path: Path) -> int:
        """The records of one file."""


def lines_in(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


class JsonSink(_FilesRow):
    name, bare_client, records = "json-sink", "msgspec encode_lines", 6_000_000
    ending = ".jsonl"

    def batch(self) -> Batch:
        return sample(OBJECTS_PER_BATCH).to_dicts()

    def sink(self, folder: Path) -> Sink:
        return JsonLines(f"{folder}/out/")

    def fill(self, file: IO[bytes], part: Iterator[Batch]) -> None:
        encode: Any = msgspec.json.Encoder().encode_lines
        for batch in part:
            file.write(encode(batch))

    def count(self, path: Path) -> int:
        return lines_in(path)


class JsonColumnsSink(JsonSink):
    name, bare_client, records = "json-columns-sink", "polars write_ndjson", 20_000_000

    def batch(self) -> Batch:
        return sample(ROWS_PER_BATCH)

    def fill(self, file: IO[bytes], part: Iterator[Batch]) -> None:
        for batch in part:
            assert isinstance(batch, pl.DataFrame)
            batch.write_ndjson(file)


class CsvSink(_FilesRow):
    name, bare_client, records = "csv-sink", "polars write_csv", 20_000_000
    ending = ".csv"

    def batch(self) -> Batch:
        return sample(ROWS_PER_BATCH)

    def sink(self, folder: Path) -> Sink:
        return Csv(f"{folder}/out/")

    def fill(self, file: IO[bytes], part: Iterator[Batch]) -> None:
        for number, batch in enumerate(part):
            assert isinstance(batch, pl.DataFrame)
            batch.write_csv(file, include_header=number == 0)

    def count(self, path: Path) -> int:
        return lines_in(path) - 1


class ParquetSink(_FilesRow):
    name, bare_client, records = "parquet-sink", "pyarrow ParquetWriter", 20_000_000
    ending = ".parquet"

    def batch(self) -> Batch:
        return sample(ROWS_PER_BATCH)

    def sink(self, folder: Path) -> Sink:
        return Parquet(f"{folder}/out/")

    def fill(self, file: IO[bytes], part: Iterator[Batch]) -> None:
        schema = _arrow(sample(1)).schema
        with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            waiting: list[pl.DataFrame] = []
            for batch in part:
                assert isinstance(batch, pl.DataFrame)
                waiting.append(batch)
                if sum(frame.height for frame in waiting) >= ROWS_PER_GROUP:
                    writer.write_table(_arrow(pl.concat(waiting)))
                    waiting = []
            if waiting:
                writer.write_table(_arrow(pl.concat(waiting)))

    def count(self, path: Path) -> int:
        with parquet.ParquetFile(path) as file:
            return int(file.metadata.num_rows)


def _arrow(frame: pl.DataFrame) -> pa.Table:
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


ROWS: tuple[type[Row], ...] = (JsonSink, JsonColumnsSink, CsvSink, ParquetSink)
