"""The lake tables, against the library of each doing the same: an append once a second, a scan."""

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from everstream.connectors.lake.delta import Delta, deltalake
from everstream.connectors.lake.iceberg import Iceberg, pyiceberg
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Sink
from everstream.pipeline.source import Source
from everstream_lab.bench.connectors.file_sources import ROWS_PER_BATCH, sample
from everstream_lab.bench.connectors.row import Row, SinkRow, SourceRow, per_checkpoint

NAME = "bench.rows"


def _append_to_delta(folder: Path, rows: pa.Table) -> None:
    deltalake().write_deltalake(str(folder / "table"), rows, mode="append")


def _properties(folder: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": folder.as_uri(),
    }


def _catalog(folder: Path) -> Any:
    return pyiceberg().catalog.load_catalog("default", **_properties(folder))


def _append_to_iceberg(folder: Path, rows: pa.Table) -> None:
    catalog = _catalog(folder)
    catalog.create_namespace_if_not_exists("bench")
    catalog.create_table_if_not_exists(NAME, rows.schema).append(rows)


def _arrow(frame: pl.DataFrame) -> pa.Table:
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


def _parts(rows: int) -> Iterator[pa.Table]:
    """This many rows, in the pieces that checkpoints would make of them."""
    part = sample(1 << 20)
    for start in range(0, rows, part.height):
        yield _arrow(part[: rows - start])


class _LakeSink(SinkRow):
    def batch(self) -> Batch:
        return sample(ROWS_PER_BATCH)

    def write(self, folder: Path, batches: Iterator[Batch]) -> None:
        for part in per_checkpoint(batches):
            frames = [batch for batch in part if isinstance(batch, pl.DataFrame)]
            self.append(folder, _arrow(pl.concat(frames)))

    @abstractmethod
    def append(self, folder: Path, rows: pa.Table) -> None:
        """One version more, by the library."""


class DeltaSink(_LakeSink):
    name, bare_client, records = "delta-sink", "deltalake write_deltalake", 20_000_000

    def sink(self, folder: Path) -> Sink:
        return Delta(folder / "table")

    def append(self, folder: Path, rows: pa.Table) -> None:
        _append_to_delta(folder, rows)

    def arrived(self, folder: Path) -> int:
        return int(deltalake().DeltaTable(str(folder / "table")).count())


class IcebergSink(_LakeSink):
    name, bare_client, records = "iceberg-sink", "pyiceberg append", 20_000_000

    def sink(self, folder: Path) -> Sink:
        return Iceberg(NAME, _properties(folder))

    def append(self, folder: Path, rows: pa.Table) -> None:
        _append_to_iceberg(folder, rows)

    def arrived(self, folder: Path) -> int:
        return int(_catalog(folder).load_table(NAME).scan().count())


class DeltaSource(SourceRow):
    name, bare_client, records = "delta-source", "deltalake to_pyarrow_dataset", 40_000_000

    def make(self) -> None:
        for part in _parts(self.total):
            _append_to_delta(self.place.folder, part)

    def source(self) -> Source[Any]:
        return Delta(self.place.folder / "table")

    def read(self) -> Iterator[Batch]:
        dataset = deltalake().DeltaTable(str(self.place.folder / "table")).to_pyarrow_dataset()
        for batch in dataset.to_batches(use_threads=False):
            yield pl.DataFrame(pl.from_arrow(batch))


class IcebergSource(SourceRow):
    name, bare_client, records = "iceberg-source", "pyiceberg to_arrow_batch_reader", 40_000_000

    def make(self) -> None:
        for part in _parts(self.total):
            _append_to_iceberg(self.place.folder, part)

    def source(self) -> Source[Any]:
        return Iceberg(NAME, _properties(self.place.folder))

    def read(self) -> Iterator[Batch]:
        table = _catalog(self.place.folder).load_table(NAME)
        for batch in table.scan().to_arrow_batch_reader():
            yield pl.DataFrame(pl.from_arrow(batch))


ROWS: tuple[type[Row], ...] = (DeltaSource, IcebergSource, DeltaSink, IcebergSink)
