"""The log of manifests: numbered slots, each created exclusively, so all drivers see one order.

A driver takes over by putting a lease into the first free slot. From then on it puts its manifests
into the slots that follow, always the one after the newest it knows. A driver that has lost the
lease finds that slot taken by another driver's entry; so two drivers can never both add a manifest.
For this reason the slots of leases must stay for ever, and the newest slot must never be removed:
only slots of manifests that newer ones follow are ever removed. Void entries stay, too: each keeps
an abandoned manifest from arriving late in its slot (see `append`).

So a store has more slots the longer it is in use, and reading them all would take too long. Entries
never change, and an entry that arrives in a slot of the past never counts. So an index lists, for
all slots up to one, those that still matter, and a reader of the index lists only the slots after
that one. The index is only an optimization: without one, or with a damaged one, all slots are read.
"""

import json
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from everstream.errors import LeaseLost, StoreError, StoreGone
from everstream.state.blobs import Blobs
from everstream.state.objects import ObjectRef, check_format, checksum_of
from everstream.state.signing import Forged, is_signed

FOLDER: Final = "manifests/"
FORMAT: Final = 1
"""The format of entries: what is around a manifest. Those of the first releases have no number."""
KINDS: Final = frozenset({"lease", "checkpoint", "fresh", "void"})
_KEYS: Final = (
    "A store must be opened with the key it was created with, and one created without a key must "
    "be opened without one: give the right key file with --store-key (store_key=, "
    "EVERSTREAM_STORE_KEY_FILE), leave it out, or use another store"
)
INDEX: Final = f"{FOLDER}index"
UNINDEXED: Final = 16
"""Entries that may be read in vain before the index is written anew."""
_LISTED_IN_ORDER: Final = 10**8 // 2
"""Below this, slots are listed from one on: names are in the order of numbers up to eight digits."""
_SLOT = re.compile(re.escape(FOLDER) + r"(\d{8,})\.json")
_CHECKSUM = re.compile(rb'\{"checksum": "([0-9a-f]{32})", "entry": ')


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one driver to add manifests, until another takes the next lease."""

    number: int
    slot: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete manifest: what the core wrote, and its position in the order."""

    slot: int
    lease: int
    body: dict[str, Any]

    @property
    def objects(self) -> tuple[ObjectRef, ...]:
        return objects_of(self.body)

    @property
    def epoch(self) -> int:
        """Its number; one that names none is simply newer than those before it."""
        epoch = self.body.get("epoch")
        return epoch if isinstance(epoch, int) else self.slot


@dataclass(frozen=True, slots=True)
class Skipped:
    """An entry that could not be used, and why."""

    path: str
    reason: str
    slot: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """The content of a slot.

    `kind` is lease, checkpoint, fresh (earlier entries do not count any more), void (nothing: the
    slot is only occupied) or corrupt.
    """

    slot: int
    kind: str
    lease: int = 0
    body: Any = None
    reason: str = ""
    distrusted: bool = False
    """Corrupt, because its signature is wrong; if all entries are, the store has another key."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The owner of a lease: only it can add manifests until another takes the next lease."""

    number: int
    slot: int
    owner: str

    @classmethod
    def of(cls, entry: Entry) -> "Holder":
        return cls(entry.lease, entry.slot, entry.body[0])


def objects_of(body: dict[str, Any]) -> tuple[ObjectRef, ...]:
    """The objects a manifest's body names."""
    return tuple(ObjectRef.from_json(fields) for fields in body["objects"])


class Numbered(Protocol):
    """A manifest, decoded or not."""

    @property
    def epoch(self) -> int: ...


M = TypeVar("M", bound=Numbered)


def standing(manifests: Iterable[M]) -> list[M]:
    """The manifests that a run may roll back to, from a list that is newest first.

    A rollback writes an older epoch again, as the newest. All epochs newer than that were given up
    for good: their committed output has been taken back.
    """
    valid: list[M] = []
    for manifest in manifests:
        if not valid or manifest.epoch < valid[-1].epoch:
            valid.append(manifest)
    return valid


def path_of(slot: int) -> str:
    return f"{FOLDER}{slot:08d}.json"


@dataclass(frozen=True, slots=True)
class Index:
    """The slots up to one that matter."""

    upto: int = 0
    matter: tuple[int, ...] = ()

    def encoded(self) -> bytes:
        text = json.dumps({"format": FORMAT, "upto": self.upto, "matter": self.matter}).encode()
        return checksum_of(text).encode() + b"\n" + text

    @classmethod
    def decoded(cls, data: bytes) -> "Index":
        """Decode these bytes; an empty index if they are damaged, or of a later version."""
        checksum, _, text = data.partition(b"\n")
        if checksum != checksum_of(text).encode():
            return cls()
        fields = json.loads(text)
        return cls(fields["upto"], tuple(fields["matter"])) if fields["format"] == FORMAT else cls()


class ManifestLog:
    """The slots in the store, as one driver sees them."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        # Entries never change, so each is read once unless a fresh look is requested.
        self._read: dict[int, Entry] = {}
        self._newest_known: dict[Lease, int] = {}

    def slots(self, after: int = 0) -> list[int]:
        """The taken slots after this one, in order."""
        begin = path_of(after) if after < _LISTED_IN_ORDER else ""
        matches = (_SLOT.fullmatch(path) for path in self._blobs.list(FOLDER, begin))
        slots = (int(match[1]) for match in matches if match)
        return sorted(slot for slot in slots if slot > after)

    def entries(self, *, anew: bool = False) -> list[Entry]:
        """All entries in order; `anew` reads them again to notice damage since."""
        known = {} if anew else self._read
        index = self._index()
        slots = [*index.matter, *self.slots(after=index.upto)]
        self._read = {slot: known.get(slot) or self._entry(slot) for slot in slots}
        entries = [entry for entry in self._read.values() if entry.kind != "gone"]
        if entries and all(entry.distrusted for entry in entries):
            raise StoreError(f"{self._blobs!r} cannot be used: {entries[-1].reason}. {_KEYS}")
        return entries

    def index(self, entries: Sequence[Entry]) -> None:
        """Let the next reader of the log skip entries that no longer matter, if there are many.

        Of all but the newest entry those matter that are checkpoints, or cannot be read, and of the
        others the last fresh start and the highest lease.
        """
        if not entries:
            return
        *older, newest = entries
        rest = [entry for entry in older if entry.kind not in ("checkpoint", "corrupt")]
        last = [
            *[entry for entry in rest if entry.kind == "fresh"][-1:],
            *sorted((e for e in rest if e.kind != "void"), key=lambda e: (e.lease, e.slot))[-1:],
        ]
        needless = {entry.slot for entry in rest} - {entry.slot for entry in last}
        if len(needless) >= UNINDEXED:
            matter = tuple(entry.slot for entry in older if entry.slot not in needless)
            self._blobs.write(INDEX, Index(newest.slot - 1, matter).encoded())

    def _index(self) -> "Index":
        try:
            return Index.decoded(self._blobs.read(INDEX))
        except (FileNotFoundError, Forged):
            return Index()

    def claim(self, kind: str, owner: str, after: int | None = None) -> Lease:
        """Put a lease or a fresh start into the first free slot, after all entries.

        With `after`, only if the lease of this number is the newest; otherwise LeaseLost names the
        owner.

        After an error it may appear all the same, now or later. Then it is like one whose owner
        died at once: the previous holder of the lease is fenced, and the next claim comes after it.
        """
        while True:
            entries = self.entries()
            slot = entries[-1].slot + 1 if entries else 1
            if after is not None:
                self._require_at_most(after, entries)
            # A corrupt entry may have been a lease whose number we cannot read.
            corrupt = sum(entry.kind == "corrupt" for entry in entries)
            number = max((entry.lease for entry in entries), default=0) + corrupt + 1
            lease = Lease(number, slot)
            try:
                self._blobs.create(path_of(slot), encoded(kind, lease, [owner, uuid.uuid4().hex]))
            except FileExistsError:
                continue
            # If we were slow, that slot may have been used and removed again: then it lies in
            # the past, where it fences no driver. The newest slot is never removed, so it tells.
            if not self.slots(after=slot):
                self._newest_known[lease] = slot
                return lease

    def _require_at_most(self, number: int, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.lease > number:
                raise self._lost(Lease(number, 0), entry)

    def next_slot(self, lease: Lease) -> int:
        """The slot of the next entry under this lease, unless another driver has taken over.

        StoreGone if the log is not there any more: an entry in an empty folder would look like a
        store, and name objects that were deleted.
        """
        newest = self._newest(lease)
        if self._is_gone(newest) and not self.slots(after=newest):
            raise StoreGone(
                f"{self._blobs!r} was deleted, or emptied, while this run was using it: its log "
                f"no longer has entry {newest}. The run cannot write again what it needs to "
                "resume from there, because later checkpoints build on earlier ones. Restore the "
                "store from a backup and run again; or start over with --fresh, which deletes "
                "the output."
            )
        return newest + 1

    def occupy(self, slot: int, data: bytes) -> bytes:
        """Put this entry into a slot unless it is taken. Returns what the slot holds then."""
        try:
            self._blobs.create(path_of(slot), data)
        except FileExistsError:
            try:
                return self._blobs.read(path_of(slot))
            except Forged:
                return b""  # it is unreadable, so it is not ours
        return data

    def settled(self, lease: Lease, slot: int) -> None:
        """This slot is known to hold an entry of this lease."""
        self._newest_known[lease] = slot

    def require(self, lease: Lease) -> None:
        """Raise LeaseLost if another driver has taken over by now."""
        self.require_newest(lease, self._newest(lease))

    def require_newest(self, lease: Lease, slot: int) -> None:
        """Raise LeaseLost if anything follows this slot, the newest of this lease.

        A slot that was removed can be taken again; but then it lies in the past.
        """
        later = self.slots(after=slot)
        if later:
            raise self._lost(lease, self._entry(later[-1]))

    def lost(self, lease: Lease, slot: int, data: bytes) -> LeaseLost:
        """The error if this slot holds neither what we put there nor a void entry of ours."""
        return self._lost(lease, entry_of(slot, data))

    def remove(self, slot: int) -> None:
        self._blobs.delete(path_of(slot))
        self._read.pop(slot, None)

    def _newest(self, lease: Lease) -> int:
        """The newest slot of this lease; found in the log if this process has not written it."""
        if lease not in self._newest_known:
            last = self.entries()[-1]
            is_held = last.lease == lease.number and (
                last.kind != "lease" or last.slot == lease.slot
            )
            if not is_held:
                raise self._lost(lease, last)
            self._newest_known[lease] = last.slot
        return self._newest_known[lease]

    def _is_gone(self, slot: int) -> bool:
        """False if unknown, because the store cannot be read at the moment."""
        try:
            return self._entry(slot).kind == "gone"
        except StoreError:
            return False

    def _entry(self, slot: int) -> Entry:
        try:
            data = self._blobs.read(path_of(slot))
        except FileNotFoundError:
            return Entry(slot, "gone")
        except Forged as error:
            return Entry(slot, "corrupt", reason=error.message, distrusted=True)
        return entry_of(slot, data)

    def _lost(self, lease: Lease, taken: Entry) -> LeaseLost:
        if taken.kind == "lease":
            by = f"'{taken.body[0]}' has taken over with lease {taken.lease}"
        elif taken.kind == "fresh":
            by = "the store was started afresh"
        else:
            by = f"slot {taken.slot} holds an entry of another driver ({taken.kind})"
        return LeaseLost(
            f"lease {lease.number} is lost: {by}. This driver must stop; nothing that it has not "
            "made stable counts. If both were started on purpose, give each its own store."
        )


def encoded(kind: str, lease: Lease, body: Any) -> bytes:
    """An entry: a JSON object whose first field is the checksum of the text of the second."""
    fields = {"format": FORMAT, "kind": kind, "lease": lease.number, "body": body}
    text = json.dumps(fields).encode()
    return b'{"checksum": "%s", "entry": %s}\n' % (checksum_of(text).encode(), text)


def entry_of(slot: int, data: bytes) -> Entry:
    """Decode these bytes; a StoreError if that takes a newer Everstream."""
    head = _CHECKSUM.match(data)
    if is_signed(data):
        return Entry(slot, "corrupt", reason=f"'{path_of(slot)}' is signed", distrusted=True)
    if head is None or not data.endswith(b"}\n"):
        return Entry(slot, "corrupt", reason="it is torn or not a manifest")
    text = data[head.end() : -2]
    if checksum_of(text) != head[1].decode():
        return Entry(slot, "corrupt", reason="its checksum does not match")
    content = json.loads(text)
    known = FORMAT if content["kind"] in KINDS else 0
    check_format(f"'{path_of(slot)}' in the store", content.get("format", 1), known)
    return Entry(slot, content["kind"], content["lease"], content["body"])
