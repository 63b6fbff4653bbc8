"""The canonical form of a key: state is kept under it, and it determines the shard of a key.

Two keys are one key if they are equal and hash equally in Python: 1, 1.0, True, `np.int64(1)` and
`Decimal(1)` are. One rule is added: every NaN is one key, as in PostgreSQL and in Polars'
`group_by`, although in Python no NaN equals any other.
"""

import dataclasses
import datetime as dt
import math
import uuid
from collections.abc import Hashable
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import chain
from operator import is_
from typing import Any, Final

import numpy as np
import polars as pl

from everstream.errors import UserError
from everstream.state.saved import NAN

KINDS: Final = (
    "a str, bytes, bool, int, float, Decimal, Fraction, date, datetime, time without a zone, timedelta, "
    "UUID, enum member, None, or a tuple, named tuple or frozen dataclass of these"
)
_AS_THEY_ARE: Final = frozenset({int, str, bytes, bool, type(None)})
_EPOCH: Final = dt.datetime(1970, 1, 1)
_US: Final = dt.timedelta(microseconds=1)
MOST_DIGITS: Final = 10_000
"""The most digits a Decimal may have before the point: more would fill memory."""


def canonical_keys(keys: list[Any]) -> list[Any]:
    """The canonical form of each key; cheap if all of them are already canonical."""
    kinds = set(map(type, keys))
    if tuple in kinds and all(type(key) is tuple for key in keys):
        kinds = set(map(type, chain.from_iterable(keys)))
    if kinds <= _AS_THEY_ARE:
        return keys
    return [*map(canonical_key, keys)]


def canonical_key(key: Any) -> Any:
    """The one key among all equal ones under which state is kept.

    >>> import numpy as np
    >>> canonical_key((np.float64(1.5), "a")), canonical_key(float("nan")) is canonical_key(np.nan)
    ((1.5, 'a'), True)
    """
    kind = type(key)
    if kind in _AS_THEY_ARE:
        return key
    if isinstance(key, tuple):  # also one with names
        parts = [*map(canonical_key, key)]
        return key if all(map(is_, parts, key)) else tuple(parts)
    if isinstance(key, np.generic):
        return canonical_key(_of_python(key))
    if isinstance(key, float):
        return NAN if math.isnan(key) else key
    if isinstance(key, Decimal):
        return NAN if key.is_nan() else key
    return key


def column_keys(column: pl.Series) -> list[Hashable]:
    """The values of a column as keys; a struct gives tuples."""
    if column.dtype == pl.Struct:
        return canonical_keys([*map(_as_tuple, column.to_list())])
    values = column.to_list()
    return canonical_keys(values) if column.dtype.is_float() and _has_nan(column) else values


def row_keys(frame: pl.DataFrame) -> list[Any]:
    """The rows of a frame as keys: tuples, or the values themselves if there is one column."""
    if frame.width == 1:
        return column_keys(frame.to_series())
    rows = frame.rows()
    nan = any(column.dtype.is_float() and _has_nan(column) for column in frame)
    nested = any(column.dtype.is_nested() for column in frame)
    return canonical_keys([*map(_as_tuple, rows)]) if nan or nested else rows


def equal_number(number: Decimal | Fraction) -> int | float | Fraction:
    """The simplest number that is equal to this one: whole, a float, or a fraction."""
    if isinstance(number, Decimal):
        if number.is_nan():
            return NAN
        if number.is_infinite():
            return float(number)
        if number.adjusted() > MOST_DIGITS:
            raise UserError(
                f"a key is the number {number}, which has more than {MOST_DIGITS:,} digits. Use a "
                "smaller number or its text as the key."
            )
        if number.adjusted() < -MOST_DIGITS:
            raise UserError(
                f"a key is the number {number}, whose first digit comes more than "
                f"{MOST_DIGITS:,} places after the point. Use its text as the key."
            )
    exact = Fraction(number)
    if exact.denominator == 1:
        return exact.numerator
    try:
        near = float(exact)
    except OverflowError:
        return exact
    return near if near == exact else exact


def instant(time: dt.date | dt.time | dt.timedelta) -> tuple[str, int]:
    """A date or time as a kind and a number: equal times have equal ones."""
    if isinstance(time, dt.datetime):
        if time.utcoffset() is None:
            return "datetime", (time.replace(tzinfo=None) - _EPOCH) // _US
        return "instant", (time - _EPOCH.replace(tzinfo=dt.UTC)) // _US
    if isinstance(time, dt.date):
        return "date", time.toordinal()
    if isinstance(time, dt.timedelta):
        return "duration", time // _US
    if time.tzinfo is not None:
        raise UserError(
            f"a key is {time!r}, a time of day with a time zone, of which two can be equal on one "
            "day and differ on another. Use a datetime, or a time without a zone."
        )
    return "time", (dt.datetime.combine(_EPOCH, time) - _EPOCH) // _US


def time_at(kind: str, number: int) -> dt.date | dt.time | dt.timedelta:
    """The date or time for which `instant` returns this."""
    match kind:
        case "datetime":
            return _EPOCH + number * _US
        case "instant":
            return _EPOCH.replace(tzinfo=dt.UTC) + number * _US
        case "date":
            return dt.date.fromordinal(number)
        case "duration":
            return number * _US
        case "time":
            return (_EPOCH + number * _US).time()
    raise ValueError(f"no such kind of time: {kind!r}")


def fields_of(key: Any) -> tuple[Any, ...] | None:
    """A UUID, an enum member or a frozen dataclass as a tuple; None for a key of another kind.

    A class counts by its name alone: the same program has it in another module when it is run in
    another way.
    """
    match key:
        case uuid.UUID():
            return ("uuid", key.bytes)
        case Enum():
            return ("enum", type(key).__qualname__, key.name)
    params = getattr(type(key), "__dataclass_params__", None)
    if params is None or not (params.frozen and params.eq):
        return None
    fields = (
        getattr(key, field.name)
        for field in dataclasses.fields(key)
        if (field.compare if field.hash is None else field.hash)
    )
    return ("dataclass", type(key).__qualname__, *fields)


def _of_python(scalar: Any) -> Any:
    """The Python value that equals this NumPy value."""
    if isinstance(scalar, np.datetime64 | np.timedelta64):
        if np.isnat(scalar):
            return None
        whole = scalar.astype(
            "datetime64[us]" if isinstance(scalar, np.datetime64) else "timedelta64[us]"
        )
        value = scalar.item() if np.datetime_data(scalar.dtype)[0] == "D" else whole.item()
        if whole == scalar and not isinstance(value, int):
            return value
    else:
        value = scalar.item()
        if isinstance(value, np.longdouble):
            value = float(value)
        if not isinstance(value, np.generic) and (value == scalar or value != value):
            return value
    raise UserError(
        f"a key is {scalar!r}, and Python has no value that is equal to it: let key_by return "
        "a str, bytes, number, date or datetime."
    )


def _has_nan(column: pl.Series) -> bool:
    return bool(column.is_nan().any())


def _as_tuple(key: Any) -> Any:
    """A compound key from Polars, in a form that can be looked up."""
    if isinstance(key, dict):
        return tuple(map(_as_tuple, key.values()))
    return tuple(map(_as_tuple, key)) if type(key) is tuple else key
