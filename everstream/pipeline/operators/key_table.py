"""A number for each key, found for a whole batch at once: open addressing in NumPy arrays.

A key is represented by two 64-bit codes. For whole numbers, times and booleans the codes are the value and
its kind, so they are exact. For everything else they are two hashes, seeded at random in each process: two
of a thousand million keys share both with a probability of about 1 in 10^21. The table is never saved. It
is built from the keys, which are.
"""

import secrets
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl

from everstream.state.canonical_key import equal_number, row_keys

Codes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_NUMBER, _LARGE, _FRACTION, _NAN, _NULL, _DATE, _DATETIME, _DURATION, _TIME = range(9)
"""Kinds of keys whose value is their first code. Values of one kind are equal if their codes are."""
_TEXTS = (pl.String, pl.Categorical, pl.Enum)
_SEEDS: Final = [secrets.randbits(63) for _ in range(2)]
_MIX: Final = tuple(np.uint64(n) for n in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_SMALLEST: Final = 1 << 12


def key_codes(keys: pl.DataFrame) -> tuple[Codes, Codes]:
    """Two codes for each row: equal rows have equal codes, and others have others."""
    first, *others = (_column_codes(column) for column in keys.get_columns())
    one, two = first
    for more, kind in others:
        one, two = _mix(one) ^ more * _MIX[0], _mix(two ^ _mix(more + _MIX[1])) + kind
    return one, two


def _column_codes(column: pl.Series) -> tuple[Codes, Codes]:
    kind = column.dtype
    if kind in _TEXTS:
        one, two = _hashes(column.cast(pl.String), 0)
    elif kind == pl.Binary:
        one, two = _hashes(column, 1)
    elif kind.is_float():
        one, two = _float_codes(column.cast(pl.Float64).fill_null(0.0).to_numpy())
    elif kind == pl.UInt64:
        one = column.fill_null(0).to_numpy().astype(np.uint64, copy=False)
        two = np.where(one < np.uint64(2**63), _NUMBER, _LARGE).astype(np.uint64)
    elif (kind.is_integer() and kind not in (pl.Int128, pl.UInt128)) or kind == pl.Boolean:
        one = column.cast(pl.Int64).fill_null(0).to_numpy().view(np.uint64)
        two = np.full(len(column), _NUMBER, dtype=np.uint64)
    elif kind.is_temporal():
        of = {pl.Date: _DATE, pl.Datetime: _DATETIME, pl.Duration: _DURATION, pl.Time: _TIME}
        if isinstance(kind, pl.Datetime | pl.Duration):
            column = column.dt.cast_time_unit("us")
        one = column.to_physical().cast(pl.Int64).fill_null(0).to_numpy().view(np.uint64)
        two = np.full(len(column), of[kind.base_type()], dtype=np.uint64)
    elif kind == pl.Struct:
        one, two = key_codes(column.struct.unnest())
    elif kind == pl.Null:
        one = np.zeros(len(column), dtype=np.uint64)
        two = np.full(len(column), _NULL, dtype=np.uint64)
    else:
        return _object_codes(row_keys(column.to_frame()))
    if column.null_count():
        null = column.is_null().to_numpy()
        one, two = np.where(null, np.uint64(0), one), np.where(null, np.uint64(_NULL), two)
    return one, two


def _hashes(column: pl.Series, seed: int) -> tuple[Codes, Codes]:
    one, two = (column.hash(each).to_numpy() for each in _SEEDS)
    # Never one of the small numbers that are kinds.
    return one + np.uint64(seed), two | np.uint64(2**63)


def _float_codes(values: Any) -> tuple[Codes, Codes]:
    """Whole numbers as the integers they equal."""
    whole = (np.abs(values) < 2.0**63) & (np.trunc(values) == values)
    integers = np.where(whole, values, 0.0).astype(np.int64)
    one = np.where(whole, integers.view(np.uint64), values.view(np.uint64))
    two = np.where(whole, _NUMBER, _FRACTION).astype(np.uint64)
    large = (values >= 2.0**63) & (values < 2.0**64)
    if large.any():
        one[large], two[large] = values[large].astype(np.uint64), _LARGE
    nan = np.isnan(values)
    one[nan], two[nan] = 0, _NAN
    return one, two


def _object_codes(keys: Sequence[Any]) -> tuple[Codes, Codes]:
    """Keys of all other types, one by one: Decimals, large numbers and structs."""
    texts: list[str] = []
    one, two = np.zeros(len(keys), np.uint64), np.zeros(len(keys), np.uint64)
    for row, key in enumerate(keys):
        number = equal_number(key) if isinstance(key, Decimal | Fraction) else key
        if number is None or isinstance(number, float):
            code, kind = _column_codes(pl.Series([number]))
            one[row], two[row] = code[0], kind[0]
        elif isinstance(number, int) and -(2**63) <= number < 2**64:
            one[row] = number % 2**64
            two[row] = _NUMBER if number < 2**63 else _LARGE
        elif isinstance(number, int) and abs(number) < 2**1023 and float(number) == number:
            code, kind = _column_codes(pl.Series([float(number)]))
            one[row], two[row] = code[0], kind[0]
        else:
            texts.append(f"{row} {number!r}")
    if texts:
        rows = [int(text.partition(" ")[0]) for text in texts]
        named = pl.Series([text.partition(" ")[2] for text in texts])
        one[rows], two[rows] = _hashes(named, 2)
    return one, two


def _mix(codes: Codes) -> Codes:
    """The finaliser of splitmix64."""
    x = codes ^ codes >> np.uint64(30)
    x = x * _MIX[0]
    x = x ^ x >> np.uint64(27)
    x = x * _MIX[1]
    return np.asarray(x ^ x >> np.uint64(31), dtype=np.uint64)


class KeyTable:
    """Key -> a whole number that was put for it, `absent` for keys that are new."""

    def __init__(self, absent: int) -> None:
        self._absent = absent
        self._resize(_SMALLEST)

    def __len__(self) -> int:
        return self._used

    def places(self, one: Codes, two: Codes) -> Numbers:
        """The place of each key in `values`, with room made for those that are new.

        They are valid until the next call.
        """
        if (self._used + len(one)) * 2 > len(self.values):
            self._make_room(len(one))
        return self._find(one, two)

    def keep(self, live: Any) -> None:
        """When room is needed next, keep only keys whose values `live` finds worth keeping."""
        self._live = live

    def _resize(self, capacity: int) -> None:
        self._used = 0
        self._mask = np.uint64(capacity - 1)
        self._full = np.zeros(capacity, dtype=bool)
        self._one = np.empty(capacity, dtype=np.uint64)
        self._two = np.empty(capacity, dtype=np.uint64)
        self._owner = np.empty(capacity, dtype=np.int64)
        self.values: Numbers = np.full(capacity, self._absent, dtype=np.int64)

    _live: Any = None

    def _make_room(self, more: int) -> None:
        kept = self._full if self._live is None else self._full & self._live(self.values)
        one, two, values = self._one[kept], self._two[kept], self.values[kept]
        capacity = _SMALLEST
        while capacity < 4 * (len(values) + more):
            capacity *= 2
        self._resize(capacity)
        self.values[self._find(one, two)] = values

    def _find(self, one: Codes, two: Codes) -> Numbers:
        found = np.empty(len(one), dtype=np.int64)
        # NumPy indexes faster with signed numbers.
        at = (_mix(one ^ two << np.uint64(1)) & self._mask).view(np.int64)
        mask = int(self._mask)
        rows = np.arange(len(one))
        while len(rows):
            here = at[rows]
            full = self._full[here]
            claiming, claimed = rows[~full], here[~full]
            winners = self.first(claiming, claimed)
            new, places = claiming[winners], claimed[winners]
            self._full[places] = True
            self._one[places], self._two[places] = one[new], two[new]
            self._used += len(new)
            found[new] = places
            rows, here = rows[full], here[full]
            mine = (self._one[here] == one[rows]) & (self._two[here] == two[rows])
            found[rows[mine]] = here[mine]
            taken = rows[~mine]
            at[taken] = (at[taken] + 1) & mask
            rows = np.concatenate([claiming[~winners], taken])
        return found

    def first(self, rows: Numbers, places: Numbers) -> Any:
        """Which of these rows, which ascend, are the first ones at their places."""
        # Of several assignments to one place, NumPy keeps the last.
        self._owner[places[::-1]] = rows[::-1]
        return self._owner[places] == rows
