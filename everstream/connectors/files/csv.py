"""CSV: `Csv` reads such files as a source and writes them as a sink.

As a source it gives columns: batches are DataFrames. A quoted field may contain line ends, so a
row can be several lines. Whether a line end ends a row depends on the quotes before it, so a file
is read by one shard from its start unless the user declares that no field contains one. Rows are
parsed by Arrow, which is strict: a row with too few or too many fields is an error.
"""

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from pyarrow import csv as arrow_csv

from everstream.connectors.columns import Columns, ColumnsWriter, Format, all_but, never
from everstream.connectors.files.connector import FileConnector
from everstream.connectors.files.layout import FileLayout
from everstream.connectors.files.lines import Chunk, ChunkReader, LinesReader, LongLine
from everstream.connectors.files.parts import PartFolder, PartWriter
from everstream.connectors.files.ranges import LinesOffset, Split, start_of
from everstream.connectors.options import MAX_RECORD_BYTES, at_least_one
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.rejects import OnError, Rejected
from everstream.pipeline.sink import SinkShard, Writer
from everstream.pipeline.source import Reader
from everstream.pipeline.types import Row

LONGEST_ROW_BYTES = 16 << 20
LONGEST_HEADER_BYTES = 1 << 16
"""A quote that is still open after this many bytes is taken for an error."""
LOOKED_AT_BYTES = 1 << 20
"""How many bytes of the first file are used to infer the types."""
SMALL = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
QUOTE = b'"'
MARK = b"\xef\xbb\xbf"
FORMAT = Format(
    "CSV",
    stored_as=all_but(pl.Binary, pl.Duration, pl.List, pl.Array, pl.Struct),
    widens=True,
    needs_type=never,
)


class Csv(FileConnector[Row]):
    """Files of comma-separated values, in UTF-8.

    As a source, `path` names a file, a folder or a pattern. Types come from `schema` (a Polars
    schema) or are inferred from the start of the first file. Every file starts with the names of
    its columns, unless `header=False`; then `schema` names them. An empty field is None, a quoted
    empty field an empty text. If no quoted field contains a line end, pass
    `quoted_newlines=False`, so that all shards can share a large file. With `follow=True` the
    source never ends: complete files that appear later are read too. `on_error` sets what happens
    to rows that do not fit, or are longer than `max_record_bytes` (default 64 MB).

    As a sink, `path` names a folder. Output is exactly-once: one part file per shard and
    checkpoint, which appears whole when its checkpoint is stable.

    `roll_bytes` ("128MB") ends a part that has that size, and begins another. `partition_by` writes
    the rows of each value of some columns to a folder of their own, as Hive does
    (`day=2026-03-01/`). `prefix` begins the names of the files.

    >>> rows = es.Pipeline("write").source(es.Range(2, column="n"))
    >>> _ = rows.sink(es.Csv("numbers/")).run()
    >>> es.Pipeline("read").source(es.Csv("numbers/")).collect().run().collected()
    [{'n': 0}, {'n': 1}]
    """

    ending = ".csv"
    _format = FORMAT
    sink_options = frozenset({"roll_bytes", "partition_by", "prefix"})
    source_options = frozenset(
        {"quoted_newlines", "batch_bytes", "max_record_bytes", "follow", "on_error"}
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: Mapping[str, Any] | type | None = None,
        delimiter: str = ",",
        header: bool = True,
        quoted_newlines: bool = True,
        batch_bytes: int = 1 << 20,
        max_record_bytes: int = MAX_RECORD_BYTES,
        follow: bool = False,
        on_error: OnError = "fail",
        storage_options: Mapping[str, Any] | None = None,
        roll_bytes: str | int | None = None,
        partition_by: str | Sequence[str] | None = None,
        prefix: str = "",
    ) -> None:
        at_least_one(batch_bytes=batch_bytes, max_record_bytes=max_record_bytes)
        if len(delimiter.encode()) != 1 or delimiter in '"\r\n':
            raise UserError(f"delimiter={delimiter!r} must be one character, such as ';' or '\\t'.")
        if not header and schema is None:
            raise UserError("Csv without a header needs the columns: schema={'name': pl.String}.")
        layout = FileLayout.of(roll_bytes, partition_by, prefix)
        super().__init__(path, schema, follow, on_error, storage_options, layout)
        self._delimiter = delimiter
        self._header = header
        self._quoted_newlines = quoted_newlines
        self._batch_bytes = batch_bytes
        self._smallest_split_bytes = None if quoted_newlines else batch_bytes
        self._most_bytes = max_record_bytes

    def _open_writer(self, shard: SinkShard) -> Writer:
        folder, columns = self._part_folder(), self.columns(shard)
        dialect = (self._delimiter, self._header)
        return self._writer(lambda: _CsvWriter(folder, shard, columns, *dialect), columns)

    def _learn_schema(self) -> None:
        if self._files.files:
            self._schema = self._inferred_schema()

    def _open_reader(self, shard: int, shards: int) -> Reader:
        schema = self._schema or self._inferred_schema()
        chunks = self._chunks(shard, shards, self._batch_bytes)
        dialect = _Dialect(schema, self._delimiter, self._quoted_newlines)
        return _CsvReader(chunks, self.on_error, dialect, self._header)

    def _chunks(self, shard: int, shards: int, chunk_bytes: int) -> ChunkReader:
        files, most_bytes = self._files, self._most_bytes
        if not self._quoted_newlines:
            return files.reader(shard, shards, chunk_bytes, most_bytes)
        largest = max((size for _, size in files.files), default=0)
        return files.reader(
            shard, shards, chunk_bytes, most_bytes, kind=_RowChunkReader, smallest_bytes=largest
        )

    def _inferred_schema(self) -> pl.Schema:
        """The schema of the first rows; the same for every shard, whichever files it has."""
        chunks = self._chunks(0, 1, LOOKED_AT_BYTES)
        try:
            first = chunks.read()
        finally:
            chunks.close()
        if not first or first[0].long_bytes or not first[0].data.strip():
            raise UserError(
                f"'{self._path}' has no rows to infer the columns from. "
                "Give them: schema={'name': pl.String, ...}."
            )
        try:
            table = arrow_csv.read_csv(
                io.BytesIO(first[0].data),
                read_options=arrow_csv.ReadOptions(use_threads=False, block_size=2**30),
                parse_options=_parse_options(self._delimiter, True),
                convert_options=arrow_csv.ConvertOptions(null_values=[""]),
            )
        except pa.ArrowInvalid as error:
            raise UserError(
                f"cannot infer the columns of '{self._path}' from its first rows: {error}. "
                "Give them: schema={'name': pl.String, ...}."
            ) from error
        frame = pl.DataFrame(pl.from_arrow(table))
        return pl.Schema(
            {name: pl.String() if kind == pl.Null else kind for name, kind in frame.schema.items()}
        )


def row_ends(data: bytes) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Where rows end: after each newline that has an even number of quotes before it."""
    values = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(values == 10)
    quotes = np.flatnonzero(values == 34)
    outside = np.searchsorted(quotes, newlines) % 2 == 0
    return np.asarray(newlines[outside] + 1, dtype=np.int64)


def last_row_end(data: bytes) -> int:
    """The position after the last whole row; 0 if there is none."""
    if QUOTE not in data:
        return data.rfind(b"\n") + 1
    ends = row_ends(data)
    return int(ends[-1]) if len(ends) else 0


def is_closed(data: bytes) -> bool:
    return QUOTE not in data or data.count(QUOTE) % 2 == 0


class _RowChunkReader(ChunkReader):
    """Chunks end where a row ends, not merely a line. Reads files from their start."""

    def _lines(self, split: Split, position: int, limit_bytes: int) -> bytes:
        data = super()._lines(split, position, limit_bytes)
        while True:
            if whole := last_row_end(data):
                return data[:whole]
            end = position + len(data)
            too_long = len(data) > min(LONGEST_ROW_BYTES, self.most_bytes)
            more = data and end < split.stop and not too_long
            following = b""
            if more:
                try:
                    following = super()._lines(split, end, len(data))
                except LongLine:
                    too_long = True
            if not following and not too_long and is_closed(data):
                return data
            if not following:
                # The quote is never closed: treat its line as a single, broken row.
                return data[: data.find(b"\n") + 1] or data
            data += following


def _parse_options(delimiter: str, quoted_newlines: bool, blank_lines: bool = True) -> Any:
    return arrow_csv.ParseOptions(
        delimiter=delimiter, newlines_in_values=quoted_newlines, ignore_empty_lines=blank_lines
    )


class _Dialect:
    """How bytes become rows of a schema."""

    def __init__(self, schema: pl.Schema, delimiter: str, quoted_newlines: bool) -> None:
        self.schema = schema
        self.delimiter = delimiter
        empty = pl.DataFrame(schema=schema)
        arrow = empty.to_arrow(compat_level=pl.CompatLevel.oldest()).schema
        # In a file of one column an empty line is a row without a value.
        self._parse_options = _parse_options(delimiter, quoted_newlines, len(schema) > 1)
        self._convert_options = arrow_csv.ConvertOptions(
            # A chunk is far smaller than 32 bits can count, and 32 bits convert faster.
            column_types={field.name: SMALL.get(field.type, field.type) for field in arrow},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def frame(self, data: bytes) -> pl.DataFrame:
        """Raises pa.ArrowInvalid if a row does not fit."""
        # Not `strip`, which copies all of it.
        if not data.lstrip(b"\r\n") and len(self.schema) > 1:
            return pl.DataFrame(schema=self.schema)
        options = arrow_csv.ReadOptions(
            use_threads=False, block_size=len(data) + 1, column_names=list(self.schema)
        )
        # One block, one batch: `read_csv` would copy the columns again.
        with arrow_csv.open_csv(
            pa.BufferReader(data), options, self._parse_options, self._convert_options
        ) as reader:
            table = reader.read_all()
        frame = pl.DataFrame(pl.from_arrow(table))
        return frame if frame.schema == self.schema else frame.cast(self.schema)

    def header(self, line: bytes) -> list[str]:
        table = arrow_csv.read_csv(
            io.BytesIO(line.removeprefix(MARK)),
            read_options=arrow_csv.ReadOptions(use_threads=False, block_size=len(line) + 1),
            parse_options=self._parse_options,
        )
        return list(table.column_names)


class _OtherColumns(ConnectorError):
    """The header of a file differs from that of the others."""


class _CsvReader(LinesReader):
    """The schema is part of the offset: it must not change on replay."""

    advice = "Correct or remove the row, or give a schema that fits it: schema={'name': pl.String}."

    def __init__(
        self, chunks: ChunkReader, on_error: OnError, dialect: _Dialect, header: bool
    ) -> None:
        super().__init__(chunks, on_error)
        self._dialect = dialect
        self._header = header
        self._quoted_newlines = isinstance(chunks, _RowChunkReader)
        self._known_file = ""

    @property
    def offset(self) -> tuple[LinesOffset, pl.Schema]:
        return self._chunks.offset, self._dialect.schema

    def seek(self, offset: tuple[LinesOffset, pl.Schema]) -> None:
        lines, schema = offset
        if schema != self._dialect.schema:
            self._dialect = _Dialect(schema, self._dialect.delimiter, self._quoted_newlines)
        super().seek(lines)

    def parse(self, chunks: list[Chunk]) -> Batch:
        frames = [self._frame(chunk) for chunk in chunks]
        return pl.concat(frames) if len(frames) > 1 else frames[0]

    def _frame(self, chunk: Chunk) -> pl.DataFrame:
        position, data = chunk.position, chunk.data
        if self._header:
            try:
                names = self._first_row(chunk)
            except _OtherColumns as error:
                return self._left_out(chunk, error)
            if position == 0:
                position, data = len(names), data[len(names) :]
        if not data:
            return pl.DataFrame(schema=self._dialect.schema)
        if is_closed(data):
            try:
                return self._dialect.frame(data)
            except pa.ArrowInvalid:
                pass  # A row is at fault: find it.
        return pl.concat(self._sound_rows(chunk.path, position, data))

    def _left_out(self, chunk: Chunk, error: "_OtherColumns") -> pl.DataFrame:
        """Rejects a file with other columns as a whole, chunk by chunk."""
        if self._on_error == "fail":
            raise error
        rows = len(row_ends(chunk.data)) + (not chunk.data.endswith(b"\n"))
        rows -= chunk.position == 0
        if rows:
            place = f"'{chunk.path}', byte {chunk.position}"
            self._rejected.append(Rejected(None, error.message, place, rows))
        return pl.DataFrame(schema=self._dialect.schema)

    def _sound_rows(self, path: str, position: int, data: bytes) -> list[pl.DataFrame]:
        """The rows that fit, found by halving until a piece fits or is a single row."""
        try:
            if not is_closed(data):
                raise pa.ArrowInvalid("a quote is opened and not closed")
            return [self._dialect.frame(data)]
        except pa.ArrowInvalid as error:
            ends = row_ends(data if self._quoted_newlines else data.replace(b'"', b" "))
            inner = ends[ends < len(data)]
            if not len(inner):
                # Without Arrow's row number, which counts from the start of the chunk.
                self.broken(path, position, data, str(error).replace("Row #1: ", ""))
                return [pl.DataFrame(schema=self._dialect.schema)]
        middle = int(inner[len(inner) // 2])
        return [
            *self._sound_rows(path, position, data[:middle]),
            *self._sound_rows(path, position + middle, data[middle:]),
        ]

    def _first_row(self, chunk: Chunk) -> bytes:
        """The header row, which must match the schema; checked once per file."""
        if chunk.position and self._known_file == chunk.path:
            return b""
        start = chunk.data
        if chunk.position:
            try:
                start = start_of(self._chunks.fs, chunk.path, LONGEST_HEADER_BYTES)
            except OSError as error:
                raise ConnectorError(f"cannot read '{chunk.path}' at byte 0: {error}.") from error
        ends = row_ends(start)
        line = start[: ends[0]] if len(ends) else start
        try:
            names = self._dialect.header(line)
        except pa.ArrowInvalid as error:
            raise _OtherColumns(f"'{chunk.path}', line 1: no column names: {error}.") from error
        wanted = list(self._dialect.schema)
        if names != wanted:
            raise _OtherColumns(
                f"'{chunk.path}', line 1: the columns are {', '.join(names)} where "
                f"{', '.join(wanted)} were expected. Give all files the same columns, or exclude "
                "this one from the pattern."
            )
        self._known_file = chunk.path
        return line


class _CsvWriter(ColumnsWriter, PartWriter):
    def __init__(
        self, folder: PartFolder, shard: SinkShard, columns: Columns, delimiter: str, header: bool
    ) -> None:
        super().__init__(folder, shard)
        self._columns = columns
        self._delimiter = delimiter
        self._header = header

    def encode(self, batch: Batch) -> bytes:
        frame = self._columns.settle(batch)
        text = frame.write_csv(
            include_header=self._header and self.starts_a_part, separator=self._delimiter
        )
        return text.encode()
