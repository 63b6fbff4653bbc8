"""Snapshots of a shard's state: of one instant, encoded later, full or incremental.

A delta holds every change since the newest capture that was durable when it was taken, whether
or not captures in between have arrived. So it can be laid on top of any capture from that one
on, and chains stay right however many uploads are under way and in whatever order they end.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from everstream.errors import CorruptObject, InternalError, StoreError, UserError
from everstream.state.freezing import freeze, freeze_keys, pieces_after
from everstream.state.keystore import KeyStore
from everstream.state.objects import ObjectRef
from everstream.state.slicing import Slices, StandingSlices, can_be_sliced, can_stand_still

MAGIC: Final = b"EVERSNAP"
VERSION: Final = 1
_HEADER = MAGIC + bytes([VERSION])

CHAIN_LIMIT: Final = 10
"""A restore never reads more objects than this for one shard."""
DELTA_SHARE: Final = 0.5
"""Deltas worth more than this part of their full snapshot make the next one full."""
SLICED_LIMIT: Final = 2
"""Captures that are saved in slices at the same time: each holds what has changed since."""

Kind: TypeAlias = Literal["full", "delta"]
StoreId: TypeAlias = tuple[str, str]
_Part: TypeAlias = tuple[Any, Any]
"""Of one store: the deleted keys and the changed entries; or None and all entries."""


class Capture:
    """The state of one instant, cut loose from the shard: later changes do not show in it.

    `slices` are what is still to be saved of its large stores; without them it is whole.
    """

    __slots__ = ("_content", "base", "kind", "lineage", "sequence", "slices")

    def __init__(
        self,
        kind: Kind,
        sequence: int,
        lineage: int,
        base: tuple[ObjectRef, ...],
        content: tuple[Kind, Mapping[str, Any], dict[StoreId, _Part]],
        slices: dict[StoreId, Slices],
    ) -> None:
        self.kind: Kind = kind
        self.sequence = sequence
        self.lineage = lineage
        self.base = base
        self._content: tuple[Any, ...] | None = content
        self.slices = slices

    @property
    def whole(self) -> bool:
        return not self.slices

    def encode(self) -> bytes:
        """The bytes to store. Once only, from any thread: the capture lets go of its content."""
        return b"".join(self.encode_in_pieces())

    def encode_in_pieces(self) -> tuple[bytes, ...]:
        """The same as pieces that follow each other; large values in them are not copied."""
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
    """The newest durable capture, and what it takes to restore it."""

    sequence: int
    chain: tuple[ObjectRef, ...]
    full_size_bytes: int
    deltas_size_bytes: int

    @classmethod
    def on(cls, sequence: int, chain: tuple[ObjectRef, ...]) -> "_Base":
        return cls(sequence, chain, chain[0].size_bytes, sum(ref.size_bytes for ref in chain[1:]))

    def is_used_up(self, deltas_under_way: int) -> bool:
        return (
            len(self.chain) + deltas_under_way >= CHAIN_LIMIT
            or self.deltas_size_bytes > DELTA_SHARE * self.full_size_bytes
        )


class ShardState:
    """All state of one shard: the key stores of its operators, by operator and name.

    Everything but `Capture.encode` belongs to the shard's own thread.
    """

    def __init__(self) -> None:
        self._stores: dict[StoreId, KeyStore[Any, Any]] = {}
        self._base: _Base | None = None
        self._under_way: dict[int, Capture] = {}
        self._sliced: list[Capture] = []
        """Captures that are not whole yet, oldest first."""
        self._layered: dict[StoreId, KeyStore[Any, Any]] = {}
        """Stores whose dict stands still under what has changed since."""
        self._sequence = 0
        # Raised by restore and reset: captures from before no longer bear on what is dirty.
        self._lineage = 0

    def keystore(
        self, operator: str, name: str, init: Callable[[], Any] | None = None
    ) -> KeyStore[Any, Any]:
        """The store of this operator with this name; always the same one, also after a restore."""
        store = self._stores.get((operator, name))
        if store is None:
            store = self._stores[operator, name] = KeyStore(init)
        elif init is not None:
            store.init = init
        return store

    def capture(self, extras: Mapping[str, Any], *, in_slices: bool = False) -> Capture:
        """Everything as it is now. `extras` (offsets, transactions) must not change in place.

        With `in_slices` it may not be whole: then `save_slice` has to be called until it is.
        """
        while len(self._sliced) >= SLICED_LIMIT or any(
            store.layered >= SLICED_LIMIT for store in self._layered.values()
        ):
            self.save_slice(_standing)
        # Before there are parts that hold the same values.
        held = {store_id: store.held_outside() for store_id, store in self._stores.items()}
        self._sequence += 1
        base = self._base
        deltas = sum(capture.kind == "delta" for capture in self._under_way.values())
        if base is None or base.is_used_up(deltas):
            kind: Kind = "full"
            parts = self._everything(in_slices)
        else:
            kind = "delta"
            parts = self._changes(in_slices)
        slices = {i: part[1] for i, part in parts.items() if isinstance(part[1], Slices)}
        # Only when nothing above failed: an unpicklable value must not cost us what is dirty.
        for store_id, store in self._stores.items():
            store.close_layer(self._sequence, held[store_id], slices.get(store_id))
        chain = base.chain if base is not None and kind == "delta" else ()
        content = (kind, dict(extras), parts)
        capture = Capture(kind, self._sequence, self._lineage, chain, content, slices)
        self._under_way[self._sequence] = capture
        if not capture.whole:
            self._sliced.append(capture)
        return capture

    @property
    def saving(self) -> bool:
        """Whether a capture is not whole, or the changes since then are kept apart."""
        return bool(self._sliced or self._layered)

    def save_slice(self, clock_s: Callable[[], float]) -> None:
        """Go on with the oldest capture that is not whole; a UserError if a value cannot be saved.

        When all are whole, the changes since then are brought back into their stores.
        """
        if not self._sliced:
            self._fold(clock_s)
            return
        capture = self._sliced[0]
        store_id, slices = next(iter(capture.slices.items()))
        slices.go_on(clock_s)
        if slices.whole:
            self._stores[store_id].end_slices(capture.slices.pop(store_id))
            if capture.whole:
                del self._sliced[0]

    def _fold(self, clock_s: Callable[[], float]) -> None:
        for store_id, store in self._layered.items():
            store.fold(clock_s)
            if not store.layered:
                del self._layered[store_id]
            return

    def mark_durable(self, capture: Capture, ref: ObjectRef) -> tuple[ObjectRef, ...]:
        """This capture is stored under `ref`: the objects that restore it, in order.

        A capture overtaken by a later one builds on what was durable when it was taken.
        """
        if capture.lineage != self._lineage:
            return (*capture.base, ref)
        self._settle(capture)
        base = self._base
        if base is not None and base.sequence > capture.sequence:
            return (*capture.base, ref)
        chain = (ref,) if capture.kind == "full" or base is None else (*base.chain, ref)
        self._base = _Base.on(capture.sequence, chain)
        for store in self._stores.values():
            store.drop_layers(capture.sequence)
        return chain

    def mark_failed(self, capture: Capture) -> None:
        """This capture will never be durable; what it held goes into the next one."""
        if capture.lineage != self._lineage:
            return
        self._settle(capture)
        if not capture.whole:
            self._sliced.remove(capture)
            for store_id, slices in capture.slices.items():
                self._stores[store_id].end_slices(slices)
        for store in self._stores.values():
            store.merge_layer(capture.sequence)

    def restore(self, objects: Sequence[bytes], chain: Sequence[ObjectRef]) -> dict[str, Any]:
        """Be what these snapshots say, in order, and give the extras of the last one.

        Changes nothing if one of them cannot be read.
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
        for _, _, parts in decoded[fulls[-1] :]:
            for store_id, part in parts.items():
                _apply(part, entries.setdefault(store_id, {}))
        self._load(entries)
        self._base = _Base.on(self._sequence, tuple(chain[fulls[-1] :]))
        return decoded[-1][1]

    def entries(self) -> dict[StoreId, dict[Any, Any]]:
        """Everything that is kept, by operator and name of the state; for looking at only."""
        return {store_id: store.look() for store_id, store in self._stores.items()}

    def adopt(self, other: "ShardState", owner: Callable[[str], str | None]) -> None:
        """Take over the other's stores that have an owner here; the next capture is full."""
        for (saved, name), store in other._stores.items():
            operator = owner(saved)
            if operator is not None:
                self.keystore(operator, name).load(store.look())
        self._base = None

    def reset(self) -> None:
        """Empty every store and start over; the next capture is full."""
        self._load({})
        self._base = None

    def _load(self, entries: dict[StoreId, dict[Any, Any]]) -> None:
        for store_id in entries:
            self.keystore(*store_id)
        for store_id, store in self._stores.items():
            store.load(entries.get(store_id, {}))
        self._under_way.clear()
        self._sliced.clear()
        self._layered.clear()
        self._lineage += 1

    def _settle(self, capture: Capture) -> None:
        if self._under_way.pop(capture.sequence, None) is None:
            raise InternalError(
                f"capture {capture.sequence} was marked durable or failed a second time"
            )

    def _everything(self, in_slices: bool) -> dict[StoreId, _Part]:
        return {
            store_id: (None, self._whole_store(store_id, store, in_slices))
            for store_id, store in self._stores.items()
            if store
        }

    def _changes(self, in_slices: bool) -> dict[StoreId, _Part]:
        return {
            store_id: self._changed_part(store_id, store, in_slices)
            for store_id, store in self._stores.items()
            if store.has_changes()
        }

    def _whole_store(self, store_id: StoreId, store: KeyStore[Any, Any], in_slices: bool) -> Any:
        """A store as it is now, or slices that will be."""
        if in_slices and store.tells_first and can_stand_still(len(store), store.types):
            self._layered[store_id] = store
            return StandingSlices(store.stand_still(), _named(store_id))
        return _cut_loose(store_id, store, store.look(), in_slices)

    def _changed_part(self, store_id: StoreId, store: KeyStore[Any, Any], in_slices: bool) -> _Part:
        changes, entries = store.changes(), store.look()
        if changes.cleared:
            return None, self._whole_store(store_id, store, in_slices)
        updated = {key: entries[key] for key in changes.dirty if key in entries}
        gone = changes.deleted
        if len(updated) < len(changes.dirty):
            gone = gone | {key: None for key in changes.dirty if key not in entries}
        return freeze_keys(gone, _named(store_id)), _cut_loose(store_id, store, updated, in_slices)


def _cut_loose(
    store_id: StoreId, store: KeyStore[Any, Any], entries: dict[Any, Any], in_slices: bool
) -> Any:
    """These entries of a store as they are now, or slices that will be."""
    if in_slices and store.tells_first and can_be_sliced(entries):
        own = entries.copy() if entries is store.look() else entries
        return Slices(own, _named(store_id))
    return freeze(entries, _named(store_id))


def _standing() -> float:
    """A clock that never ends a slice."""
    return 0.0


def extras_in(data: bytes, name: str) -> dict[str, Any]:
    """The extras (offsets, transactions) of one snapshot, full or incremental."""
    return _decode(data, name)[1]


def _named(store_id: StoreId) -> str:
    return f"operator '{store_id[0]}', state '{store_id[1]}'"


def _apply(part: _Part, entries: dict[Any, Any]) -> None:
    deleted, updated = part
    if deleted is None:
        entries.clear()
    else:
        for key in deleted:
            entries.pop(key, None)
    entries.update(updated)


def _decode(data: bytes, name: str) -> tuple[Kind, dict[str, Any], dict[StoreId, _Part]]:
    if data[: len(MAGIC)] != MAGIC or len(data) <= len(_HEADER):
        raise CorruptObject(f"'{name}' is not a snapshot of Everstream, or was cut short")
    version = data[len(MAGIC)]
    if version != VERSION:
        raise StoreError(
            f"'{name}' has snapshot format {version}; this Everstream reads format {VERSION}. "
            "Use the version that wrote it, or start over with --fresh, which deletes the output."
        )
    try:
        kind, extras, parts = pickle.loads(memoryview(data)[len(_HEADER) :])
    except (AttributeError, ImportError) as error:
        raise UserError(
            f"'{name}' holds values of a class that is not there any more ({error}). Keep it "
            "importable under the same name, or start over with --fresh, which deletes the output."
        ) from error
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, IndexError, KeyError) as error:
        raise CorruptObject(f"'{name}' cannot be decoded ({error!r})") from error
    return kind, extras, parts
