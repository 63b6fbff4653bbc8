"""Snapshots of a shard's state: of one instant, encoded later, full or incremental.

A delta holds every change since the newest capture that was durable when it was taken, whether or
not captures in between have arrived. So it can be applied on top of any capture from that one on,
and chains stay correct however many uploads are under way and in whatever order they end.
"""

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from everstream.errors import CorruptObject, InternalError, UserError
from everstream.state.backends.disk import DiskBackend, DiskSpace, entries_in
from everstream.state.backends.files import Frozen, Load, Put, SavedFiles
from everstream.state.backends.memory import MemoryBackend
from everstream.state.backends.protocol import StateBackend, StorePart
from everstream.state.backends.slicing import Slices
from everstream.state.freezing import pieces_after
from everstream.state.migrating import FIRST_VERSION, Migration
from everstream.state.objects import ObjectRef, check_format

MAGIC: Final = b"EVERSNAP"
VERSION: Final = 2
"""1: all values have the first version of the program, and no version is saved."""
_HEADER = MAGIC + bytes([VERSION])
VERSIONS: Final = "/versions"
"""Among the extras: store -> the version of its values, where it is a later one. With a slash, so
that no operator can have this name."""

CHAIN_LIMIT: Final = 10
"""A restore never reads more objects than this for one shard."""
DELTA_SHARE: Final = 0.5
"""Deltas larger than this share of their full snapshot make the next one full."""
SLICED_LIMIT: Final = 2
"""Captures that are saved in slices at the same time: each holds the changes since."""

Kind: TypeAlias = Literal["full", "delta"]
StoreId: TypeAlias = tuple[str, str]
SavedPart: TypeAlias = tuple[Any, Any]
"""Of one store, as it is pickled: the deleted keys and the changed entries; or None and all entries."""


NO_VERSIONS: Final[Mapping[StoreId, int]] = {}


class CapturedState:
    """The state of one instant, detached from the shard: later changes do not show in it.

    `slices` are the unsaved parts of its large stores; without them it is complete. `frozen` are
    its stores on disk, whose files are put into the store before it is encoded.
    """

    __slots__ = ("_content", "base", "files", "frozen", "kind", "lineage", "sequence", "slices")

    def __init__(
        self,
        kind: Kind,
        sequence: int,
        lineage: int,
        base: tuple[ObjectRef, ...],
        content: tuple[Kind, Mapping[str, Any], dict[StoreId, SavedPart]],
        slices: dict[StoreId, Slices],
        frozen: dict[StoreId, Frozen],
    ) -> None:
        self.kind: Kind = kind
        self.sequence = sequence
        self.lineage = lineage
        self.base = base
        self._content: tuple[Any, ...] | None = content
        self.slices = slices
        self.frozen = frozen
        self.files: tuple[ObjectRef, ...] = ()
        """The objects of its files, once they are saved."""

    @property
    def new_bytes(self) -> int:
        """The size of files that were not in the store before."""
        return sum(frozen.new_bytes for frozen in self.frozen.values())

    def save_files(self, put: Put, prefix: str) -> None:
        """Put the files of stores on disk into the store; from any thread, before `encode`."""
        if self.frozen and self._content is not None:
            saved = {i: frozen.save(put, prefix) for i, frozen in self.frozen.items()}
            self._content[2].update({i: (None, part) for i, part in saved.items()})
            self.files = tuple(ref for part in saved.values() for ref in part.files.values())

    @property
    def whole(self) -> bool:
        return not self.slices

    def encode(self) -> bytes:
        """The bytes to store. Once only, from any thread: the capture releases its content."""
        return b"".join(self.encode_in_pieces())

    def encode_in_pieces(self) -> tuple[bytes, ...]:
        """The same as consecutive pieces; large values in them are not copied."""
        if not self.whole:
            raise InternalError("a capture was encoded before its last slice")
        content, self._content = self._content, None
        if content is None:
            raise InternalError("a capture was encoded twice; keep the bytes for a retry")
        try:
            return pieces_after(_HEADER, content)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f"a checkpoint could not be encoded ({error}). Offsets of sources and "
                "transactions of sinks must be picklable."
            ) from error


@dataclass(frozen=True, slots=True)
class _Base:
    """The newest durable capture, and the objects that restore it."""

    sequence: int
    chain: tuple[ObjectRef, ...]
    full_size_bytes: int
    deltas_size_bytes: int
    files_size_bytes: int

    @classmethod
    def on(cls, sequence: int, chain: tuple[ObjectRef, ...], files: Iterable[ObjectRef]) -> "_Base":
        full, *deltas = (ref.size_bytes for ref in chain)
        return cls(sequence, chain, full, sum(deltas), sum(ref.size_bytes for ref in files))

    def is_used_up(self, deltas_under_way: int) -> bool:
        return (
            len(self.chain) + deltas_under_way >= CHAIN_LIMIT
            or self.deltas_size_bytes > DELTA_SHARE * self.full_size_bytes
        )


class ShardState:
    """All state of one shard: the key stores of its operators, by operator and name.

    Everything but `CapturedState.encode` and `CapturedState.save_files` belongs to the shard's own thread.
    """

    def __init__(self, space: DiskSpace | None = None) -> None:
        """space: where state is kept on disk, and which; without it all state is in memory."""
        self._space = space
        self._stores: dict[StoreId, StateBackend[Any, Any]] = {}
        self._base: _Base | None = None
        self._under_way: dict[int, CapturedState] = {}
        self._sliced: list[CapturedState] = []
        """Captures that are incomplete, oldest first."""
        self._layered: dict[StoreId, StateBackend[Any, Any]] = {}
        """Stores whose dict is frozen under later changes."""
        self._sequence = 0
        # Raised by restore and reset: earlier captures no longer affect what is dirty.
        self._lineage = 0

    def keystore(
        self,
        operator: str,
        name: str,
        init: Callable[[], Any] | None = None,
        migration: Migration | None = None,
    ) -> StateBackend[Any, Any]:
        """The store of this operator with this name; always the same one, also after a restore.

        With a migration, values of earlier versions are wrapped, and the next capture is full.
        """
        store = self._stores.get((operator, name))
        if store is None:
            store = self._stores[operator, name] = self._new_store(operator, name, init)
        elif init is not None:
            store.init = init
        if migration is not None and store.declare(migration):
            self._base = None
        return store

    def has(self, operator: str, name: str) -> bool:
        """Whether there is such a store, from a checkpoint or made since."""
        return (operator, name) in self._stores

    @property
    def keys(self) -> int:
        """The number of keys in all stores together."""
        return sum(store.size_hint for store in self._stores.values())

    @property
    def size_bytes(self) -> int | None:
        """The size of the objects that restore the newest durable capture, if any."""
        base = self._base
        if base is None:
            return None
        return base.full_size_bytes + base.deltas_size_bytes + base.files_size_bytes

    def capture(self, extras: Mapping[str, Any], *, in_slices: bool = False) -> CapturedState:
        """Everything as it is now. `extras` (offsets, transactions) must not change in place.

        With `in_slices` it may be incomplete: then call `save_slice` until it is complete.
        """
        while len(self._sliced) >= SLICED_LIMIT or any(
            store.layered >= SLICED_LIMIT for store in self._layered.values()
        ):
            self.save_slice(lambda: 0.0)
        self._sequence += 1
        base = self._base
        deltas = sum(capture.kind == "delta" for capture in self._under_way.values())
        kind: Kind = "full" if base is None or base.is_used_up(deltas) else "delta"
        parts = self._parts(kind == "full", in_slices)
        # Only when all parts are there: an unpicklable value must not make us forget a change.
        for store_id, store in self._stores.items():
            store.close_capture(self._sequence, parts[store_id])
        chain = base.chain if base is not None and kind == "delta" else ()
        present = {i: part for i, part in parts.items() if part is not None}
        content = (
            kind,
            {**extras, **self._versions()},
            {i: (part.deleted, part.entries) for i, part in present.items()},
        )
        slices = {i: part.slices for i, part in present.items() if part.slices is not None}
        frozen = {i: part.files for i, part in present.items() if part.files is not None}
        capture = CapturedState(kind, self._sequence, self._lineage, chain, content, slices, frozen)
        self._under_way[self._sequence] = capture
        if not capture.whole:
            self._sliced.append(capture)
        return capture

    @property
    def saving(self) -> bool:
        """Whether a capture is incomplete, or the changes since then are kept apart."""
        return bool(self._sliced or self._layered)

    def save_slice(self, clock_s: Callable[[], float]) -> None:
        """Continue the oldest incomplete capture; a UserError if a value cannot be saved.

        When all are complete, the changes since then are folded back into their stores.
        """
        if not self._sliced:
            self._fold(clock_s)
            return
        capture = self._sliced[0]
        store_id, slices = next(iter(capture.slices.items()))
        slices.go_on(clock_s)
        if slices.whole:
            capture.slices.pop(store_id).end()
            if capture.whole:
                del self._sliced[0]

    def _fold(self, clock_s: Callable[[], float]) -> None:
        for store_id, store in self._layered.items():
            store.fold(clock_s)
            if not store.layered:
                del self._layered[store_id]
            return

    def mark_durable(self, capture: CapturedState, ref: ObjectRef) -> tuple[ObjectRef, ...]:
        """This capture is stored under `ref`. Returns the objects that restore it, in order.

        A capture overtaken by a later one builds on what was durable when it was taken.
        """
        if capture.lineage != self._lineage:
            return (*capture.base, ref)
        self._settle(capture)
        base = self._base
        if base is not None and base.sequence > capture.sequence:
            return (*capture.base, ref)
        chain = (ref,) if capture.kind == "full" or base is None else (*base.chain, ref)
        self._base = _Base.on(capture.sequence, chain, capture.files)
        for store_id, store in self._stores.items():
            store.mark_durable(capture.sequence, capture.frozen.get(store_id))
        return chain

    def mark_failed(self, capture: CapturedState) -> None:
        """This capture will never be durable; its content goes into the next one."""
        if capture.lineage != self._lineage:
            return
        self._settle(capture)
        if not capture.whole:
            self._sliced.remove(capture)
            for slices in capture.slices.values():
                slices.end()
        needed = [frozen for other in self._under_way.values() for frozen in other.frozen.values()]
        for store_id, store in self._stores.items():
            files = capture.frozen.get(store_id)
            store.mark_failed(capture.sequence, None if files in needed else files)

    def restore(
        self, objects: Sequence[bytes], chain: Sequence[ObjectRef], load: Load | None = None
    ) -> dict[str, Any]:
        """Restore these snapshots, in order, and return the extras of the last one.

        load: reads objects of the store, where state is kept on disk. Changes nothing if one of the
        snapshots cannot be read.
        """
        if not objects or len(objects) != len(chain):
            raise InternalError(
                f"restore got {len(objects)} objects for {len(chain)} references; "
                "to start from nothing, call reset"
            )
        decoded = [_decode(data, ref.name) for data, ref in zip(objects, chain, strict=True)]
        fulls = [position for position, (kind, _, _) in enumerate(decoded) if kind == "full"]
        if not fulls:
            raise CorruptObject(
                f"the snapshots {', '.join(ref.name for ref in chain)} are all incremental: the "
                "full one they build on is missing. Recover from an older checkpoint."
            )
        entries: dict[StoreId, dict[Any, Any]] = {}
        on_disk: dict[StoreId, SavedFiles] = {}
        for _, _, parts in decoded[fulls[-1] :]:
            for store_id, part in parts.items():
                on_disk.pop(store_id, None)
                if isinstance(part[1], SavedFiles):
                    entries.pop(store_id, None)
                    on_disk[store_id] = part[1]
                else:
                    _apply(part, entries.setdefault(store_id, {}))
        extras = dict(decoded[-1][1])
        self._load(entries, on_disk, load, extras.pop(VERSIONS, {}))
        files = [ref for saved in on_disk.values() for ref in saved.files.values()]
        if all(self._stores[store_id].saves_files for store_id in on_disk):
            self._base = _Base.on(self._sequence, tuple(chain[fulls[-1] :]), files)
        else:
            self._base = None  # kept in memory from now on: the next capture is full
        return extras

    def pairs(self) -> dict[StoreId, Iterable[tuple[Any, Any]]]:
        """All state, by operator and name of the state; for inspection only."""
        return {store_id: store.pairs() for store_id, store in self._stores.items()}

    def full(self) -> set[str]:
        """The operators that keep any state."""
        return {operator for (operator, _), store in self._stores.items() if store}

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Operator -> its keys, and their approximate size in memory."""
        sizes: dict[str, tuple[int, int]] = {}
        for (operator, _), store in self._stores.items():
            keys, about_bytes = sizes.get(operator, (0, 0))
            sizes[operator] = (keys + store.size_hint, about_bytes + store.memory_hint)
        return sizes

    def close(self) -> None:
        """Leave nothing on the local disk."""
        for store in self._stores.values():
            store.remove()

    def beside(self, owner: Callable[[str], str | None]) -> "ShardState":
        """A second one to read a snapshot into; this one then adopts its stores."""
        space = self._space
        if space is None:
            return ShardState()

        def on_disk(saved: str, name: str) -> bool:
            operator = owner(saved)
            return operator is not None and space.on_disk(operator, name)

        return ShardState(replace(space, on_disk=on_disk))

    def adopt(self, other: "ShardState", owner: Callable[[str], str | None]) -> None:
        """Take over the other's stores that have an owner here; the next capture is full."""
        for (saved, name), store in other._stores.items():
            operator = owner(saved)
            if operator is not None:
                self.keystore(operator, name).adopt(store)
        self._base = None

    def reset(self) -> None:
        """Empty every store and start over; the next capture is full."""
        self._load({}, {}, None)
        self._base = None

    def _versions(self) -> dict[str, Any]:
        """The versions to save, if any."""
        later = {i: s.version for i, s in self._stores.items() if s.version > FIRST_VERSION}
        return {VERSIONS: later} if later else {}

    def _load(
        self,
        entries: dict[StoreId, dict[Any, Any]],
        on_disk: dict[StoreId, SavedFiles],
        load: Load | None,
        versions: Mapping[StoreId, int] = NO_VERSIONS,
    ) -> None:
        for store_id in {*entries, *on_disk, *versions}:
            self.keystore(*store_id)
        # First the steps that may fail, with those that change a store last.
        for store_id in sorted(on_disk, key=lambda store_id: self._stores[store_id].saves_files):
            if load is None:
                raise InternalError(
                    f"{_named(store_id)} is on disk, and there is no way to read it"
                )
            store = self._stores[store_id]
            if store.saves_files:
                store.open(on_disk[store_id], load, versions.get(store_id, FIRST_VERSION))
            else:
                entries[store_id] = entries_in(on_disk[store_id], load)
        for store_id, store in self._stores.items():
            if not (store_id in on_disk and store.saves_files):
                store.load(entries.get(store_id, {}), versions.get(store_id, FIRST_VERSION))
        self._under_way.clear()
        self._sliced.clear()
        self._layered.clear()
        self._lineage += 1

    def _new_store(
        self, operator: str, name: str, init: Callable[[], Any] | None
    ) -> StateBackend[Any, Any]:
        space = self._space
        if space is None or not space.on_disk(operator, name):
            return MemoryBackend(init, _named((operator, name)))
        return DiskBackend(Path(space.folder), space.group, _named((operator, name)), init)

    def _parts(self, full: bool, in_slices: bool) -> dict[StoreId, StorePart | None]:
        """The part to save of each store. Files come last, in case another part fails."""
        parts: dict[StoreId, StorePart | None] = {}
        for store_id in sorted(
            self._stores, key=lambda store_id: self._stores[store_id].saves_files
        ):
            store = self._stores[store_id]
            parts[store_id] = store.capture(full=full, in_slices=in_slices)
            if store.layered:
                self._layered[store_id] = store
        return parts

    def _settle(self, capture: CapturedState) -> None:
        if self._under_way.pop(capture.sequence, None) is None:
            raise InternalError(
                f"capture {capture.sequence} was marked durable or failed a second time"
            )


def extras_in(data: bytes, name: str) -> dict[str, Any]:
    """The extras (offsets, transactions) of one snapshot, full or incremental."""
    extras = _decode(data, name)[1]
    return {name: extra for name, extra in extras.items() if name != VERSIONS}


def _named(store_id: StoreId) -> str:
    return f"operator '{store_id[0]}', state '{store_id[1]}'"


def _apply(part: SavedPart, entries: dict[Any, Any]) -> None:
    deleted, updated = part
    if deleted is None:
        entries.clear()
    else:
        for key in deleted:
            entries.pop(key, None)
    entries.update(updated)


def _decode(data: bytes, name: str) -> tuple[Kind, dict[str, Any], dict[StoreId, SavedPart]]:
    if data[: len(MAGIC)] != MAGIC or len(data) <= len(_HEADER):
        raise CorruptObject(f"'{name}' is not a snapshot of Everstream, or was cut short")
    check_format(f"the snapshot '{name}'", data[len(MAGIC)], VERSION)
    try:
        kind, extras, parts = pickle.loads(memoryview(data)[len(_HEADER) :])
    except (AttributeError, ImportError) as error:
        raise UserError(
            f"'{name}' holds values of a class that no longer exists ({error}). Keep it "
            "importable under the same name, or start over with --fresh, which deletes the output."
        ) from error
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, IndexError, KeyError) as error:
        raise CorruptObject(f"'{name}' cannot be decoded ({error!r})") from error
    return kind, extras, parts
