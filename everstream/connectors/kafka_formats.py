"""What the bytes of a Kafka record mean: text, JSON, Arrow or Avro, as objects or as columns.

A decoder takes the values of a whole batch at once. Only when one of them is broken are they
looked at one by one, to find it.
"""

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import polars as pl

from everstream.errors import UserError

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
"""What decoders raise on bytes that are not what they should be."""


class Decoder(ABC):
    """The values of a batch; a record without one (a tombstone) is None, or a row of nulls."""

    in_columns = False

    @abstractmethod
    def objects(self, values: Values) -> list[Any]:
        """One object for each."""

    def frame(self, values: Values) -> tuple[pl.DataFrame, list[int] | None]:
        """The rows, and how many each value has if that is not one."""
        raise NotImplementedError

    def column_names(self) -> list[str] | None:
        return None


class Raw(Decoder):
    """As they are; in columns, one named `value`."""

    def __init__(self, in_columns: bool) -> None:
        self.in_columns = in_columns

    def objects(self, values: Values) -> list[Any]:
        return values

    def frame(self, values: Values) -> tuple[pl.DataFrame, list[int] | None]:
        return pl.DataFrame({"value": self.series(values)}), None

    def series(self, values: Values) -> pl.Series:
        return pl.Series("value", values, dtype=pl.Binary)

    def column_names(self) -> list[str] | None:
        return ["value"] if self.in_columns else None


class Text(Raw):
    def objects(self, values: Values) -> list[Any]:
        if None in values:
            return [None if value is None else value.decode() for value in values]
        return list(map(bytes.decode, values))  # type: ignore[arg-type]

    def series(self, values: Values) -> pl.Series:
        return super().series(values).cast(pl.String)


class Json(Decoder):
    """Parsed; with a schema, in columns."""

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
            # This one also takes what is no JSON but often written: NaN, halves of surrogate pairs.
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

    def column_names(self) -> list[str] | None:
        return None if self._schema is None else list(self._schema)


class Arrow(Decoder):
    """Each value is a table in Arrow's IPC stream format: its rows are the records."""

    in_columns = True

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
            return [pl.read_ipc_stream(value) for value in values if value is not None]
        except OSError as error:
            raise ValueError(str(error)) from error


def decoder(
    value: ValueFormat,
    columns: bool,
    schema: Mapping[str, Any] | None,
    avro: Callable[[pl.Schema | None], Decoder],
) -> Decoder:
    """What reads the values, or a UserError for options that do not fit each other."""
    wanted = pl.Schema(schema) if schema is not None else None
    if wanted is not None and value not in ("json", "avro"):
        raise UserError(f'schema={{...}} is for value="json" and "avro"; "{value}" needs none.')
    if columns and wanted is None and value in ("json", "avro"):
        raise UserError(
            f'value="{value}" in columns needs to know them: schema={{"name": pl.String, ...}}. '
            "They must be the same whenever records are read again."
        )
    match value:
        case "bytes":
            return Raw(columns)
        case "text":
            return Text(columns)
        case "json":
            return Json(wanted)
        case "arrow":
            return Arrow()
        case "avro":
            return avro(wanted)
    raise UserError(f'value={value!r}: say "bytes", "text", "json", "arrow" or "avro".')


def checked_key(key: Any) -> KeyFormat:
    if key not in ("bytes", "text"):
        raise UserError(f'key={key!r}: say "text" or "bytes".')
    chosen: KeyFormat = key
    return chosen


def sound(decode: Callable[[Values], Any], values: Values) -> tuple[list[int], dict[int, str]]:
    """Which of the values can be read by themselves, and what is wrong with the others."""
    good, broken = list[int](), dict[int, str]()
    for place, value in enumerate(values):
        try:
            decode([value])
            good.append(place)
        except BROKEN as error:
            broken[place] = str(error)
    return good, broken


def column_kinds(key: KeyFormat) -> dict[str, Any]:
    """The columns that a record has besides its value."""
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
