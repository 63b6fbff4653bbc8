"""From a key to its slot: the position of the key's value in the table's columns.

Slots are handed out in the order keys first appear and never move, so logs can name a
key by its slot once the key itself has been logged. Integers go through a compiled
open-addressing hash table, strings through a dictionary over the distinct values of a batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from everstream.transactions.compiled import kernel

Slots = npt.NDArray[np.int32]
Keys = npt.NDArray[Any]

_SMALLEST = 1024
_PARALLEL_FROM_ROWS = 16_384


@kernel
def _bucket(key: int, mask: int) -> int:
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed >> np.uint64(29)) & np.uint64(mask))  # type: ignore[return-value]


@kernel
def find_slots(
    hashed: Any, slots: Any, wanted: Any, types: Any, kind: int, out: Any, start: int, stop: int
) -> int:
    """Fill `out` with the slots of the rows of type `kind`; -1 and counted where unknown."""
    mask = len(hashed) - 1
    missing = 0
    for row in range(start, stop):
        if types[row] != kind:
            continue
        key = wanted[row]
        at = _bucket(key, mask)
        while slots[at] >= 0 and hashed[at] != key:
            at = (at + 1) & mask
        out[row] = slots[at]
        if slots[at] < 0:
            missing += 1
    return missing


@kernel
def insert_missing(
    hashed: Any,
    slots: Any,
    known: Any,
    count: int,
    wanted: Any,
    types: Any,
    kind: int,
    out: Any,
    start: int,
) -> tuple[int, int]:
    """Give slots to unknown keys from row `start` on; stops when the table must grow first."""
    mask = len(hashed) - 1
    for row in range(start, len(out)):
        if types[row] != kind or out[row] >= 0:
            continue
        key = wanted[row]
        at = _bucket(key, mask)
        while slots[at] >= 0 and hashed[at] != key:
            at = (at + 1) & mask
        if slots[at] < 0:
            if count >= len(known):
                return row, count
            hashed[at] = key
            slots[at] = count
            known[count] = key
            count += 1
        out[row] = slots[at]
    return len(out), count


@kernel
def _insert_slots(hashed: Any, slots: Any, known: Any, start: int, stop: int) -> None:
    mask = len(hashed) - 1
    for slot in range(start, stop):
        at = _bucket(known[slot], mask)
        while slots[at] >= 0:
            at = (at + 1) & mask
        hashed[at] = known[slot]
        slots[at] = slot


class KeyIndex(ABC):
    """Slots of one table's keys. `count` slots are in use; slot numbers are dense."""

    count: int

    @abstractmethod
    def assign(
        self,
        column: pl.Series,
        types: npt.NDArray[np.uint8],
        kind: int,
        out: Slots,
        pool: Executor | None,
        threads: int,
    ) -> None:
        """Set `out` to the slots of the rows of type `kind`, giving new keys new slots."""

    @abstractmethod
    def keys_from(self, slot: int) -> Keys:
        """The keys of the slots from `slot` on, in slot order."""

    @abstractmethod
    def extend(self, keys: Keys) -> None:
        """Give the next slots to `keys`, which must all be unknown."""

    @abstractmethod
    def slot_of(self, key: int | str) -> int | None:
        """The slot of one key, or None."""


class IntegerIndex(KeyIndex):
    def __init__(self) -> None:
        self.count = 0
        self._known = np.zeros(_SMALLEST, np.int64)
        self._hashed = np.zeros(2 * _SMALLEST, np.int64)
        self._slots = np.full(2 * _SMALLEST, -1, np.int32)

    def assign(
        self,
        column: pl.Series,
        types: npt.NDArray[np.uint8],
        kind: int,
        out: Slots,
        pool: Executor | None,
        threads: int,
    ) -> None:
        wanted = column.to_numpy()
        rows = len(wanted)
        parts = threads if pool is not None and rows >= _PARALLEL_FROM_ROWS else 1
        bounds = np.linspace(0, rows, parts + 1).astype(int)

        def find(part: int) -> int:
            start, stop = int(bounds[part]), int(bounds[part + 1])
            return find_slots(self._hashed, self._slots, wanted, types, kind, out, start, stop)

        if parts == 1 or pool is None:
            missing = find(0) if parts == 1 else 0
        else:
            missing = sum(pool.map(find, range(parts)))
        row = 0
        while missing and row < rows:
            row, self.count = insert_missing(
                self._hashed, self._slots, self._known, self.count, wanted, types, kind, out, row
            )
            if row < rows:
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
        wanted = np.array([key], np.int64)
        out = np.full(1, -1, np.int32)
        find_slots(self._hashed, self._slots, wanted, np.zeros(1, np.uint8), 0, out, 0, 1)
        return int(out[0]) if out[0] >= 0 else None


class StringIndex(KeyIndex):
    def __init__(self) -> None:
        self.count = 0
        self._slot_of: dict[str, int] = {}
        self._known: list[str] = []

    def assign(
        self,
        column: pl.Series,
        types: npt.NDArray[np.uint8],
        kind: int,
        out: Slots,
        pool: Executor | None,
        threads: int,
    ) -> None:
        rows = np.flatnonzero(types == kind)
        chosen = column if len(rows) == len(column) else column.gather(rows.astype(np.uint32))
        distinct, codes = _dictionary(chosen.cast(pl.String))
        slots = np.fromiter(map(self._slot_for(), distinct), np.int32, len(distinct))
        out[rows] = slots[codes]

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


def _dictionary(column: pl.Series) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Distinct values in order of first appearance, and each row's position among them."""
    encoded = column.to_arrow().dictionary_encode()
    if hasattr(encoded, "combine_chunks"):
        encoded = encoded.combine_chunks()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)
