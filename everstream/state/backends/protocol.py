"""The protocol of a state backend, for the author of another one.

A backend keeps one named state of one operator in one shard: a mapping from keys to values. It has
two sides. Operators use it as a dict. `ShardState` captures it at an instant, reports the outcome
of the capture, and restores it.

The life of a capture:

1. `capture` returns the part of this store that has to be saved: everything, or the changes since
   the last durable capture. It may raise a UserError, and must not forget any change when it does.
2. `close_capture` follows when all stores of the shard have returned their parts. Changes from now
on
   belong to the next capture.
3. The part is encoded and uploaded by another thread while the operator continues. No later change
   may show in it.
4. `mark_durable` or `mark_failed` follows, in any order with those of other captures. The content
of
   a failed capture goes into the next one.

A value that can change in place (a list, a dict) counts as changed as soon as it is read, and as
long as anything other than the store refers to it: `held_outside` finds those.

To add a backend: write a class with these methods in a module beside `memory.py` and `disk.py`, add its
word to `StateKind` in `pipeline/operator.py`, make it in `ShardState._new_store`, and add it to
`BACKENDS` in `tests/state/test_backends.py`, which runs the same operations against all of them.
"""

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import compress, islice
from typing import Any, ClassVar, Final, Protocol, TypeVar, overload

import polars as pl

from everstream.state.backends.files import Frozen, Load, SavedFiles
from everstream.state.backends.overlay import depth, times_held
from everstream.state.backends.slicing import Slices
from everstream.state.freezing import all_steady, is_steady, types_within
from everstream.state.migrating import FIRST_VERSION, Migration

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

_SAMPLED: Final = 100
"""Entries whose size is taken as the size of all."""
_LOOKED_AT: Final = 1 << 16
"""Values that are checked before other threads get a turn."""


@dataclass(slots=True)
class StorePart:
    """The part of one store in a capture."""

    deleted: Any
    """Pickles as the list of deleted keys; None if the entries are the whole store."""
    entries: Any
    """Pickles as a dict of the changed entries. With `files`, the saved files take its place."""
    slices: Slices | None = None
    """The entries, while they are not detached from the operator."""
    files: Frozen | None = None


class StateBackend(Protocol[K, V]):
    """A dict of an operator's state that can be captured and restored."""

    saves_files: ClassVar[bool]
    """Whether a capture is a list of files (`Part.files`), which `open` reads, or entries."""
    init: Callable[[], V] | None
    """Makes the first value of a missing key that is read with `[]`."""
    version: int
    """The version of the values; see `declare`."""

    # For operators.

    def put(self, key: K, value: V) -> None:
        """Remember this value under this key."""

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...

    def contains(self, key: K) -> bool:
        """Whether there is a value under this key."""

    def delete(self, key: K) -> None:
        """Forget this key; harmless if it is not there."""

    def items(self) -> list[tuple[K, V]]:
        """All keys with their values, as of now: the store may be changed while looping."""

    def keys(self) -> list[K]:
        """All keys, as of now."""

    def clear(self) -> None:
        """Forget everything."""

    def __getitem__(self, key: K) -> V:
        """The value under this key; a missing one is made by `init`, or raises a KeyError."""

    def __setitem__(self, key: K, value: V) -> None: ...
    def __delitem__(self, key: K) -> None: ...
    def __contains__(self, key: object) -> bool: ...
    def __iter__(self) -> Iterator[K]: ...
    def __len__(self) -> int: ...

    @property
    def entries(self) -> dict[K, V]:
        """The raw dict, or a UserError. Code that changes it must `touch` the keys."""

    def changing(self, keys: Iterable[K]) -> dict[K, V]:
        """A raw dict in which these keys may be changed until the end of the batch."""

    def take_out(self, keys: list[K]) -> list[V | None]:
        """Remove these keys, all of them different. Returns their values; None for a missing one.

        The backend may keep the list, which must not be changed afterwards.
        """

    def touch(self, keys: Iterable[K]) -> None:
        """Mark keys that were changed through `entries`."""

    # For inspection.

    def pairs(self) -> Iterable[tuple[K, V]]:
        """All keys with their values, for a reader who changes nothing."""

    @property
    def size_hint(self) -> int:
        """About how many keys there are; costs nothing."""

    @property
    def memory_hint(self) -> int:
        """About how many bytes it takes in memory; costs next to nothing."""

    # For captures.

    def capture(self, *, full: bool, in_slices: bool) -> StorePart | None:
        """The part that has to be saved now; None if there is nothing.

        full: everything, not just the changes since the last durable capture. A backend may always
        return everything. in_slices: it may return `Part.slices`, to be saved little by little.
        """

    def close_capture(self, sequence: int, part: StorePart | None) -> None:
        """The capture with this number has this part: later changes belong to the next one."""

    def mark_durable(self, sequence: int, files: Frozen | None) -> None:
        """This capture is in the store: its content need not be saved again."""

    def mark_failed(self, sequence: int, files: Frozen | None) -> None:
        """This capture will never be durable. files: those that no other capture needs."""

    @property
    def layered(self) -> int:
        """How many captures keep later changes apart; 0 if the backend does not do that."""

    def fold(self, clock_s: Callable[[], float]) -> None:
        """Merge such changes for a while, unless a capture needs them apart."""

    # For restoring.

    def declare(self, migration: Migration) -> bool:
        """Keep values of this version from now on. Returns whether any must be migrated."""

    def load(self, entries: dict[K, V], version: int = FIRST_VERSION) -> None:
        """Hold exactly these entries, with nothing changed since."""

    def open(self, saved: SavedFiles, load: Load, version: int) -> None:
        """Load these files. Changes nothing if one of them cannot be read."""

    def adopt(self, other: "StateBackend[K, V]") -> None:
        """Take over the content of another store, of any kind, with nothing changed since."""

    def remove(self) -> None:
        """Leave nothing on the local disk."""


def held_outside(
    entries: dict[K, V], dirty: dict[Any, None], slices: Collection[Slices] = ()
) -> tuple[dict[Any, None], set[type]]:
    """Changed keys whose value may still change without being read again, and the types of values.

    Call this before a capture refers to the values. slices: captures that do.
    """
    keys: Iterator[Any]
    values: Iterator[Any]
    if 4 * len(dirty) > len(entries) and not depth(entries):
        # Iterating over everything in order is faster than looking up that many keys.
        keys, values = iter(entries), iter(entries.values())
    else:
        # A deleted key looks like None here, which is steady.
        keys, values = iter(dirty), map(entries.get, dirty)
    held: dict[Any, None] = {}
    seen: set[type] = set()
    while some := list(islice(values, _LOOKED_AT)):
        those, types = islice(keys, _LOOKED_AT), types_within(some)
        seen |= types
        if all_steady(types):
            deque(those, 0)
            continue
        counts = list(map(sys.getrefcount, some))
        held.update(
            (key, None)
            for key, count in compress(zip(those, counts, strict=True), map(_UNHELD.__lt__, counts))
            if key in dirty
            and key in entries
            and count > _UNHELD - 1 + _references(entries, key, slices)
            and not is_steady(entries[key])
        )
    return held, seen


def about_bytes(entries: Iterable[tuple[Any, Any]], number: int) -> int:
    """The approximate size of this many entries in memory, from the first few."""
    some = list(islice(entries, _SAMPLED))
    if not some:
        return 0
    return number * sum(_size(key) + _size(value) for key, value in some) // len(some)


def _references(entries: dict[K, V], key: K, slices: Collection[Slices]) -> int:
    """How often a store and its captures refer to the value of this key."""
    value = entries[key]
    return times_held(entries, key, value) + sum(each.holds(key, value) for each in slices)


def _size(value: Any) -> int:
    """Bytes of a value and what is in it, two levels deep."""
    if isinstance(value, pl.DataFrame | pl.Series):
        return int(value.estimated_size())
    inner: Iterable[Any] = ()
    if isinstance(value, list | tuple | set | frozenset):
        inner = value
    elif isinstance(value, dict):
        inner = [*value, *value.values()]
    return sys.getsizeof(value) + sum(map(sys.getsizeof, inner))


def _references_to_an_unheld_value() -> int:
    entries: dict[str, list[int]] = {"key": []}
    values = list(entries.values())
    (references,) = map(sys.getrefcount, values)
    return references


_UNHELD = _references_to_an_unheld_value()
"""References by the store itself, and by a list of its values."""
