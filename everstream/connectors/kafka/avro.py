"""Avro values of Kafka records: with the schema given by hand, or by the id in front of each value.

Values that begin with a zero byte and four bytes of schema id are in the wire format of schema
registries; the registry has the schema that a value was written with. A value does not show whether
it is in that format: `registry`, or `framed=True`, declares it.
"""

import base64
import io
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import polars as pl

from everstream.connectors.kafka.formats import Decoder, Values
from everstream.errors import ConnectorError, UserError
from everstream.extras import extra
from everstream.hiding import place_of
from everstream.pipeline.rejects import describe

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

    def column_names(self) -> list[str] | None:
        return None if self._schema is None else list(self._schema)

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
