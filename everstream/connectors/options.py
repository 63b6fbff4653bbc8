"""Options that several connectors take: sizes, and keys made of a row's columns."""

from typing import Final

import polars as pl

from everstream.errors import UserError

MAX_RECORD_BYTES: Final = 64 << 20
"""Default limit on the size of one record of a source."""


def at_least_one(**sizes: int) -> None:
    """Raise a UserError for a size below 1, given under the name the user knows."""
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"{name} must be at least 1, not {size}.")


class KeyTemplate:
    """How a row's key is made: `user:{id}`, or the name of a column."""

    def __init__(self, key: str) -> None:
        self.text = key if "{" in key else f"{{{key}}}"
        pieces = self.text.replace("}", "{").split("{")
        self.columns = pieces[1::2]
        if len(pieces) % 2 == 0 or not self.columns or not all(self.columns):
            raise UserError(
                f"key={key!r} is not a template: name columns in braces, as in 'user:{{id}}', or give "
                "the name of one column."
            )
        self._format = "{}".join(pieces[0::2])

    def of(self, frame: pl.DataFrame, operator: str) -> pl.Series:
        missing = [name for name in self.columns if name not in frame.columns]
        if missing:
            raise UserError(
                f"{operator}: records have no {', '.join(missing)}, which key='{self.text}' names; "
                f"they have {', '.join(frame.columns)}."
            )
        keys = frame.select(
            pl.format(self._format, *(pl.col(name) for name in self.columns)).alias("key")
        )["key"]
        if keys.null_count():
            row = frame.filter(keys.is_null()).row(0, named=True)
            raise UserError(
                f"{operator}: a record has no value for key='{self.text}': {repr(row)[:200]}. "
                "Leave such records out with a filter before it."
            )
        return keys
