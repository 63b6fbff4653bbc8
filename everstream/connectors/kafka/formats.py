"""How the bytes of a Kafka record are decoded: text, JSON, Arrow or Avro, as objects or columns.

A decoder takes the values of a whole batch at once. Only if one of them is broken are they
decoded one by one, to find it.

An Avro value is read with the schema given by hand, or by the id in front of it: values that begin
with a zero byte and four bytes of schema id are in the wire format of schema registries, and the
registry has the schema that a value was written with. A value does not show whether it is in that
format: `registry`, or `framed=True`, declares it.
"""

import base64
import io
import json
import struct
import time
import urllib.error
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Literal, TypeAlias

import msgspec
import polars as pl

from everstream.errors import ConnectorError, UserError
from everstream.extras import extra
from everstream.hiding import place_of
from everstream.pipeline.operators.models import schema_of
from everstream.pipeline.rejects import describe

ValueFormat: TypeAlias = Literal["bytes", "text", "json", "arrow", "avro"]
KeyFormat: TypeAlias = Literal["bytes", "text"]
Values: TypeAlias = list[bytes | None]
BROKEN = (
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    IndexError,
    RecursionError,
    pl.exceptions.PolarsError,
)
"""What decoders raise on malformed bytes."""


class Decoder(ABC):
    """Decodes the values of a batch; a tombstone (no value) is None, or a row of nulls."""

    in_columns = False

    @abstractmethod
    def objects(self, values: Values) -> list[Any]:
        """One object for each."""

    def frame(self, values: Values) -> tuple[pl.DataFrame, list[int] | None]:
        """The rows, and how many each value has if that is not always one."""
        raise NotImplementedError

    def column_types(self) -> Mapping[str, Any] | None:
        """The columns of frames and their types, if they are known."""
        return None

    def fitting(self, values: Values) -> int:
        """How many of these values, from the first on, may be unpacked at once; at least one."""
        return len(values)


class Raw(Decoder):
    """Unchanged; in columns, one named `value`."""

    kind: pl.DataType = pl.Binary()

    def __init__(self, in_columns: bool) -> None:
        self.in_columns = in_columns

    def objects(self, values: Values) -> list[Any]:
        return values

    def frame(self, values: Values) -> tuple[pl.DataFrame, list[int] | None]:
        return pl.DataFrame({"value": self.series(values)}), None

    def series(self, values: Values) -> pl.Series:
        return pl.Series("value", values, dtype=pl.Binary)

    def column_types(self) -> Mapping[str, Any] | None:
        return {"value": self.kind} if self.in_columns else None


class Text(Raw):
    kind = pl.String()

    def objects(self, values: Values) -> list[Any]:
        if None in values:
            return [None if value is None else value.decode() for value in values]
        return list(map(bytes.decode, values))  # type: ignore[arg-type]

    def series(self, values: Values) -> pl.Series:
        return super().series(values).cast(pl.String)


class Json(Decoder):
    def __init__(self, schema: pl.Schema | None) -> None:
        self._schema = schema
        self.in_columns = schema is not None
        self._decode: Callable[[bytes], Any] | None = None

    def objects(self, values: Values) -> list[Any]:
        decode = self._decode = self._decode or msgspec.json.Decoder().decode
        try:
            if None in values:
                return [None if value is None else decode(value) for value in values]
            return list(map(decode, values))  # type: ignore[arg-type]
        except (ValueError, RecursionError):
            # This one also accepts common extensions of JSON: NaN, half surrogate pairs.
            return [None if value is None else json.loads(value) for value in values]

    def frame(self, values: Values) -> tuple[pl.DataFrame, list[int] | None]:
        lines = values
        if None in values:
            lines = [b"{}" if value is None else value for value in values]
        text = b"\n".join(lines)  # type: ignore[arg-type]
        if text.count(b"\n") != len(lines) - 1:
            text = b"\n".join(msgspec.json.format(line, indent=-1) for line in lines if line)
        frame = pl.read_ndjson(io.BytesIO(text), schema=self._schema)
        if frame.height != len(values):
            raise ValueError(f"{len(values)} records have {frame.height} JSON values")
        return frame, None

    def column_types(self) -> Mapping[str, Any] | None:
        return self._schema


class Arrow(Decoder):
    """Each value is a table in Arrow's IPC stream format: its rows are the records.

    most_bytes: the limit on unpacked values, one by one and together.
    """

    in_columns = True

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes

    def fitting(self, values: Values) -> int:
        size = 0
        for place, value in enumerate(values):
            try:
                size += 0 if value is None else unpacked_bytes(value)
            except ValueError:
                continue  # decoding it raises the error
            if size > self._most_bytes and place:
                return place
        return len(values)

    def objects(self, values: Values) -> list[Any]:
        return [row for frame in self._frames(values) for row in frame.iter_rows(named=True)]

    def frame(self, values: Values) -> tuple[pl.DataFrame, list[int] | None]:
        frames = self._frames(values)
        if not frames:
            return pl.DataFrame(), [0] * len(values)
        rows = iter(frames)
        counts = [0 if value is None else next(rows).height for value in values]
        return pl.concat(frames), counts

    def _frames(self, values: Values) -> list[pl.DataFrame]:
        try:
            return [self._frame(value) for value in values if value is not None]
        except OSError as error:
            raise ValueError(str(error)) from error

    def _frame(self, value: bytes) -> pl.DataFrame:
        self._require_room(unpacked_bytes(value), value)
        frame = pl.read_ipc_stream(value)
        # Many rows can share the bytes of one text.
        texts = frame.select(pl.col(pl.String, pl.Categorical).cast(pl.String).str.len_bytes())
        self._require_room(sum(int(column.sum()) for column in texts), value)
        return frame

    def _require_room(self, size_bytes: int, value: bytes) -> None:
        if size_bytes > self._most_bytes:
            raise ValueError(
                f"it has {len(value):,} bytes and unpacks to {size_bytes:,}, more than "
                f"max_record_bytes={self._most_bytes:,}"
            )


def decoder(
    value: ValueFormat,
    columns: bool,
    schema: Mapping[str, Any] | type | None,
    avro: "Avro | None",
    most_bytes: int,
) -> Decoder:
    """The decoder for the values, or a UserError for options that do not fit together."""
    if (value == "avro") != (avro is not None):
        raise UserError('value="avro" and avro=es.Avro(...) must be given together.')
    wanted = schema_of(schema)
    if wanted is not None and value not in ("json", "avro"):
        raise UserError(f'schema={{...}} is for value="json" and "avro"; "{value}" takes none.')
    if columns and wanted is None and value in ("json", "avro"):
        raise UserError(
            f'value="{value}" in columns needs a schema: schema={{"name": pl.String, ...}}. '
            "It must be the same whenever records are read again."
        )
    match value:
        case "bytes":
            return Raw(columns)
        case "text":
            return Text(columns)
        case "json":
            return Json(wanted)
        case "arrow":
            return Arrow(most_bytes)
    if avro is not None:
        return AvroDecoder(avro, wanted)
    raise UserError(f'value={value!r}: use "bytes", "text", "json", "arrow" or "avro".')


def checked_key(key: Any) -> KeyFormat:
    if key not in ("bytes", "text"):
        raise UserError(f'key={key!r}: use "text" or "bytes".')
    chosen: KeyFormat = key
    return chosen


def sound(decode: Callable[[Values], Any], values: Values) -> tuple[list[int], dict[int, str]]:
    """Which of the values can be decoded, and what is wrong with the others."""
    good, broken = list[int](), dict[int, str]()
    for place, value in enumerate(values):
        try:
            decode([value])
            good.append(place)
        except BROKEN as error:
            broken[place] = str(error)
    return good, broken


def column_kinds(key: KeyFormat) -> dict[str, Any]:
    return {
        "key": pl.String() if key == "text" else pl.Binary(),
        "headers": pl.List(pl.Struct({"name": pl.String(), "value": pl.Binary()})),
        "timestamp": pl.Datetime("ms", "UTC"),
        "topic": pl.String(),
        "partition": pl.Int32(),
        "offset": pl.Int64(),
    }


def checked_fields(fields: Sequence[str] | None) -> tuple[str, ...] | None:
    known = ("value", *column_kinds("text"))
    if fields is None:
        return None
    if isinstance(fields, str) or not fields or not set(fields) <= set(known):
        raise UserError(f"fields={fields!r}: give a list of {', '.join(known)}.")
    return tuple(fields)


CONTINUATION: Final = 0xFFFFFFFF
DICTIONARY_BATCH, RECORD_BATCH = 2, 3
SIZE_BYTES: Final = 8
"""Precedes a compressed buffer: its unpacked size, -1 if it is not compressed."""


def unpacked_bytes(stream: bytes) -> int:
    """How much memory a table in Arrow's IPC stream format takes when it is unpacked.

    A compressed buffer begins with its unpacked size, which readers allocate before they unpack,
    and a column of nulls has a length and no buffers: a few bytes can claim gigabytes. Both sizes
    are in the metadata (`Message.fbs` in the Arrow format: little-endian flatbuffers), so they are
    known without unpacking anything. Counts at least one byte for each value. Raises a ValueError
    if this is not an IPC stream.
    """
    try:
        return sum(_batch_bytes(stream, *message) for message in _messages(stream))
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"it is not an Arrow IPC stream: {error}") from error


def _messages(stream: bytes) -> Iterator[tuple["_Table", int]]:
    """The metadata of each message, and where its body begins."""
    at = 0
    while at + 4 <= len(stream):
        (size,) = struct.unpack_from("<I", stream, at)
        at += 4
        if size == CONTINUATION:  # streams from before 2019 do not have it
            (size,) = struct.unpack_from("<I", stream, at)
            at += 4
        if not size:
            return
        (root,) = struct.unpack_from("<I", stream, at)
        message = _Table(stream, at + root)
        at += size
        yield message, at
        at += max(message.number(3, "<q"), 0)


def _batch_bytes(stream: bytes, message: "_Table", body: int) -> int:
    kind = message.number(1, "<B")
    if kind not in (DICTIONARY_BATCH, RECORD_BATCH):
        return 0
    header = message.table(2)
    batch = header.table(1) if kind == DICTIONARY_BATCH and header is not None else header
    if batch is None:
        return 0
    compressed = batch.table(3) is not None
    values = sum(max(length, 0) for length, _ in batch.pairs(1))
    size = 0
    for start, length in batch.pairs(2):
        unpacked = length
        if compressed and length >= SIZE_BYTES:
            (declared,) = struct.unpack_from("<q", stream, body + start)
            unpacked = declared if declared >= 0 else length
        size += max(unpacked, 0)
    return max(size, values)


class _Table:
    """A table of a flatbuffer: the table of offsets it points to locates its fields."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        (back,) = struct.unpack_from("<i", data, at)
        self._offsets = at - back
        (self._size,) = struct.unpack_from("<H", data, self._offsets)

    def _field(self, number: int) -> int | None:
        entry = 4 + 2 * number
        if entry >= self._size:
            return None
        (offset,) = struct.unpack_from("<H", self._data, self._offsets + entry)
        return self._at + offset if offset else None

    def number(self, field: int, kind: str) -> int:
        at = self._field(field)
        return 0 if at is None else int(struct.unpack_from(kind, self._data, at)[0])

    def table(self, field: int) -> "_Table | None":
        at = self._field(field)
        return None if at is None else _Table(self._data, at + self._offset(at))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        at = self._field(field)
        if at is None:
            return []
        at += self._offset(at)
        count = self._offset(at)
        numbers = struct.unpack_from(f"<{2 * count}q", self._data, at + 4)
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def _offset(self, at: int) -> int:
        return int(struct.unpack_from("<I", self._data, at)[0])


HEADER_BYTES = 5
ANSWER_S = 10.0
UNKNOWN_SCHEMA = 40403
"""The error codes of registries for an unknown schema id."""
ASK_AGAIN_S = 10.0
UNKNOWN_AT_MOST = 10_000


@dataclass(frozen=True)
class Avro:
    """How Avro values are read.

    `schema` is the reader's schema (JSON text or the parsed object). With `registry`, the address
    of a schema registry, each value is read with the schema it was written with and converted to
    `schema`, if given. `framed`: the values have the registry's header, but no registry is used.

    >>> orders = es.Avro({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
    >>> source = es.Kafka("localhost:9092", "orders", value="avro", avro=orders)
    """

    schema: str | Mapping[str, Any] | None = None
    registry: str | None = field(default=None, repr=False)
    framed: bool | None = None

    def __post_init__(self) -> None:
        with extra("avro"):
            import fastavro
        if self.schema is None and self.registry is None:
            raise UserError("Avro(...) needs schema=... or registry=..., or both.")
        if self.framed is False and self.registry is not None:
            raise UserError("registry=... needs values with a header, which names the schema.")
        try:
            if self.schema is not None:
                _require_bytes(fastavro.parse_schema(self.parsed()))
        except (fastavro.schema.SchemaParseException, ValueError) as error:
            raise UserError(f"Avro(schema=...) cannot be read: {error}") from None

    def parsed(self) -> Any:
        """The reader's schema as an object."""
        return json.loads(self.schema) if isinstance(self.schema, str) else self.schema

    @property
    def has_header(self) -> bool:
        """Whether values begin with a zero byte and the number of a schema."""
        return self.registry is not None or bool(self.framed)


class AvroDecoder(Decoder):
    """Objects; with a Polars schema, columns made of them."""

    def __init__(self, avro: Avro, schema: pl.Schema | None) -> None:
        self._avro = avro
        self._schema = schema
        self.in_columns = schema is not None
        self._reader_schema: Any = None
        self._writers: dict[int, Any] = {}
        self._unknown: dict[int, tuple[float, str]] = {}
        """Schema id -> until when the registry is not asked again, and its answer."""

    def objects(self, values: Values) -> list[Any]:
        with extra("avro"):
            import fastavro
        if self._avro.schema is not None and self._reader_schema is None:
            self._reader_schema = fastavro.parse_schema(self._avro.parsed())
        given, read = self._reader_schema, fastavro.schemaless_reader
        decoded: list[Any] = []
        for value in values:
            if value is None:
                decoded.append(None)
                continue
            stream = io.BytesIO(value)
            writer = self._writer(value, stream) if self._avro.has_header else given
            try:
                decoded.append(read(stream, writer, given if given is not writer else None))
            except Exception as error:  # of many types, but always about the bytes of this value
                raise ValueError(describe(error)) from error
            if stream.tell() != len(value):
                raise ValueError(f"{len(value) - stream.tell()} bytes are left over")
        return decoded

    def frame(self, values: Values) -> tuple[pl.DataFrame, list[int] | None]:
        rows = [{} if record is None else record for record in self.objects(values)]
        assert self._schema is not None
        return pl.DataFrame(rows, schema=self._schema, strict=True), None

    def column_types(self) -> Mapping[str, Any] | None:
        return self._schema

    def _writer(self, value: bytes, stream: io.BytesIO) -> Any:
        """The schema a value was written with; moves the stream past the header."""
        if len(value) < HEADER_BYTES or value[0]:
            raise ValueError("it does not begin with the header of a schema registry")
        stream.seek(HEADER_BYTES)
        number = int.from_bytes(value[1:HEADER_BYTES], "big")
        if self._avro.registry is None:
            return self._reader_schema
        if number not in self._writers:
            known_until_s, why = self._unknown.get(number, (0.0, ""))
            if time.monotonic() < known_until_s:
                raise ValueError(why)
            try:
                self._writers[number] = fetched_schema(self._avro.registry, number)
            except ValueError as error:
                if len(self._unknown) >= UNKNOWN_AT_MOST:
                    self._unknown.clear()
                self._unknown[number] = (time.monotonic() + ASK_AGAIN_S, str(error))
                raise
        return self._writers[number]


def fetched_schema(registry: str, number: int) -> Any:
    """The schema that a registry has under this id.

    A ValueError if it has none, or one that is not Avro: then the value is wrong. Any other error
    concerns the registry.
    """
    with extra("avro"):
        import fastavro
    parts = urllib.parse.urlsplit(registry)
    try:
        shown = place_of(registry)
    except ValueError:
        raise UserError(
            "the URL of the schema registry is not valid: write it as https://host:8081, with "
            "special characters of user and password percent-encoded (an @ as %40)."
        ) from None
    request = urllib.request.Request(f"{shown.rstrip('/')}/schemas/ids/{number}")
    if parts.username is not None:
        credentials = f"{parts.username}:{parts.password or ''}"
        token = base64.b64encode(urllib.parse.unquote(credentials).encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            body = json.load(answer)
        schema, kind = body["schema"], body.get("schemaType", "AVRO")
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, urllib.error.HTTPError) and _is_unknown(error):
            raise ValueError(f"the schema registry at {shown} has no schema {number}") from None
        why = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else error
        raise ConnectorError(
            f"the schema registry at {shown} does not give schema {number}: {why}. Check that it "
            "runs and that its address, user and password are right."
        ) from None
    try:
        if kind != "AVRO":
            raise ValueError(f"it is of type {kind}")
        parsed = fastavro.parse_schema(json.loads(schema))
        _require_bytes(parsed)
        return parsed
    except (ValueError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise ValueError(
            f"schema {number} of the registry at {shown} is not Avro: {error}"
        ) from None


def _require_bytes(schema: Any) -> None:
    """Raise a ValueError for arrays of items without bytes: a short value can claim any number."""
    _may_be_empty(schema, {})


def _may_be_empty(schema: Any, named: dict[str, bool]) -> bool:
    """Whether a value of this schema can take no byte; `named`: the same for types seen before."""
    match schema:
        case str():
            return schema == "null" or named.get(schema, False)
        case list():  # a union, whose value begins with the number of its type
            for one in schema:
                _may_be_empty(one, named)
            return False
        case {"type": "array", "items": items}:
            if _may_be_empty(items, named):
                raise ValueError(
                    "an array has items that take no bytes, so it can be of any length"
                )
            return False
        case {"type": "map", "values": values}:
            _may_be_empty(values, named)
            return False
        case {"type": "fixed", "name": name, "size": size}:
            named[name] = size == 0
            return named[name]
        case {"type": "record" | "error", "name": name, "fields": fields}:
            named[name] = False  # while its own fields refer to it
            empty = [_may_be_empty(one["type"], named) for one in fields]
            named[name] = all(empty)
            return named[name]
        case {"type": inner} if isinstance(inner, (dict, list)) or inner == "null":
            return _may_be_empty(inner, named)
    return False


def _is_unknown(error: urllib.error.HTTPError) -> bool:
    """Whether a registry reports an unknown schema, rather than an unknown page."""
    if error.code != HTTPStatus.NOT_FOUND:
        return False
    try:
        return bool(json.load(error)["error_code"] == UNKNOWN_SCHEMA)
    except (OSError, ValueError, KeyError, TypeError):
        return False
