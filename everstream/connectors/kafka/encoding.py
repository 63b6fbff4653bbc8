"""Batches as messages: which part of a record is the key, and how its value is encoded.

Columns are encoded as columns, and Python objects as a batch by their encoder. Only functions
given by the user are called for each record.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import polars as pl

from everstream.connectors.columns import as_frame
from everstream.connectors.files.json_lines import JsonEncoder
from everstream.errors import UserError
from everstream.pipeline.batch import Batch, records_of

KEY, VALUE, TIMESTAMP, HEADER = "key", "value", "timestamp", "header:"
"""Columns of a frame of messages; those of headers begin with the last."""
Function: TypeAlias = Callable[[Any], Any]
WRITTEN = ("json", "text", "bytes", "arrow")
"""The formats of values that can be written."""
MOST_BYTES = 1_000_000
"""The default limit of librdkafka for one message: message.max.bytes."""
OVERHEAD_BYTES = 512
"""The size of a message beyond key, value and headers, generously."""


@dataclass(frozen=True)
class Encoding:
    """How a sink's records become messages."""

    value: str | Function = "json"
    """A format, or a function that turns a record into bytes or text."""
    key_by: str | Function | None = None
    headers: Sequence[str] = ()
    timestamp: str | None = None
    most_bytes: int = MOST_BYTES

    def check(self) -> None:
        if not callable(self.value) and self.value not in WRITTEN:
            raise UserError(
                f"value={self.value!r} cannot be written: use {', '.join(map(repr, WRITTEN))}, or "
                "give a function that turns a record into bytes: encode=..."
            )
        if isinstance(self.headers, str):
            raise UserError(f"headers={self.headers!r} must list columns: [{self.headers!r}].")
        if self.value == "arrow" and (self.key_by is not None or self.headers or self.timestamp):
            raise UserError(
                "value='arrow' puts many rows into one message, which then can have no key, "
                "headers or timestamp of a row. Remove these, or send rows as 'json'."
            )

    def messages(self, batch: Batch, operator: str) -> pl.DataFrame:
        """Key, value and the other parts of each message, as columns."""
        if self.value == "arrow":
            return self._in_arrow(batch, operator)
        made = {VALUE: self._values(batch, operator)}
        if self.key_by is not None:
            keys = taken(batch, self.key_by, operator, "key_by")
            made[KEY] = as_bytes(keys, operator, "key_by")
        if self.timestamp is not None:
            made[TIMESTAMP] = _milliseconds(
                taken(batch, self.timestamp, operator, "timestamp"), operator, self.timestamp
            )
        for name in self.headers:
            head = taken(batch, name, operator, "headers")
            made[HEADER + name] = as_bytes(head, operator, f"headers=[{name!r}]")
        messages = pl.DataFrame(made)
        self._refuse_the_too_large(messages, operator)
        return messages

    def _values(self, batch: Batch, operator: str) -> pl.Series:
        if callable(self.value):
            values = [self.value(record) for record in records_of(batch)]
            return as_bytes(series_of(values, operator, "encode"), operator, "encode")
        if self.value == "json":
            lines = JsonEncoder(operator).encode(batch).split(b"\n")
            return pl.Series(lines[:-1], dtype=pl.Binary)
        return as_bytes(self._single(batch, operator), operator, "value")

    def _single(self, batch: Batch, operator: str) -> pl.Series:
        """The column for text or bytes: the only one, or the one named value."""
        if isinstance(batch, pl.DataFrame):
            used = {self.key_by, self.timestamp, *self.headers}
            names = [name for name in batch.columns if name not in used]
            if VALUE in batch.columns:
                return batch[VALUE]
            if len(names) == 1:
                return batch[names[0]]
            raise UserError(
                f"operator '{operator}': value={self.value!r} takes one column, named 'value' or "
                f"the only one besides key, timestamp and headers, but there are: "
                f"{', '.join(names) or 'none'}."
                " Select one, or send all of them as value='json'."
            )
        if isinstance(batch[0], dict):
            return taken(batch, VALUE, operator, "value")
        return series_of(batch, operator, "value")

    def _refuse_the_too_large(self, messages: pl.DataFrame, operator: str) -> None:
        """Refuses the record here: the client would fail the commit, again and again."""
        sizes = messages.select(
            pl.sum_horizontal(pl.col(pl.Binary).bin.size().fill_null(0)).alias("bytes")
        )["bytes"]
        largest = sizes.max()
        if isinstance(largest, int) and largest + OVERHEAD_BYTES > self.most_bytes:
            raise UserError(
                f"operator '{operator}': a message of {largest} bytes exceeds the limit of "
                f"{self.most_bytes}. Make it smaller before the sink, or raise the limits of "
                "client and topic: options={'message.max.bytes': ...}, and "
                "max.message.bytes of the topic."
            )

    def _in_arrow(self, batch: Batch, operator: str) -> pl.DataFrame:
        """Rows as Arrow streams, as many in each message as fit well."""
        if not isinstance(batch, pl.DataFrame):
            if not isinstance(batch[0], dict):
                raise UserError(
                    f"operator '{operator}': value='arrow' takes rows, not records of type "
                    f"{type(batch[0]).__name__}. Turn them into dicts with a map first."
                )
            batch = as_frame(batch, operator)
        weight = max(1.0, batch.estimated_size() / batch.height)
        rows = max(1, int(self.most_bytes / 2 / weight))
        values = []
        for part in batch.iter_slices(rows):
            stream = io.BytesIO()
            part.write_ipc_stream(stream)
            values.append(stream.getvalue())
        messages = pl.DataFrame({VALUE: pl.Series(values, dtype=pl.Binary)})
        self._refuse_the_too_large(messages, operator)
        return messages


def taken(batch: Batch, what: str | Function, operator: str, option: str) -> pl.Series:
    """One part of each record: a column, the value of a key in dicts, or the result of a function."""
    if callable(what):
        return series_of([what(record) for record in records_of(batch)], operator, option)
    if isinstance(batch, pl.DataFrame):
        if what not in batch.columns:
            raise UserError(
                f"operator '{operator}': there is no column '{what}', which {option} names; there "
                f"are {', '.join(batch.columns)}."
            )
        return batch[what]
    try:
        return series_of([record[what] for record in batch], operator, option)
    except (KeyError, TypeError, IndexError) as error:
        raise UserError(
            f"operator '{operator}': not every record has a '{what}', which {option} names: "
            f"{type(error).__name__} {error}. Give a function instead: {option}=lambda record: ..."
        ) from None


def series_of(values: Sequence[Any], operator: str, option: str) -> pl.Series:
    """Values of one type; text, bytes, integers and booleans may be mixed."""
    kinds = {type(value) for value in values} - {type(None)}
    if len(kinds) > 1 and kinds <= {str, bytes, int, bool}:
        values = [_in_bytes(value) for value in values]
    try:
        return pl.Series(values, dtype=None if kinds else pl.Binary)
    except (TypeError, pl.exceptions.PolarsError) as error:
        raise UserError(
            f"operator '{operator}': {option} must be of one type, text, bytes or numbers: {error}."
        ) from None


def _in_bytes(value: str | bytes | int | None) -> bytes | None:
    """As `as_bytes` has it."""
    if value is None or isinstance(value, bytes):
        return value
    return (str(value).lower() if isinstance(value, bool) else str(value)).encode()


def as_bytes(values: pl.Series, operator: str, option: str) -> pl.Series:
    """Text as UTF-8, integers and booleans as text, bytes unchanged; None stays None."""
    kind = values.dtype
    if kind == pl.Binary:
        return values
    if kind == pl.String:
        return values.cast(pl.Binary)
    if kind.is_integer() or kind in (pl.Boolean, pl.Null, pl.Categorical) or kind == pl.Enum:
        return values.cast(pl.String).cast(pl.Binary)
    raise UserError(
        f"operator '{operator}': {option} must be text, bytes or whole numbers, not {kind}. Convert "
        "it before the sink, or give a function that does."
    )


def _milliseconds(values: pl.Series, operator: str, column: str) -> pl.Series:
    if isinstance(values.dtype, pl.Datetime):
        return values.dt.epoch("ms")
    if values.dtype.is_integer():
        return values.cast(pl.Int64)
    raise UserError(
        f"operator '{operator}': timestamp='{column}' must be a {datetime.__name__} or milliseconds "
        f"since 1970, not {values.dtype}."
    )
