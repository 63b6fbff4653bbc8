"""Parquet: `Parquet` reads such files as a source and writes them as a sink, on columns.

Files are cut into byte ranges like text files, and a row group belongs to the range that contains
its first byte: no shard needs to read the footers of another shard's files. The position in a file
is a row number. A written file appears only when it is complete, footer included, and its
checkpoint is stable, so readers of the folder see only finished Parquet files.
"""

import contextlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import pyarrow as pa
from pyarrow import parquet

from everstream.connectors.columns import (
    Columns,
    ColumnsWriter,
    Evolve,
    Format,
    adds_columns,
    as_arrow,
    evolving,
    is_made_of,
)
from everstream.connectors.files.connector import FileConnector
from everstream.connectors.files.filesystem import is_local, opened_for_arrow
from everstream.connectors.files.layout import FileLayout
from everstream.connectors.files.lines import Follower, Listing
from everstream.connectors.files.parts import PartFolder, PartName, PartWriter
from everstream.connectors.files.ranges import FileReader, LinesOffset, Split
from everstream.connectors.files.unpacking import (
    OversizedRowGroup,
    ParquetBytes,
    Unpacker,
    first_byte,
)
from everstream.connectors.options import MAX_RECORD_BYTES, at_least_one
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.exact import Kind, in_kinds, parts_of
from everstream.pipeline.rejects import OnError, Rejected
from everstream.pipeline.sink import SinkShard, Writer
from everstream.pipeline.source import END, EndOfStream, Reader
from everstream.pipeline.types import Row

ROWS_PER_BATCH = 65_536
ROWS_PER_GROUP = 262_144
SMALLEST_SPLIT_BYTES = 1 << 20


def _stored_as(kind: Kind) -> Kind | None:
    empty = any(isinstance(part, pl.Struct) and not part.fields for part in parts_of(kind))
    return None if empty or is_made_of(kind, pl.Int128, pl.UInt128, pl.Object) else kind


FORMAT = Format("Parquet", stored_as=_stored_as)


class Parquet(FileConnector[Row]):
    """Parquet files. Batches are DataFrames.

    As a source, `path` names a file, a folder or a pattern; `columns` names the ones to read
    (default: all). All files must have the columns of the first. With `follow=True` the source
    never ends: complete files that appear later are read too. `on_error` sets what happens to
    files and row groups that cannot be read, and to files with other columns. So it does to row
    groups that are made to fill memory: of which a row, or the pages that are needed at once, unpack
    to more than `max_record_bytes` (default 64 MB) and 100 times their bytes in the file.

    As a sink, `path` names a folder. Output is exactly-once: one part file per shard and
    checkpoint, which appears whole when its checkpoint is stable. Types are those of the first
    batch unless you give them: `schema={'name': pl.Float64, ...}`. A value that does not fit its
    column's type exactly is refused. So is a column that the output does not have, unless you give
    evolve="add_columns": then later files have it, too, and as a source this class reads None for it
    from the earlier part files. The rows of a checkpoint are then kept in memory, in one file
    per shard: it does not go with roll_bytes, partition_by and prefix.

    `roll_bytes` ("128MB") ends a part that has that size, and begins another. `partition_by` writes
    the rows of each value of some columns to a folder of their own, as Hive does
    (`day=2026-03-01/`). `prefix` begins the names of the files.

    >>> rows = es.Pipeline("write").source(es.Range(2, column="n"))
    >>> _ = rows.sink(es.Parquet("numbers/")).run()
    >>> es.Pipeline("read").source(es.Parquet("numbers/")).collect().run().collected()
    [{'n': 0}, {'n': 1}]
    """

    ending = ".parquet"
    _format = FORMAT
    source_options = frozenset({"columns", "batch_rows", "max_record_bytes", "follow", "on_error"})
    sink_options = frozenset({"evolve", "roll_bytes", "partition_by", "prefix"})
    in_lines = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        schema: Mapping[str, Any] | type | None = None,
        evolve: Evolve = "refuse",
        batch_rows: int = ROWS_PER_BATCH,
        max_record_bytes: int = MAX_RECORD_BYTES,
        follow: bool = False,
        on_error: OnError = "fail",
        storage_options: Mapping[str, Any] | None = None,
        roll_bytes: str | int | None = None,
        partition_by: str | Sequence[str] | None = None,
        prefix: str = "",
    ) -> None:
        at_least_one(batch_rows=batch_rows, max_record_bytes=max_record_bytes)
        layout = FileLayout.of(roll_bytes, partition_by, prefix)
        super().__init__(path, schema, follow, on_error, storage_options, layout)
        self._evolve = evolve
        if adds_columns(evolve) and layout != FileLayout():
            raise UserError(
                "Parquet: evolve='add_columns' keeps the rows of a checkpoint for one file, so it does "
                "not go with roll_bytes, partition_by or prefix. Leave one of them out."
            )
        self._columns = list(columns) if columns is not None else None
        self._batch_rows = batch_rows
        self._smallest_split_bytes = SMALLEST_SPLIT_BYTES
        self._most_bytes = max_record_bytes

    def _open_writer(self, shard: SinkShard) -> Writer:
        folder, columns = self._part_folder(), self.columns(shard)
        return self._writer(lambda: ParquetWriter(folder, shard, columns), columns)

    def columns(self, shard: SinkShard) -> Columns:
        return Columns(shard, self._given_schema, evolving(FORMAT, self._evolve))

    def _learn_schema(self) -> None:
        if self._files.files:
            self._schema = self._first_schema()

    def _open_reader(self, shard: int, shards: int) -> Reader:
        schema = self._schema
        if schema is None and self._files.files:
            schema = self._first_schema()
        offset = self._files.first_offset(shard, shards, SMALLEST_SPLIT_BYTES)
        return _ParquetReader(self, offset, schema, self._files.follower(shard, shards))

    def _first_schema(self) -> pl.Schema:
        """The columns of the first file that can be read, and those that later part files add."""
        first = self._schema_of_first()
        newest: dict[tuple[str, int], tuple[int, str, int]] = {}
        for path, size in self._files.files:
            part = _part_of(path)
            if part is not None:
                of_shard = (part.owner, part.shard)
                newest[of_shard] = max(
                    newest.get(of_shard, (-1, "", 0)), (part.checkpoint, path, size)
                )
        files = _Files(self._fs, self._columns, self._most_bytes)
        schema = dict(first)
        for _, path, size in newest.values():
            with contextlib.suppress(ConnectorError):  # reading it reports it
                for name, kind in files.open(Split(path, 0, size, size)).schema.items():
                    schema.setdefault(name, kind)
            files.close()
        return pl.Schema(schema)

    def _schema_of_first(self) -> pl.Schema:
        files = _Files(self._fs, self._columns, self._most_bytes)
        problem: ConnectorError | None = None
        for path, size in self._files.files:
            try:
                return files.open(Split(path, 0, size, size)).schema
            except ConnectorError as error:
                problem = problem or error
                if self.on_error == "fail":
                    break
            finally:
                files.close()
        raise UserError(f"cannot read the columns of '{self._path}': {problem}")


@dataclass(frozen=True)
class _Group:
    """A row group: its number, its first row in the file, and how many rows it has."""

    number: int
    first_row: int
    rows: int
    start_byte: int


def _part_of(path: str) -> PartName | None:
    """The name of a file that a sink of ours has written."""
    return PartName.parse(path.rpartition("/")[2], Parquet.ending)


class _OpenFile:
    def __init__(
        self, path: str, file: ParquetBytes, columns: Sequence[str] | None, most_bytes: int
    ) -> None:
        self.path = path
        self._unpacker = Unpacker(file, most_bytes)
        arrow = self._unpacker.parquet.schema_arrow
        if columns is not None:
            missing = [name for name in columns if name not in arrow.names]
            if _part_of(path) is not None:
                columns = [name for name in columns if name not in missing]  # added later
            elif missing:
                raise ConnectorError(f"'{path}' has no column {', '.join(missing)}.")
            arrow = pa.schema([arrow.field(name) for name in columns])
        self._names = list(arrow.names)
        self.schema = pl.DataFrame(pl.from_arrow(arrow.empty_table())).schema
        self.groups: list[_Group] = []
        row, metadata = 0, self._unpacker.parquet.metadata
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            start = first_byte(group.column(0)) if group.num_columns else 0
            self.groups.append(_Group(number, row, group.num_rows, start))
            row += group.num_rows

    def groups_in(self, split: Split) -> list[_Group]:
        return [g for g in self.groups if split.start <= g.start_byte < split.stop and g.rows]

    def frames(self, group: _Group, most_rows: int) -> Iterator[pl.DataFrame]:
        """The rows of a group, few enough at once to fit into memory."""
        for batch in self._unpacker.batches(group.number, self._names, most_rows):
            yield pl.DataFrame(pl.from_arrow(batch)).select(self._names)


class _Files:
    def __init__(self, fs: Any, columns: Sequence[str] | None, most_bytes: int) -> None:
        self._fs = fs
        self._columns = columns
        self._most_bytes = most_bytes
        self._file: ParquetBytes | None = None
        self._open: _OpenFile | None = None

    def open(self, split: Split) -> _OpenFile:
        if self._open is not None and self._open.path == split.path:
            return self._open
        self.close()
        try:
            size_bytes = self._fs.info(split.path)["size"]
            file = opened_for_arrow(self._fs, split.path)
            self._file = ParquetBytes(file, keeps_chunks=not is_local(self._fs))
        except OSError as error:
            raise _Gone(
                f"cannot read '{split.path}': {error}. "
                "Restore the file, or start over with --fresh, which deletes the output."
            ) from error
        if size_bytes != split.file_bytes:
            raise _Gone(
                f"'{split.path}' has {size_bytes} bytes; it had {split.file_bytes} when the "
                "run began. Restore the file, or start over with --fresh, which deletes the output."
            )
        try:
            self._open = _OpenFile(split.path, self._file, self._columns, self._most_bytes)
        except (pa.ArrowException, OSError) as error:
            raise ConnectorError(
                f"'{split.path}' is not a complete Parquet file: {error}. "
                "Write it again, or exclude it from the pattern."
            ) from error
        return self._open

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._open = None, None


class _Rows:
    """The rows of a row group, in order, from which batches are taken."""

    def __init__(self, file: _OpenFile, group: _Group, most_rows: int) -> None:
        self._path = file.path
        self._next_row = group.first_row
        self._stop = group.first_row + group.rows
        self._frames = file.frames(group, most_rows)
        self._left: pl.DataFrame | None = None
        """Rows that were decoded and not taken."""
        self._problem: Exception | None = None

    @property
    def at(self) -> tuple[str, int]:
        return self._path, self._next_row

    def skip_to(self, row: int) -> None:
        while self._next_row < row:
            frame = self._next_frame()
            self._left = frame[row - self._next_row :]
            self._next_row += frame.height - self._left.height

    def take(self, most_rows: int, most_bytes: int) -> pl.DataFrame:
        """The next rows, until there are enough of them, or of their bytes."""
        taken: list[pl.DataFrame] = []
        rows = size_bytes = 0
        while rows < most_rows and size_bytes < most_bytes and self._next_row < self._stop:
            try:
                frame = self._next_frame()
            except (pa.ArrowException, OSError) as error:
                if not taken:
                    raise
                self._problem = error  # for the next batch: these rows are good
                break
            now, self._left = frame[: most_rows - rows], frame[most_rows - rows :]
            taken.append(now)
            rows += now.height
            size_bytes += int(now.estimated_size())
            self._next_row += now.height
        return pl.concat(taken)

    def _next_frame(self) -> pl.DataFrame:
        if self._problem is not None:
            raise self._problem
        frame, self._left = self._left, None
        if frame is not None and frame.height:
            return frame
        found = next(self._frames, None)
        if found is None:
            raise pa.ArrowInvalid(f"it ends before row {self._stop}")
        return found


class _Gone(ConnectorError):
    """The file has changed: never a reason to skip it."""


class _ParquetReader(FileReader):
    """The schema is part of the offset: it must not change on replay."""

    def __init__(
        self, source: Parquet, offset: LinesOffset, schema: pl.Schema | None, follower: Follower
    ) -> None:
        super().__init__(source.on_error)
        self._most_bytes = source._most_bytes
        self._files = _Files(source._fs, source._columns, source._most_bytes)
        self._offset = offset
        self._schema = schema
        self._batch_rows = source._batch_rows
        self._follower = follower
        self._rows: _Rows | None = None

    @property
    def offset(self) -> tuple[LinesOffset, pl.Schema | None]:
        return self._offset, self._schema

    def seek(self, offset: tuple[LinesOffset, pl.Schema | None]) -> None:
        self._offset, self._schema = offset
        self._rejected = []
        self._rows = None

    def stop_at(self, point: Listing) -> None:
        self._follower = replace(self._follower, listed=point)

    def read(self) -> Batch | EndOfStream | None:
        self._idle = False
        while True:
            if self._offset.index == len(self._offset.splits):
                if self._follower.looks:
                    self._offset = self._follower.extended(self._offset)
                if self._offset.index == len(self._offset.splits):
                    self._idle = not self._follower.ends
                    return END if self._follower.ends else None
            batch = self._read_split(self._offset.splits[self._offset.index])
            if batch is not None and batch.height:
                return batch

    def close(self) -> None:
        self._files.close()
        self._rows = None

    def _read_split(self, split: Split) -> pl.DataFrame | None:
        """The next rows of this split; None when it is finished, or must be rejected."""
        try:
            file = self._files.open(split)
        except _Gone:
            raise
        except ConnectorError as error:
            # Every range of the file finds this out; only the first one reports it.
            self._leave_out(split.path, error, 1 if split.start == 0 else 0)
            self._offset = self._offset.next_split()
            return None
        groups = file.groups_in(split)
        try:
            self._check_schema(file)
        except ConnectorError as error:
            self._leave_out(split.path, error, sum(group.rows for group in groups))
            self._offset = self._offset.next_split()
            return None
        position = self._offset.place
        left = [g for g in groups if position is None or g.first_row + g.rows > position]
        if not left:
            self._offset = self._offset.next_split()
            return None
        return self._read_group(file, left[0], position)

    def _read_group(self, file: _OpenFile, group: _Group, position: int | None) -> pl.DataFrame:
        start = max(position or 0, group.first_row)
        if self._rows is None or self._rows.at != (file.path, start):
            self._rows = _Rows(file, group, self._batch_rows)
        rows = self._rows
        try:
            rows.skip_to(start)
            batch = rows.take(self._batch_rows, self._most_bytes)
        except (pa.ArrowException, OSError, OversizedRowGroup) as error:
            place = f"'{file.path}', row group {group.number} (rows from {start})"
            problem = ConnectorError(
                f"{place}: {error}. Write the file again, or exclude it from the pattern."
            )
            self._leave_out(place, problem, group.first_row + group.rows - start)
            batch, stop = pl.DataFrame(), group.first_row + group.rows
        else:
            stop = start + batch.height
            assert self._schema is not None
            batch = in_kinds(batch, self._schema)
        if stop == group.first_row + group.rows:
            self._rows = None
        self._offset = replace(self._offset, position=stop)
        return batch

    def _check_schema(self, file: _OpenFile) -> None:
        if self._schema is None:
            self._schema = file.schema
        if file.schema == self._schema:
            return
        if _part_of(file.path) is not None and file.schema.items() <= self._schema.items():
            return  # it is from before a column was added
        expected, actual = _described(self._schema), _described(file.schema)
        raise ConnectorError(
            f"'{file.path}' has the columns {', '.join(actual)} where {', '.join(expected)} were "
            "expected. Give all files the same columns, name those to read with columns=[...], "
            "or exclude this file from the pattern."
        )

    def _leave_out(self, place: str, error: ConnectorError, records: int) -> None:
        if self._on_error == "fail":
            raise error
        if records:
            self._rejected.append(Rejected(None, error.message, place, records))


def _described(schema: pl.Schema) -> list[str]:
    return [f"{name} ({kind})" for name, kind in schema.items()]


class _Growing(io.RawIOBase):
    """A file that returns what was written to it since the last call."""

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


class ParquetWriter(ColumnsWriter, PartWriter):
    """Buffers rows until they make a row group, or until the checkpoint."""

    def __init__(self, folder: PartFolder, shard: SinkShard, columns: Columns) -> None:
        super().__init__(folder, shard)
        self._columns = columns
        self._waiting: list[pl.DataFrame] = []
        self._growing = _Growing()
        self._parquet: Any = None

    def encode(self, batch: Batch) -> bytes:
        self._waiting.append(self._columns.settle(batch))
        # A file has one schema, and a later row may add a column to it.
        grown = sum(waiting.height for waiting in self._waiting) >= ROWS_PER_GROUP
        if grown and not self._columns.adds:
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
        if not self._waiting:
            return
        # Files of one folder are read together: a column must have the same type in all of them.
        self._columns.require_types()
        table = as_arrow(self._columns.settled(self._waiting))
        self._waiting = []
        if self._parquet is None:
            self._growing = _Growing()
            self._parquet = parquet.ParquetWriter(self._growing, table.schema, compression="zstd")
        self._parquet.write_table(table, row_group_size=ROWS_PER_GROUP)
