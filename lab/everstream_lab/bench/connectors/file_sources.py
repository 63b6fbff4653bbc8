"""The file sources, against reading the same file by hand with the same library."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from everstream.connectors.files.csv import Csv
from everstream.connectors.files.json_lines import JsonLines
from everstream.connectors.files.parquet import Parquet
from everstream.connectors.files.text import TextLines
from everstream.pipeline.batch import Batch
from everstream.pipeline.source import Source
from everstream_lab.bench.connectors.row import Row, SourceRow

CHUNK_BYTES = 1 << 20
ROWS_PER_BATCH = 65_536
SCHEMA = {"id": pl.Int64, "user": pl.String, "price": pl.Float64}


def sample(rows: int) -> pl.DataFrame:
    """Rows as an event may have them: a number, a name, a price."""
    numbers = pl.int_range(rows, eager=True)
    return pl.DataFrame(
        {
            "id": numbers,
            "user": pl.select(pl.format("user-{}", numbers % 10_007)).to_series(),
            "price": (numbers % 9_973) / 100,
        }
    )


class _FileRow(SourceRow):
    ending: str

    @property
    def path(self) -> Path:
        return self.place.folder / f"input{self.ending}"


class TextSource(_FileRow):
    name, bare_client, records = "text-source", "open().readlines", 6_000_000
    ending = ".txt"

    def make(self) -> None:
        lines = "".join(f"line {number % 1_000_003} of some text\n" for number in range(10_000))
        with self.path.open("w") as file:
            for start in range(0, self.total, 10_000):
                left = self.total - start
                file.write(lines if left >= 10_000 else "".join(lines.splitlines(True)[:left]))

    def source(self) -> Source[Any]:
        return TextLines(self.path)

    def read(self) -> Iterator[Batch]:
        with self.path.open(encoding="utf-8") as file:
            while lines := file.readlines(CHUNK_BYTES):
                yield [line.rstrip("\n") for line in lines]


class JsonSource(_FileRow):
    name, bare_client, records = "json-source", "msgspec decode_lines", 3_000_000
    ending = ".jsonl"

    def make(self) -> None:
        sample(self.total).write_ndjson(self.path)

    def source(self) -> Source[Any]:
        return JsonLines(self.path)

    def read(self) -> Iterator[Batch]:
        decode = msgspec.json.Decoder().decode_lines
        with self.path.open("rb") as file:
            while lines := file.readlines(CHUNK_BYTES):
                yield decode(b"".join(lines))


class JsonColumnsSource(JsonSource):
    name, bare_client, records = "json-columns-source", "polars read_ndjson", 5_000_000

    def source(self) -> Source[Any]:
        return JsonLines(self.path, schema=SCHEMA)

    def read(self) -> Iterator[Batch]:
        with self.path.open("rb") as file:
            while data := file.read(CHUNK_BYTES):
                yield pl.read_ndjson(io.BytesIO(data + file.readline()), schema=SCHEMA)


class CsvSource(_FileRow):
    name, bare_client, records = "csv-source", "pyarrow open_csv, one thread", 10_000_000
    ending = ".csv"

    def make(self) -> None:
        sample(self.total).write_csv(self.path)

    def source(self) -> Source[Any]:
        return Csv(self.path, schema=SCHEMA)

    def read(self) -> Iterator[Batch]:
        options = arrow_csv.ReadOptions(use_threads=False, block_size=CHUNK_BYTES)
        kinds = {"id": pa.int64(), "user": pa.string(), "price": pa.float64()}
        convert = arrow_csv.ConvertOptions(column_types=kinds)
        with arrow_csv.open_csv(self.path, options, convert_options=convert) as reader:
            for batch in reader:
                yield pl.DataFrame(pl.from_arrow(batch))


class ParquetSource(_FileRow):
    name, bare_client, records = "parquet-source", "pyarrow read_row_group", 40_000_000
    ending = ".parquet"

    def make(self) -> None:
        part = sample(1 << 20)
        with parquet.ParquetWriter(self.path, part.to_arrow().schema, compression="zstd") as file:
            for start in range(0, self.total, part.height):
                file.write_table(part[: self.total - start].to_arrow(), row_group_size=262_144)

    def source(self) -> Source[Any]:
        return Parquet(self.path)

    def read(self) -> Iterator[Batch]:
        with parquet.ParquetFile(self.path) as file:
            for number in range(file.num_row_groups):
                yield pl.DataFrame(pl.from_arrow(file.read_row_group(number)))


ROWS: tuple[type[Row], ...] = (TextSource, JsonSource, JsonColumnsSource, CsvSource, ParquetSource)
