"""JSON, one value per line: `JsonLines` reads such files as a source and writes them as a sink.

As a source it shares the splitting of text files; as a sink it shares the part files of `parts`.
It can read again what it wrote.
"""

import io
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from everstream.connectors.columns import is_made_of
from everstream.connectors.files.connector import FileConnector
from everstream.connectors.files.layout import FileLayout
from everstream.connectors.files.lines import Chunk, ChunkReader, LinesReader, split_lines
from everstream.connectors.files.parts import PartFolder, PartWriter
from everstream.connectors.files.ranges import LinesOffset
from everstream.connectors.options import MAX_RECORD_BYTES, at_least_one
from everstream.connectors.refusing import encoded_or_refused
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.rejects import OnError
from everstream.pipeline.sink import SinkShard, Writer
from everstream.pipeline.source import Reader


class JsonLines(FileConnector[Any]):
    """Files with one JSON value per line.

    As a source, `path` names a file, a folder or a pattern, and records are the parsed values.
    With `schema` (a Polars schema) or `columns=True` (the schema is inferred from the start of the
    first file) batches are DataFrames. Blank lines are ignored. With `follow=True` the source
    never ends: complete files that appear later are read too. `on_error` sets what happens to
    lines that are not JSON, do not fit the schema, or are longer than `max_record_bytes` (default
    64 MB).

    As a sink, `path` names a folder. Output is exactly-once: one part file per shard and
    checkpoint, which appears whole when its checkpoint is stable. Dates, times, UUIDs and decimals
    are written as text, bytes as base64, sets as lists, enums by value, dataclasses as objects.
    NaN and infinity have no JSON form and are refused.

    `roll_bytes` ("128MB") ends a part that has that size, and begins another. `partition_by` writes
    the rows of each value of some columns to a folder of their own, as Hive does
    (`day=2026-03-01/`). `prefix` begins the names of the files.

    >>> words = es.Pipeline("write").source(es.FromList([{"word": "to"}, {"word": "be"}]))
    >>> _ = words.sink(es.JsonLines("words/")).run()
    >>> es.Pipeline("read").source(es.JsonLines("words/")).collect().run().collected()
    [{'word': 'to'}, {'word': 'be'}]
    """

    ending = ".jsonl"
    sink_options = frozenset({"roll_bytes", "partition_by", "prefix"})
    source_options = frozenset(
        {"schema", "columns", "batch_bytes", "max_record_bytes", "follow", "on_error"}
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: Mapping[str, Any] | type | None = None,
        columns: bool = False,
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
        layout = FileLayout.of(roll_bytes, partition_by, prefix)
        super().__init__(path, schema, follow, on_error, storage_options, layout)
        self._columns = columns or schema is not None
        self._batch_bytes = self._smallest_split_bytes = batch_bytes
        self._most_bytes = max_record_bytes

    def _open_writer(self, shard: SinkShard) -> Writer:
        folder = self._part_folder()
        return self._writer(lambda: _JsonWriter(folder, shard))

    def _learn_schema(self) -> None:
        if self._columns:
            self._schema = self._inferred_schema()

    def _open_reader(self, shard: int, shards: int) -> Reader:
        chunks = self._files.reader(shard, shards, self._batch_bytes, self._most_bytes)
        if not self._columns:
            return _JsonReader(chunks, self.on_error)
        return _ColumnsReader(chunks, self.on_error, self._schema or self._inferred_schema())

    def _inferred_schema(self) -> pl.Schema:
        """The schema of the first lines; the same for every shard, whichever splits it has."""
        chunks = self._files.reader(0, 1, self._batch_bytes, self._most_bytes)
        try:
            first = b"".join(_ended(c.data) for c in chunks.read() if not c.long_bytes)
            if not first.strip():
                raise UserError(
                    f"'{self._path}' has no lines to infer the columns from. "
                    "Give them: schema={'name': pl.String, ...}."
                )
            return pl.read_ndjson(io.BytesIO(first), infer_schema_length=None).schema
        except pl.exceptions.PolarsError as error:
            raise UserError(
                f"cannot infer the columns of '{self._path}' from its first lines: {error}. "
                "Give them: schema={'name': pl.String, ...}."
            ) from error
        finally:
            chunks.close()


def _ended(data: bytes) -> bytes:
    return data if data.endswith(b"\n") else data + b"\n"


class _JsonReader(LinesReader):
    def __init__(self, chunks: ChunkReader, on_error: OnError) -> None:
        super().__init__(chunks, on_error)
        self._decode = msgspec.json.Decoder().decode
        self._decode_leniently = json.JSONDecoder().decode
        """Also accepts common extensions of JSON: NaN, and half surrogate pairs."""

    def parse(self, chunks: list[Chunk]) -> Batch:
        decode, records = self._decode, list[Any]()
        for chunk in chunks:
            try:
                lines = chunk.data.split(b"\n")
                parsed = [decode(line) for line in lines if line and not line.isspace()]
            except (ValueError, RecursionError):
                sound = self._sound_lines(chunk)
                parsed = [self._decode_leniently(line.decode()) for line in sound]
            records += parsed
        return records

    def check_line(self, line: bytes) -> None:
        self._decode_leniently(line.decode())

    def _sound_lines(self, chunk: Chunk) -> list[bytes]:
        """The lines of a chunk that can be parsed; the others are rejected, or raise."""
        sound, position = [], chunk.position
        for line in split_lines(chunk.data):
            try:
                if line.strip():
                    self.check_line(line)
                    sound.append(line)
            except (ValueError, RecursionError, pl.exceptions.PolarsError) as error:
                self.broken(chunk.path, position, line, str(error))
            position += len(line)
        return sound


class _ColumnsReader(_JsonReader):
    """Batches are DataFrames. The schema is part of the offset: it must not change on replay."""

    advice = (
        "Correct or remove the line, or give a schema that fits it: schema={'name': pl.Float64, "
        "...}."
    )

    def __init__(self, chunks: ChunkReader, on_error: OnError, schema: pl.Schema) -> None:
        super().__init__(chunks, on_error)
        self._schema = schema

    @property
    def offset(self) -> tuple[LinesOffset, pl.Schema]:
        return self._chunks.offset, self._schema

    def seek(self, offset: tuple[LinesOffset, pl.Schema]) -> None:
        lines, self._schema = offset
        super().seek(lines)

    def parse(self, chunks: list[Chunk]) -> Batch:
        try:
            return self._frame(b"".join(_ended(chunk.data) for chunk in chunks))
        except pl.exceptions.PolarsError:
            sound = [_ended(line) for chunk in chunks for line in self._sound_lines(chunk)]
        if not sound:
            return []
        try:
            return self._frame(b"".join(sound))
        except pl.exceptions.PolarsError as error:
            raise ConnectorError(
                f"'{chunks[0].path}', from byte {chunks[0].position}: the lines can be parsed one "
                f"by one but not together: {error}. Give the columns with schema={{...}}."
            ) from error

    def check_line(self, line: bytes) -> None:
        self._frame(line)

    def _frame(self, data: bytes) -> pl.DataFrame:
        return pl.read_ndjson(io.BytesIO(data), schema=self._schema)


class _JsonWriter(PartWriter):
    def __init__(self, folder: PartFolder, shard: SinkShard) -> None:
        super().__init__(folder, shard)
        self._encoder = JsonEncoder(shard.operator)

    def encode(self, batch: Batch) -> bytes:
        return encoded_or_refused(batch, self._encoder.encode, self._shard.operator)


_JSON: Any = {"allow_nan": False, "separators": (",", ":")}

_NULL = re.compile(b"null")
"""Twice as fast as `in`."""


class JsonEncoder:
    """Turns batches into lines of JSON; a UserError names the operator and shows the record.

    msgspec encodes a batch in one call. Only records that it refuses, or might have written as
    null, are checked one by one.
    """

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._encode_lines = msgspec.json.Encoder(enc_hook=_plain).encode_lines
        self._readable = json.JSONEncoder(**_JSON, ensure_ascii=False).encode
        self._ascii = json.JSONEncoder(**_JSON).encode

    def encode(self, batch: Batch) -> bytes:
        if isinstance(batch, pl.DataFrame):
            return self._encode_columns(batch)
        try:
            encoded: bytes = self._encode_lines(batch)
        except (TypeError, ValueError, RecursionError):
            return b"".join([self._encode_carefully(record) for record in batch])
        return self._without_losses(batch, encoded) if _NULL.search(encoded) else encoded

    def _without_losses(self, batch: list[Any], encoded: bytes) -> bytes:
        """The same lines, after checking that every null in them was None: NaN becomes null, too."""
        lines = encoded.splitlines(keepends=True)
        for number, line in enumerate(lines):
            if b"null" in line:
                lines[number] = self._encode_carefully(batch[number])
        return b"".join(lines)

    def _encode_carefully(self, record: Any) -> bytes:
        try:
            plain = msgspec.to_builtins(record, enc_hook=_plain)
            try:
                return f"{self._readable(plain)}\n".encode()
            except UnicodeEncodeError:
                # Half a surrogate pair has no UTF-8 form, but JSON can escape it.
                return f"{self._ascii(plain)}\n".encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(
                f"operator '{self._operator}': a record cannot be written as JSON: {error}\n"
                f"  record: {_shown(record)}\n"
                "Turn it into dicts, lists, str, int, float, bool or None with a map before "
                "the sink: .item() for numpy values, None for NaN."
            ) from None

    def _encode_columns(self, batch: pl.DataFrame) -> bytes:
        for name, kind in batch.schema.items():
            if is_made_of(kind, pl.Binary, pl.Object):
                raise UserError(
                    f"operator '{self._operator}': column '{name}' of type {kind} has no JSON "
                    "form. Turn it into text or numbers first, "
                    f"for example .with_columns(pl.col('{name}').bin.encode('base64'))."
                )
        buffer = io.BytesIO()
        batch.write_ndjson(buffer)
        encoded = buffer.getvalue()
        if _NULL.search(encoded):
            self._refuse_not_finite(batch)
        return encoded

    def _refuse_not_finite(self, batch: pl.DataFrame) -> None:
        """Polars writes NaN and infinity as null, which is a different value."""
        for column in batch.iter_columns():
            if column.dtype.is_float():
                whole = bool(column.is_finite().all())
            elif is_made_of(column.dtype, pl.Float32, pl.Float64):
                whole = all(map(_is_finite, column.to_list()))
            else:
                continue
            if not whole:
                raise UserError(
                    f"operator '{self._operator}': column '{column.name}' has NaN or an infinity, "
                    "which JSON cannot express. Replace it before the sink, for example "
                    f".with_columns(pl.col('{column.name}').fill_nan(None))."
                )


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _shown(record: Any) -> str:
    try:
        return repr(record)[:200]
    except RecursionError:
        return f"a {type(record).__name__} that is nested too deeply"


def _plain(value: Any) -> Any:
    """A value of a subclass of a type that has a JSON form."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"Object of type {type(value).__name__} has no JSON form")
