"""State in memory: a dict that tracks its changes.

It keeps track of the keys that may differ from the last durable snapshot, so that the next one can be
small. Two kinds of change in place are not noticed: a part of a value (`store["a"]["inner"]`) that is
kept across captures, so read it through its key again; and a change of Polars and Arrow data, which
count as unchangeable, so `put` a changed frame back.

Changes are kept in layers, one per capture whose outcome is unknown. Only a durable capture drops
layers; a failed one loses nothing. A capture of a large store is saved in slices while the operator
continues (`slicing.py`), so code that changes a value in place must mark its key first. The dict of a
very large store stays unchanged meanwhile, under an overlay (`overlay.py`).
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, ClassVar, Generic, TypeVar, overload

from everstream.errors import InternalError
from everstream.state.backends.files import Frozen, Load, SavedFiles
from everstream.state.backends.overlay import Overlay, depth, fold, pairs
from everstream.state.backends.protocol import StateBackend, StorePart, about_bytes, held_outside
from everstream.state.backends.slicing import (
    Slices,
    StandingSlices,
    Watched,
    can_be_sliced,
    can_stand_still,
)
from everstream.state.freezing import (
    STEADY,
    all_steady,
    freeze,
    freeze_keys,
    is_steady,
    types_within,
)
from everstream.state.migrating import NEVER_CHANGED, Migration, Outdated

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


@dataclass(slots=True)
class Changes:
    """What happened to a store between two captures. Dicts serve as sets that keep their order."""

    dirty: dict[Any, None] = field(default_factory=dict)
    """Keys whose values may have changed, or that are gone if the store has them no longer."""
    deleted: dict[Any, None] = field(default_factory=dict)
    """Keys that were deleted, perhaps to be put back at the end of the order."""
    cleared: bool = False
    """Everything before the other changes was cleared."""
    taken: list[list[Any]] = field(default_factory=list)
    """Keys that were taken out together. They count as dirty, but are looked up only by a capture."""

    def __bool__(self) -> bool:
        return bool(self.dirty or self.deleted or self.cleared or self.taken)

    def copy(self) -> "Changes":
        return Changes(self.dirty.copy(), self.deleted.copy(), self.cleared, [*self.taken])

    @property
    def touched(self) -> dict[Any, None]:
        """All keys whose values may have changed, or that are gone."""
        return {**self.dirty, **dict.fromkeys(chain.from_iterable(self.taken))}

    def extend(self, later: "Changes") -> None:
        """Add the changes that happened after."""
        if later.cleared:
            self.dirty, self.deleted, self.cleared, self.taken = {}, {}, True, []
        for key in later.deleted:
            self.dirty.pop(key, None)
        self.deleted.update(later.deleted)
        self.dirty.update(later.dirty)
        self.taken += later.taken


class MemoryBackend(Generic[K, V]):
    """A dict of an operator's state that tracks its changes.

    >>> counts = MemoryBackend[str, int](init=int)
    >>> counts["apple"] += 1
    >>> counts.get("apple"), counts.get("pear", 0), "pear" in counts
    (1, 0, False)
    """

    saves_files: ClassVar[bool] = False
    __slots__ = (
        *("_bare", "_changes", "_dirty", "_entries", "_held", "_layers", "_migration", "_name"),
        *("_outdated", "_slices", "_types", "init", "version"),
    )

    def __init__(self, init: Callable[[], V] | None = None, name: str = "state") -> None:
        """name: of the operator and its state, for errors."""
        self.init = init
        self._name = name
        self._entries: dict[K, V] = {}
        self._changes = Changes()
        # The same dict as _changes.dirty, one look-up closer.
        self._dirty: dict[Any, None] = self._changes.dirty
        self._held: dict[Any, None] = {}
        """Of the last capture: keys whose value is referenced elsewhere."""
        self._layers: list[tuple[int, Changes]] = []
        self._slices: list[Slices] = []
        self._types: set[type] = set()
        """The types of all values as of the last capture, and perhaps of some that are gone."""
        self._bare = False
        self.version = NEVER_CHANGED.version
        """The version of all values that are not `Outdated`."""
        self._migration = NEVER_CHANGED
        self._outdated = False
        """Whether some values may be `Outdated`."""

    def put(self, key: K, value: V) -> None:
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
        return key in self._entries

    def delete(self, key: K) -> None:
        if key in self._entries:
            del self[key]

    def items(self) -> list[tuple[K, V]]:
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

    __setitem__ = put

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
        return f"MemoryBackend({len(self._entries)} keys)"

    @property
    def entries(self) -> dict[K, V]:
        """The raw dict, for loops over whole batches: the same dict for the store's whole life.

        Code that changes it, or a value in it, must `touch` the keys before the next capture;
        deleted keys too. That may be after the change, so captures of this store are taken in one
        piece from now on; with `changing` they need not be.
        """
        if not self._bare:
            self._bare = True
            for slices in self._slices:
                slices.finish()
            while self.layered:
                self.fold(lambda: 0.0)
        self._migrate_all()
        return self._entries

    def changing(self, keys: Iterable[K]) -> dict[K, V]:
        """The raw dict, to change these keys and their values; drop it afterwards."""
        if self._outdated:
            keys = list(keys)
            self._migrate(key for key in keys if key in self._entries)
        self.touch(keys)
        return self._entries

    def take_out(self, keys: list[K]) -> list[V | None]:
        if self._outdated:
            self._migrate(key for key in keys if key in self._entries)
        if self._slices:  # these save a value before it is changed
            deque(map(self._dirty.__setitem__, keys, repeat(None)), 0)
        else:
            self._changes.taken.append(keys)
        entries = self._entries
        if type(entries) is dict:
            return list(map(entries.pop, keys, repeat(None)))
        return [_popped(entries, key) for key in keys]

    def touch(self, keys: Iterable[K]) -> None:
        self._dirty.update(dict.fromkeys(keys))

    def _migrated(self, key: K, old: Any) -> V:
        """The value under a key that was marked as changed, migrated to the present version."""
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

    # For ShardState.

    def declare(self, migration: Migration) -> bool:
        migration.check_not_before(self.version)
        self._migration = migration
        outdated = self.version < migration.version and bool(self._entries)
        if outdated:
            for key, value in list(pairs(self._entries)):
                if type(value) is not Outdated:
                    self._entries[key] = Outdated(value, self.version)  # type: ignore[assignment]
            self._outdated = True
        self.version = migration.version
        return outdated

    def pairs(self) -> Iterable[tuple[K, V]]:
        return pairs(self._entries)

    @property
    def size_hint(self) -> int:
        return len(self._entries)

    @property
    def memory_hint(self) -> int:
        """Its approximate size in memory, from a few entries."""
        return about_bytes(pairs(self._entries), len(self._entries))

    def adopt(self, other: StateBackend[K, V]) -> None:
        self.load(dict(other.pairs()), other.version)

    def open(self, saved: SavedFiles, load: Load, version: int) -> None:
        """Never called: it saves no files."""
        raise InternalError(f"{self._name} is in memory and cannot open files")

    def remove(self) -> None:
        """There is nothing on the local disk."""

    def capture(self, *, full: bool, in_slices: bool) -> StorePart | None:
        """Everything or the changes, detached from the operator now or in slices."""
        self._held, types = held_outside(self._entries, self._dirty, self._slices)
        self._types |= types
        if full:
            return self._whole(in_slices) if self._entries else None
        if not (self._layers or self._changes):
            return None
        changes, entries = self._unsaved(), self._entries
        if changes.cleared:
            return self._whole(in_slices)
        touched = changes.touched if changes.taken else changes.dirty
        updated = {key: entries[key] for key in touched if key in entries}
        gone = changes.deleted
        if len(updated) < len(touched):
            gone = gone | {key: None for key in touched if key not in entries}
        return self._cut_loose(freeze_keys(gone, self._name), updated, in_slices)

    def _whole(self, in_slices: bool) -> StorePart:
        """The whole store as it is now, or slices of it."""
        if in_slices and not self._bare and can_stand_still(len(self._entries), self._types):
            standing = self._entries
            self._entries = Overlay(standing)
            slices = StandingSlices(standing, self._name, self.end_slices)
            return StorePart(None, slices, slices)
        return self._cut_loose(None, self._entries, in_slices)

    def _cut_loose(self, deleted: Any, entries: dict[K, V], in_slices: bool) -> StorePart:
        """These entries as they are now, or slices of them."""
        # Through `entries` a key may be marked just after its value has changed: too late for slices.
        if in_slices and not self._bare and can_be_sliced(entries):
            own = entries.copy() if entries is self._entries else entries
            slices = Slices(own, self._name, self.end_slices)
            return StorePart(deleted, slices, slices)
        return StorePart(deleted, freeze(entries, self._name))

    @property
    def layered(self) -> int:
        """How many overlays it has that were not folded yet."""
        return depth(self._entries)

    def fold(self, clock_s: Callable[[], float]) -> None:
        """Fold changes into the dict below for a while, unless a capture needs that."""
        if not any(isinstance(s, StandingSlices) and not s.ended for s in self._slices):
            self._entries = fold(self._entries, clock_s)

    def _unsaved(self) -> Changes:
        """All changes since the last durable capture. Not to be modified."""
        if not self._layers:
            return self._changes
        merged = self._layers[0][1].copy()
        for _, layer in self._layers[1:]:
            merged.extend(layer)
        merged.extend(self._changes)
        return merged

    def close_capture(self, sequence: int, part: StorePart | None) -> None:
        """Later changes belong to another layer."""
        slices = part.slices if part is not None else None
        held, self._held = self._held, {}
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
        """These are complete, or no longer needed."""
        if slices in self._slices:
            self._slices.remove(slices)
            if not self._slices:
                changes = self._changes
                self._start_changes(
                    Changes(
                        dict.fromkeys(changes.dirty),
                        changes.deleted,
                        changes.cleared,
                        changes.taken,
                    )
                )

    def mark_durable(self, sequence: int, files: Frozen | None) -> None:
        """The content of this capture need not be saved again."""
        self._layers = [layer for layer in self._layers if layer[0] > sequence]

    def mark_failed(self, sequence: int, files: Frozen | None) -> None:
        """The changes of this capture go into the next one."""
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
            self._entries = {}  # the frozen dict is left to the captures that need it
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


def _popped(entries: dict[K, V], key: K) -> V | None:
    """Remove a key from an overlay, which has no `pop` that knows what is below."""
    if key not in entries:
        return None
    value = entries[key]
    del entries[key]
    return value
