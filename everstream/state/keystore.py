"""The key store: what an operator remembers, as a dict that knows what has changed.

It behaves like a dict and keeps track of the keys that may differ from the last durable
snapshot, so that the next one can be small. A value that can change in place counts as changed
as soon as it is read, and for as long as somebody else still holds it. Two things are beyond
that: a part of a value (`store["a"]["inner"]`) kept across captures, so read it through its key
again; and Polars and Arrow data, which count as unchangeable, so `put` a changed frame back.

Changes are kept in layers, one per capture whose fate is unknown. Only a durable capture drops
layers; a failed one loses nothing. Of a large store a capture is saved in slices while the operator
goes on (`state/slicing.py`), so whoever changes a value in place must say so first. The dict of a
very large one stands still meanwhile, under an overlay (`state/overlay.py`).
"""

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import compress, islice
from typing import Any, Generic, TypeVar, overload

import polars as pl

from everstream.errors import UserError
from everstream.state.freezing import STEADY, all_steady, is_steady, types_within
from everstream.state.key_changes import Changes
from everstream.state.migrating import NEVER_CHANGED, Migration, Outdated
from everstream.state.overlay import Overlay, depth, fold, pairs, times_held
from everstream.state.slicing import Slices, StandingSlices, Watched

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class KeyStore(Generic[K, V]):
    """A dict of an operator's state that tracks its changes.

    >>> counts = KeyStore[str, int](init=int)
    >>> counts["apple"] += 1
    >>> counts.get("apple"), counts.get("pear", 0), "pear" in counts
    (1, 0, False)
    """

    __slots__ = (
        "_bare",
        "_changes",
        "_dirty",
        "_entries",
        "_layers",
        "_migration",
        "_outdated",
        "_slices",
        "_types",
        "init",
        "version",
    )

    def __init__(self, init: Callable[[], V] | None = None) -> None:
        self.init = init
        self._entries: dict[K, V] = {}
        self._changes = Changes()
        # The same dict as _changes.dirty, one look-up closer.
        self._dirty: dict[Any, None] = self._changes.dirty
        self._layers: list[tuple[int, Changes]] = []
        self._slices: list[Slices] = []
        self._types: set[type] = set()
        """Of all values as of the last capture, and perhaps of some that are gone."""
        self._bare = False
        self.version = NEVER_CHANGED.version
        """Of all values that are not `Outdated`."""
        self._migration = NEVER_CHANGED
        self._outdated = False
        """Whether some may be."""

    def put(self, key: K, value: V) -> None:
        """Remember this value under this key."""
        self._entries[key] = value
        self._dirty[key] = None

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """The value under this key, or the default; an unseen key stays unseen."""
        try:
            value = self._entries[key]
        except KeyError:
            return default
        if not STEADY[type(value)]:
            self._dirty[key] = None
            if type(value) is Outdated:
                return self._migrated(key, value)
        return value

    def contains(self, key: K) -> bool:
        """Whether there is a value under this key."""
        return key in self._entries

    def delete(self, key: K) -> None:
        """Forget this key; harmless if it is not there."""
        if key in self._entries:
            del self[key]

    def items(self) -> list[tuple[K, V]]:
        """All keys with their values, as of now: the store may be changed while looping."""
        self._migrate_all()
        items = list(pairs(self._entries))
        if not all_steady(types_within(self._entries.values())):
            unsteady = [key for key, value in items if not STEADY[type(value)]]
            self._dirty.update(dict.fromkeys(unsteady))
        return items

    def keys(self) -> list[K]:
        """All keys, as of now, in the order they were first put."""
        return list(self._entries)

    def clear(self) -> None:
        """Forget everything."""
        self._empty()
        self._start_changes(Changes(cleared=True))

    def __getitem__(self, key: K) -> V:
        try:
            value = self._entries[key]
        except KeyError:
            if self.init is None:
                raise
            value = self._entries[key] = self.init()
            self._dirty[key] = None
            return value
        if not STEADY[type(value)]:
            self._dirty[key] = None
            if type(value) is Outdated:
                return self._migrated(key, value)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._dirty[key] = None

    def __delitem__(self, key: K) -> None:
        del self._entries[key]
        self._dirty.pop(key, None)
        self._changes.deleted[key] = None

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"KeyStore({len(self._entries)} keys)"

    @property
    def entries(self) -> dict[K, V]:
        """The raw dict, for loops over whole batches: the same dict for the store's whole life.

        Whoever changes it, or a value in it, must `touch` the keys before the next capture;
        deleted keys too. That may be after the change, so captures of this store go in one piece
        from now on; with `changing` they need not.
        """
        if not self._bare:
            self._bare = True
            for slices in self._slices:
                slices.finish()
            while self.layered:
                self.fold(_standing)
        self._migrate_all()
        return self._entries

    def changing(self, keys: Iterable[K]) -> dict[K, V]:
        """The raw dict, to change these keys and their values, and to let go of it thereafter."""
        if self._outdated:
            keys = list(keys)
            self._migrate(key for key in keys if key in self._entries)
        self.touch(keys)
        return self._entries

    def touch(self, keys: Iterable[K]) -> None:
        """Mark keys that were changed through `entries`."""
        self._dirty.update(dict.fromkeys(keys))

    def _migrated(self, key: K, old: Any) -> V:
        """The value under a key that was marked as changed, as the program keeps it now."""
        value: V = self._migration(old)
        self._entries[key] = value
        return value

    def _migrate_all(self) -> None:
        if self._outdated:
            self._migrate(self.keys())
            self._outdated = False

    def _migrate(self, keys: Iterable[K]) -> None:
        for key in keys:
            value = self._entries[key]
            if type(value) is Outdated:
                self._dirty[key] = None
                self._migrated(key, value)

    # What follows is for ShardState.

    def declare(self, migration: Migration) -> bool:
        """Keep values of this version from now on; whether there are any that must be migrated."""
        if self.version > migration.version:
            raise UserError(
                f"the values in the checkpoint have version {self.version}, and the program keeps "
                f"those of version {migration.version}: nobody can make older ones of them. Use the "
                "program that wrote them, or go back to a checkpoint from before with `everstream "
                "rewind`."
            )
        self._migration = migration
        outdated = self.version < migration.version and bool(self._entries)
        if outdated:
            for key, value in list(pairs(self._entries)):
                if type(value) is not Outdated:
                    self._entries[key] = Outdated(value, self.version)  # type: ignore[assignment]
            self._outdated = True
        self.version = migration.version
        return outdated

    def look(self) -> dict[K, V]:
        """The raw dict, for one who changes nothing and lets go of it."""
        return self._entries

    def pairs(self) -> Iterable[tuple[K, V]]:
        """All keys with their values, for one who changes nothing."""
        return pairs(self._entries)

    @property
    def size_hint(self) -> int:
        """About how many keys there are; costs nothing."""
        return len(self._entries)

    @property
    def memory_hint(self) -> int:
        """About what it takes in memory, from a few entries."""
        some = list(islice(pairs(self._entries), _SAMPLED))
        if not some:
            return 0
        sampled = sum(_about_bytes(key) + _about_bytes(value) for key, value in some)
        return len(self._entries) * sampled // len(some)

    def adopt(self, other: "KeyStore[K, V]") -> None:
        """Hold what the other one holds, of whichever kind it is, with nothing changed since."""
        self.load(dict(other.pairs()), other.version)

    @property
    def types(self) -> set[type]:
        """The types of all values, and perhaps of some that are gone; see `held_outside`."""
        return self._types

    def stand_still(self) -> dict[K, V]:
        """Everything as it is now, where it is: changes go elsewhere until `fold`."""
        standing = self._entries
        self._entries = Overlay(standing)
        return standing

    @property
    def layered(self) -> int:
        """How often it stood still and was not folded since."""
        return depth(self._entries)

    def fold(self, clock_s: Callable[[], float]) -> None:
        """Bring changes down for a while, unless a capture needs what is below."""
        if not any(isinstance(s, StandingSlices) and not s.ended for s in self._slices):
            self._entries = fold(self._entries, clock_s)

    @property
    def tells_first(self) -> bool:
        """Whether a key is marked before its value changes in place, and not just after."""
        return not self._bare

    def has_changes(self) -> bool:
        """Whether anything may differ from the last durable capture."""
        return bool(self._layers or self._changes)

    def changes(self) -> Changes:
        """All changes since the last durable capture. Not to be modified."""
        if not self._layers:
            return self._changes
        merged = self._layers[0][1].copy()
        for _, layer in self._layers[1:]:
            merged.extend(layer)
        merged.extend(self._changes)
        return merged

    def close_layer(
        self, sequence: int, held: dict[Any, None], slices: Slices | None = None
    ) -> None:
        """The capture with this sequence number was taken just now, with these keys held outside."""
        if slices is not None:
            slices.save(held)
            self._slices.append(slices)
        if self._changes:
            closed = self._changes
            self._start_changes(Changes(dirty=held))
            self._layers.append((sequence, closed))
        elif slices is not None:
            self._start_changes(self._changes)

    def end_slices(self, slices: Slices) -> None:
        """These are whole, or not wanted any more."""
        if slices in self._slices:
            self._slices.remove(slices)
            if not self._slices:
                changes = self._changes
                self._start_changes(
                    Changes(dict.fromkeys(changes.dirty), changes.deleted, changes.cleared)
                )

    def drop_layers(self, sequence: int) -> None:
        """The capture with this number is durable: what it holds need not be sent again."""
        self._layers = [layer for layer in self._layers if layer[0] > sequence]

    def merge_layer(self, sequence: int) -> None:
        """The capture with this number failed: its changes wait for the next one."""
        for position, (number, layer) in enumerate(self._layers):
            if number != sequence:
                continue
            if position + 1 < len(self._layers):
                following, later = self._layers[position + 1]
                layer.extend(later)
                self._layers[position : position + 2] = [(following, layer)]
            else:
                layer.extend(self._changes)
                del self._layers[position]
                self._start_changes(layer)
            return

    def load(self, entries: dict[K, V], version: int = NEVER_CHANGED.version) -> None:
        """Hold exactly these entries, with nothing changed since."""
        self._empty()
        self._entries.update(entries)
        self.version = version
        self._outdated = version > NEVER_CHANGED.version
        self._layers.clear()
        self._slices.clear()
        self._start_changes(Changes(dirty=self._shared_within()))

    def _start_changes(self, changes: Changes) -> None:
        if self._slices:
            changes.dirty = Watched(changes.dirty, self._slices)
        self._changes = changes
        self._dirty = changes.dirty

    def _empty(self) -> None:
        if self.layered:
            self._entries = {}  # what stands still is left to the captures that need it
        else:
            self._entries.clear()
        self._types = set()

    def _shared_within(self) -> dict[Any, None]:
        """Keys whose value is also another key's: a change through one changes both."""
        values = self._entries.values()
        self._types = types_within(values)
        if all_steady(self._types):
            return {}
        times = Counter(map(id, values))
        if len(times) == len(values):
            return {}
        return {
            key: None
            for key, value in self._entries.items()
            if times[id(value)] > 1 and not is_steady(value)
        }

    def held_outside(self) -> dict[Any, None]:
        """Changed keys whose value somebody may still change without reading it again.

        To be asked before a capture makes references of its own.
        """
        entries, dirty = self._entries, self._dirty
        keys: Iterator[Any]
        values: Iterator[Any]
        if 4 * len(dirty) > len(entries) and not self.layered:
            # Going through everything in order is faster than looking that many keys up.
            keys, values = iter(entries), iter(entries.values())
        else:
            # A key that is gone looks like None here, which is steady.
            keys, values = iter(dirty), map(entries.get, dirty)
        held: dict[Any, None] = {}
        while some := list(islice(values, _LOOKED_AT)):
            those, types = islice(keys, _LOOKED_AT), types_within(some)
            self._types |= types
            if all_steady(types):
                deque(those, 0)
                continue
            counts = list(map(sys.getrefcount, some))
            held.update(
                (key, None)
                for key, count in compress(
                    zip(those, counts, strict=True), map(_UNHELD.__lt__, counts)
                )
                if key in dirty
                and key in entries
                and count > _UNHELD - 1 + self._times_held(key)
                and not is_steady(entries[key])
            )
        return held

    def _times_held(self, key: K) -> int:
        """How often the store and its captures refer to the value of this key."""
        value = self._entries[key]
        within = times_held(self._entries, key, value)
        return within + sum(slices.holds(key, value) for slices in self._slices)


def _about_bytes(value: Any) -> int:
    """Of a value and what is in it, two levels deep."""
    if isinstance(value, pl.DataFrame | pl.Series):
        return int(value.estimated_size())
    inner: Iterable[Any] = ()
    if isinstance(value, list | tuple | set | frozenset):
        inner = value
    elif isinstance(value, dict):
        inner = [*value, *value.values()]
    return sys.getsizeof(value) + sum(map(sys.getsizeof, inner))


def _standing() -> float:
    """A clock that ends nothing."""
    return 0.0


def _references_to_an_unheld_value() -> int:
    entries: dict[str, list[int]] = {"key": []}
    values = list(entries.values())
    (references,) = map(sys.getrefcount, values)
    return references


_UNHELD = _references_to_an_unheld_value()
"""By the store itself, and by a list of its values."""
_SAMPLED = 100
"""Entries that stand for all when their size is asked for."""
_LOOKED_AT = 1 << 16
"""Between two lots of so many values other threads get a turn."""
