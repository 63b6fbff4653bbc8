"""Keys and values as a Polars frame and back, exactly or not at all.

A column has one type: an int among floats, a tuple or a user's class would come back as something else,
and a run would resume with that. So what goes into a frame is read back and compared.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl

from everstream.errors import UserError


def framed(items: Sequence[tuple[Any, Any]], owner: str) -> pl.DataFrame:
    """Columns `key` and `value`; for keys that are tuples of one length `key_0`, `key_1` and so on."""
    keys = [key for key, _ in items]
    lengths = {len(key) if isinstance(key, tuple) else None for key in keys}
    width = lengths.pop() if len(lengths) == 1 else None
    if width:
        columns = {f"key_{n}": [key[n] for key in keys] for n in range(width)}
    else:
        columns = {"key": keys}
    columns["value"] = [value for _, value in items]
    return pl.DataFrame([_column(name, values, owner) for name, values in columns.items()])


def unframed(frame: pl.DataFrame, owner: str) -> dict[Any, Any]:
    """Key -> value, from a frame like those of `framed`."""
    names = [name for name in frame.columns if name != "value"]
    numbered = [f"key_{n}" for n in range(len(names))]
    if "value" not in frame.columns or names not in (["key"], numbered) or not names:
        raise UserError(
            f"{owner}: a frame needs the columns 'key' (or 'key_0', 'key_1' and so on) and 'value', "
            f"not {', '.join(map(repr, frame.columns))}."
        )
    columns = [frame.get_column(name).to_list() for name in names]
    keys = columns[0] if names == ["key"] else [*zip(*columns, strict=True)]
    entries = dict(zip(keys, frame.get_column("value").to_list(), strict=True))
    if len(entries) < frame.height:
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UserError(f"{owner}: the frame has the key {twice!r} more than once.")
    return entries


def _column(name: str, values: list[Any], owner: str) -> pl.Series:
    try:
        column = pl.Series(name, values, strict=True)
        again = column.to_list()
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        raise _unfit(name, owner, str(error).partition("\n")[0]) from None
    for value, back in zip(values, again, strict=True):
        if not _same(value, back):
            raise _unfit(name, owner, f"{value!r} would come back as {back!r}")
    return column


def _unfit(name: str, owner: str, why: str) -> UserError:
    return UserError(
        f"{owner} cannot be a frame: the column '{name}' cannot hold it exactly ({why}). Use map."
    )


def _same(one: Any, other: Any) -> bool:
    """Equal, and of equal types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return [*one] == [*other] and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or (one != one and other != other)
