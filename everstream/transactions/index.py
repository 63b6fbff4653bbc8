"""From a key to its slot: the position of the key's value in the table's columns.

Slots are assigned in the order keys first appear and never move, so logs can name a key by its slot
once the key itself has been logged. Integers use a compiled open-addressing hash table, strings a
dictionary over the distinct values of a batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from everstream.transactions.compiled import kernel
from everstream.transactions.errors import InputError

Slots = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int8]
Keys = npt.NDArray[Any]

_SMALLEST = 1024
_PARALLEL_FROM_ROWS = 16_384


@kernel
def _bucket(key: int, mask: int) -> int:
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed >> np.uint64(29)) & np.uint64(mask))  # type: ignore[return-value]


@kernel
def _place(hashed: Any, slots: Any, key: int, mask: int) -> int:
    """The position of a key in the hash table, or the free position for it."""
    at = _bucket(key, mask)
    while slots[at] >= 0 and hashed[at] != key:
        at = (at + 1) & mask
    return at


@kernel
def _find(
    hashed: Any, slots: Any, wanted: Any, types: Any, position_of: Any, out: Any, span: Any
) -> int:
    """Fill `out` with the slots of known keys; returns how many rows have unknown keys."""
    mask = len(hashed) - 1
    missing = 0
    for row in range(span[0], span[1]):
        position = position_of[types[row]]
        if position >= 0:
            slot = slots[_place(hashed, slots, wanted[row], mask)]
            out[position, row] = slot
            if slot < 0:
                missing += 1
    return missing


@kernel
def _find_or_insert(
    hashed: Any,
    slots: Any,
    known: Any,
    count: int,
    wanted: Any,
    types: Any,
    position_of: Any,
    out: Any,
    start: int,
) -> tuple[int, int]:
    """Fill `out` from row `start` on, assigning slots to new keys; stops when there is no room."""
    mask = len(hashed) - 1
    for row in range(start, len(wanted)):
        position = position_of[types[row]]
        if position < 0 or out[position, row] >= 0:
            continue
        key = wanted[row]
        at = _place(hashed, slots, key, mask)
        if slots[at] < 0:
            if count >= len(known):
                return row, count
            hashed[at] = key
            slots[at] = count
            known[count] = key
            count += 1
        out[position, row] = slots[at]
    return len(wanted), count


@kernel
def _insert_slots(hashed: Any, slots: Any, known: Any, start: int, stop: int) -> None:
    mask = len(hashed) - 1
    for slot in range(start, stop):
        at = _place(hashed, slots, known[slot], mask)
        hashed[at] = known[slot]
        slots[at] = slot


@dataclass(frozen=True)
class Rows:
    """The rows of a batch whose keys are needed, and where their slots go.

    The slot of row r goes to `out[position_of[types[r]], r]`; rows of types whose position is
    negative have no key here.
    """

    types: npt.NDArray[np.uint8]
    position_of: Positions
    out: Slots


class KeyIndex(ABC):
    """Slots of one table's keys. `count` slots are in use; slot numbers are dense."""

    count: int

    @abstractmethod
    def assign(self, column: pl.Series, rows: Rows, pool: Executor | None, threads: int) -> None:
        """Fill in the slots of the keys of these rows; new keys get new slots."""

    @abstractmethod
    def keys_from(self, slot: int) -> Keys:
        """The keys of the slots from `slot` on, in slot order."""

    @abstractmethod
    def extend(self, keys: Keys) -> None:
        """Assign the next slots to `keys`, which must all be unknown."""

    @abstractmethod
    def slot_of(self, key: int | str) -> int | None:
        """The slot of one key, or None."""


class IntegerIndex(KeyIndex):
    def __init__(self) -> None:
        self.count = 0
        self._known = np.zeros(_SMALLEST, np.int64)
        self._hashed = np.zeros(2 * _SMALLEST, np.int64)
        self._slots = np.full(2 * _SMALLEST, -1, np.int32)

    def assign(self, column: pl.Series, rows: Rows, pool: Executor | None, threads: int) -> None:
        wanted = column.to_numpy()
        if wanted.dtype.kind not in "iu":
            raise InputError(f"column {column.name!r} must hold whole numbers, not {column.dtype}")
        if pool is not None and len(wanted) >= _PARALLEL_FROM_ROWS:
            bounds = np.linspace(0, len(wanted), threads + 1).astype(np.int64)
            spans = [bounds[part : part + 2] for part in range(threads)]
            known = (self._hashed, self._slots)
            find = partial(_find, *known, wanted, rows.types, rows.position_of, rows.out)
            if not sum(pool.map(find, spans)):
                return
        row = 0
        while True:
            row, self.count = _find_or_insert(
                self._hashed,
                self._slots,
                self._known,
                self.count,
                wanted,
                rows.types,
                rows.position_of,
                rows.out,
                row,
            )
            if row == len(wanted):
                return
            self._grow(2 * len(self._known))

    def _grow(self, capacity: int) -> None:
        known = np.zeros(capacity, np.int64)
        known[: self.count] = self._known[: self.count]
        self._known = known
        self._hashed = np.zeros(2 * capacity, np.int64)
        self._slots = np.full(2 * capacity, -1, np.int32)
        _insert_slots(self._hashed, self._slots, self._known, 0, self.count)

    def keys_from(self, slot: int) -> Keys:
        return self._known[slot : self.count].copy()

    def extend(self, keys: Keys) -> None:
        total = self.count + len(keys)
        capacity = len(self._known)
        while capacity < total:
            capacity *= 2
        if capacity > len(self._known):
            self._grow(capacity)
        self._known[self.count : total] = keys
        _insert_slots(self._hashed, self._slots, self._known, self.count, total)
        self.count = total

    def slot_of(self, key: int | str) -> int | None:
        mask = len(self._hashed) - 1
        slot = int(self._slots[_place(self._hashed, self._slots, int(key), mask)])
        return slot if slot >= 0 else None


class StringIndex(KeyIndex):
    def __init__(self) -> None:
        self.count = 0
        self._slot_of: dict[str, int] = {}
        self._known: list[str] = []

    def assign(self, column: pl.Series, rows: Rows, pool: Executor | None, threads: int) -> None:
        positions = rows.position_of[rows.types]
        own = np.flatnonzero(positions >= 0)
        chosen = column if len(own) == len(column) else column.gather(own.astype(np.uint32))
        distinct, codes = dictionary(chosen.cast(pl.String))
        slots = np.fromiter(map(self._slot_for(), distinct), np.int32, len(distinct))
        rows.out[positions[own], own] = slots[codes]

    def _slot_for(self) -> Callable[[str], int]:
        slot_of, known = self._slot_of, self._known

        def slot_for(key: str) -> int:
            slot = slot_of.get(key)
            if slot is None:
                slot = slot_of[key] = len(known)
                known.append(key)
                self.count += 1
            return slot

        return slot_for

    def keys_from(self, slot: int) -> Keys:
        return np.array(self._known[slot:], dtype=object)

    def extend(self, keys: Keys) -> None:
        slot_for = self._slot_for()
        for key in keys:
            slot_for(key)

    def slot_of(self, key: int | str) -> int | None:
        return self._slot_of.get(str(key))


def dictionary(column: pl.Series) -> tuple[list[str], npt.NDArray[Any]]:
    """Distinct strings, and each row's position among them."""
    encoded = column.to_arrow()
    if not isinstance(encoded, pa.DictionaryArray):
        encoded = encoded.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.dictionary.to_pylist(), _numbers(encoded.indices)


def _numbers(indices: Any) -> npt.NDArray[Any]:
    """A column of integers. PyArrow's own to_numpy imports pandas first: a third of a second."""
    if indices.null_count:
        return np.array(indices.to_pylist(), np.float64)
    first = indices.offset
    kind = np.dtype(str(indices.type))
    return np.frombuffer(indices.buffers()[1], kind)[first : first + len(indices)]
