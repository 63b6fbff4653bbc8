"""Part files in Parquet: rows become bytes a row group at a time, and the footer ends the part."""

import io
from typing import Any

import polars as pl
import pyarrow as pa
from pyarrow import parquet

from everstream.connectors.frames import Columns
from everstream.connectors.parts import PartFolder, PartWriter
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import SinkShard

ROWS_PER_GROUP = 262_144


class _Growing(io.RawIOBase):
    """A file that hands over what was written to it since it was last asked."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._position += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


class ParquetWriter(PartWriter):
    """Rows wait until they make a row group, or until the checkpoint."""

    def __init__(self, folder: PartFolder, who: SinkShard, columns: Columns) -> None:
        super().__init__(folder, who)
        self._columns = columns
        self._waiting: list[pl.DataFrame] = []
        self._growing = _Growing()
        self._parquet: Any = None

    def encode(self, batch: Batch) -> bytes:
        frame = self._columns.settle(batch)
        if self._parquet is None:
            self._growing = _Growing()
            schema = _arrow(frame.clear()).schema
            self._parquet = parquet.ParquetWriter(self._growing, schema, compression="zstd")
        self._waiting.append(frame)
        if sum(waiting.height for waiting in self._waiting) >= ROWS_PER_GROUP:
            self._write_group()
        return self._growing.take()

    def finish(self) -> bytes:
        self._write_group()
        self._parquet.close()
        self._parquet = None
        return self._growing.take()

    def close(self) -> None:
        super().close()
        self._waiting, self._parquet = [], None

    def _write_group(self) -> None:
        if self._waiting:
            table = _arrow(pl.concat(self._waiting))
            self._waiting = []
            self._parquet.write_table(table, row_group_size=ROWS_PER_GROUP)


def _arrow(frame: pl.DataFrame) -> pa.Table:
    """In types that every reader of Parquet knows."""
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())
