"""Records and rows as lines of JSON: whole batches at a time, and what JSON has no form for refused.

msgspec encodes a batch of records in one call; only what it does not take, or might have written as
null, is looked at record by record.
"""

import io
import json
import re
from typing import Any

import msgspec
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.batch import Batch

_JSON: Any = {"allow_nan": False, "separators": (",", ":")}

_NULL = re.compile(b"null")
"""Twice as fast as `in`."""


class JsonEncoder:
    """Turns batches into lines of JSON; a UserError names the operator and shows the record."""

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
        """The same lines, once it is known that what is null in them was None: NaN is null, too."""
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
            if _holds(kind, (pl.Binary, pl.Object)):
                raise UserError(
                    f"operator '{self._operator}': column '{name}' of type {kind} has no JSON "
                    "form. Turn it into text or numbers first, "
                    f"for example .with_columns(pl.col('{name}').bin.encode('base64'))."
                )
        buffer = io.BytesIO()
        batch.write_ndjson(buffer)
        return buffer.getvalue()


def _shown(record: Any) -> str:
    try:
        return repr(record)[:200]
    except RecursionError:
        return f"a {type(record).__name__} that is nested too deeply"


def _plain(value: Any) -> Any:
    """A value of a class that is made from one that has a JSON form."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"Object of type {type(value).__name__} has no JSON form")


def _holds(kind: pl.DataType, refused: tuple[Any, ...]) -> bool:
    """Whether a column type is, or has inside it, one of these."""
    if isinstance(kind, pl.Struct):
        return any(_holds(field.dtype, refused) for field in kind.fields)  # type: ignore[arg-type]
    if isinstance(kind, pl.List | pl.Array):
        return _holds(kind.inner, refused)  # type: ignore[arg-type]
    return kind in refused
