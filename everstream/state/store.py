"""The checkpoint store: objects with checksums, and the log of manifests that names them.

Objects are written first, the manifest that names them last: an object that no manifest names does
not count. All drivers agree on one order of the log of manifests, and only the holder of the newest
lease can add to it. Names of objects should contain the lease number, so that no two drivers share
one.

Deletion has three steps: delete the manifests, check that the lease is still ours, delete the
objects. A driver can be fenced at any moment without knowing it. A driver that takes the lease
before the check keeps all objects. One that takes it later no longer finds the manifests, so it
does not build on objects that are about to be deleted.

Every object exists twice. Incremental snapshots build on each other, so all kept checkpoints share
objects: without a second copy one flipped bit could make every one of them useless.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from everstream.errors import CorruptObject, InternalError
from everstream.state.blobs import Blobs
from everstream.state.manifest_append import ManifestAppend, Wait, append, pause, performed
from everstream.state.manifests import (
    Entry,
    Holder,
    Lease,
    Manifest,
    ManifestLog,
    Skipped,
    path_of,
    standing,
)
from everstream.state.objects import Data, ObjectRef, checksum_of, pieces_of
from everstream.state.signing import Forged, StoreKey, blobs_at

__all__ = ["CheckpointStore", "Holder", "Lease", "Manifest", "ObjectRef", "Skipped", "Survey"]

OBJECTS: Final = "objects/"
COPIES: Final = "copies/"
"""The second copy of each object has the same name in here."""

CALLS: Final = "calls/"
"""Logged answers of calls to services, one folder for each operator."""

SHOWN: Final = "shown/"
"""A file in here records that all output of a manifest, named by its slot, is committed."""


@dataclass(frozen=True, slots=True)
class Survey:
    """One look at everything in the log, for readers."""

    manifests: list[Manifest]
    """All complete manifests, newest first."""
    skipped: list[Skipped]
    holder: Holder | None
    """The owner of the newest lease; None if there never was one, so there is no store here."""
    unnamed: list[str]
    """Objects that no manifest names, without their checksums."""


class CheckpointStore:
    """Objects and manifests under one root."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self.skipped: list[Skipped] = []
        """Manifests that the last call of `manifests` had to leave out."""
        self.on_damage: Callable[[str], None] = lambda text: None
        """Called with a message about an object that could be read only from its copy."""
        self._log = ManifestLog(blobs)
        self._lease: Lease | None = None

    @classmethod
    def at(cls, url: str, key: StoreKey | None = None) -> "CheckpointStore":
        """The store in this folder or under this URL; signed if there is a key."""
        return cls(blobs_at(url, key))

    def __reduce__(self) -> tuple[Any, ...]:
        return (CheckpointStore, (self.blobs,))

    def put(self, name: str, data: Data) -> ObjectRef:
        """Store an object; the reference goes into a manifest.

        Never overwrites other content, even under the same name: a zombie cannot do harm.
        """
        checksum = self.blobs.write_summed(f"{OBJECTS}{name}", data)
        self.blobs.write(f"{COPIES}{name}.{checksum}", data)
        return ObjectRef(name, sum(map(len, pieces_of(data))), checksum)

    def get(self, ref: ObjectRef) -> bytes:
        """The object, verified, or its copy; raises CorruptObject with the problems of both."""
        data, problem = self._examine(ref, _object_path(ref))
        if problem is None:
            return data
        copy, no_help = self._examine(ref, _copy_path(ref))
        if no_help is not None:
            raise self._corrupt(ref, f"{problem}, and its copy cannot be used either: {no_help}")
        self.on_damage(f"object '{ref.name}' was read from its copy: {problem}; check the disk")
        return copy

    def problem_of(self, ref: ObjectRef) -> str | None:
        """What is wrong with an object and its copy; None if one of them is intact."""
        problem = self._examine(ref, _object_path(ref))[1]
        return problem and self._examine(ref, _copy_path(ref))[1] and problem

    def weakness_of(self, ref: ObjectRef) -> str | None:
        """What is wrong with one of the two, if the other is intact."""
        return self._weakness(ref, rewrite=False)

    def heal(self, ref: ObjectRef) -> str | None:
        """Rewrite the damaged one of the two from the other. Returns what was wrong with it."""
        return self._weakness(ref, rewrite=True)

    def _weakness(self, ref: ObjectRef, *, rewrite: bool) -> str | None:
        data, problem = self._examine(ref, _object_path(ref))
        copy, of_copy = self._examine(ref, _copy_path(ref))
        if (problem is None) == (of_copy is None):
            return None
        if rewrite and problem is None:
            self.blobs.write(_copy_path(ref), data)
        elif rewrite:
            self.blobs.write(_object_path(ref), copy)
        return problem or f"of its copy: {of_copy}"

    def _examine(self, ref: ObjectRef, path: str) -> tuple[bytes, str | None]:
        try:
            data = self.blobs.read(path)
        except FileNotFoundError:
            return b"", "it is missing"
        except Forged as error:
            return b"", error.message
        if len(data) != ref.size_bytes:
            return data, f"it has {len(data)} bytes instead of {ref.size_bytes}"
        if checksum_of(data) != ref.checksum:
            return data, "its checksum does not match"
        return data, None

    def acquire_lease(self, owner: str, after: int | None = None) -> Lease:
        """Take over this store: from now on no earlier driver can add a manifest.

        With `after`, only from the holder of this lease: if there is a newer one, LeaseLost.
        """
        self._lease = self._log.claim("lease", owner, after)
        return self._lease

    def hold(self, lease: Lease) -> None:
        """Use this lease, which was taken elsewhere."""
        self._lease = lease

    def append(self, lease: Lease, body: dict[str, Any]) -> ManifestAppend:
        """Add a manifest, step by step: see `ManifestAppend`.

        `body["objects"]` lists every object that is needed to recover.
        """
        if not isinstance(body.get("objects"), list):
            raise InternalError("a manifest needs the key 'objects', a list of object references")
        for fields in body["objects"]:
            ObjectRef.from_json(fields)
        return append(self._log, lease, "checkpoint", body)

    def append_manifest(self, lease: Lease, body: dict[str, Any], wait: Wait = pause) -> int:
        """Add a manifest and return its slot. Waits until it is known whether it is there.

        LeaseLost means that another driver has taken over, any other StoreError that the manifest
        is not there and never will be.
        """
        return performed(self.append(lease, body), wait)

    def manifests(self) -> list[Manifest]:
        """All complete manifests, newest first; `skipped` lists those left out."""
        entries = self._log.entries(anew=True)
        self.skipped = _skipped(entries)
        return _valid(entries)

    def fresh_slot(self) -> int:
        """The slot of the last fresh start: earlier entries do not count. 0: none."""
        return _fresh_start(self._log.entries())

    def survey(self) -> Survey:
        """One consistent look at the log. Changes nothing, and needs no lease."""
        # Objects first: one that is written meanwhile is then either named or not seen at all.
        paths = self.blobs.list(OBJECTS)
        entries = self._log.entries(anew=True)
        manifests = _valid(entries)
        named = {_object_path(ref) for manifest in manifests for ref in manifest.objects}
        return Survey(
            manifests,
            _skipped(entries),
            _holder(entries),
            [path[len(OBJECTS) :].rpartition(".")[0] for path in paths if path not in named],
        )

    def still_has(self, manifest: Manifest) -> bool:
        """Whether this manifest has not been pruned."""
        return manifest.slot in self._log.slots(after=manifest.slot - 1)

    def prune(self, keep: int, *, objects: bool = True, since_s: float | None = None) -> None:
        """Keep the newest manifests and all objects that they name; remove objects that only others
        named. Those that were written since a time are kept, too.

        Manifests that were given up are removed first and do not count: if the rewritten manifest
        is damaged one day, none of them must be mistaken for the newest. Without `objects` only
        manifests are removed: a later one may need the objects that they named.
        """
        if keep < 1:
            raise InternalError(f"at least one manifest must be kept, not {keep}")
        self._require_lease()
        entries = self._log.entries()
        kept = [
            manifest
            for number, manifest in enumerate(standing(_valid(entries)))
            if number < keep
            or (since_s is not None and (manifest.body.get("written_at") or 0.0) >= since_s)
        ]
        slots = {manifest.slot for manifest in kept}
        gone = [entry for entry in entries if entry.slot not in slots]
        if objects:
            self._remove(gone, kept)
            return
        self._remove_manifests(gone)

    def note_shown(self) -> None:
        """All output that the newest manifest covers is committed: nothing is left to do."""
        newest = _shown_path(self.manifests()[0])
        self.blobs.write(newest, b"shown\n")
        for path in self.blobs.list(SHOWN):
            if path != newest:
                self.blobs.delete(path)

    def all_shown(self) -> bool:
        """Whether that was recorded. If not, a driver may have died before sinks committed."""
        newest = next(iter(self.manifests()), None)
        if newest is None or _shown_path(newest) not in self.blobs.list(SHOWN):
            return False
        try:
            return bool(self.blobs.read(_shown_path(newest)))
        except Forged:
            return False

    def discard(self, refs: Iterable[ObjectRef]) -> None:
        """Delete objects that nothing names any more; may raise LeaseLost."""
        self._require_lease()
        for ref in refs:
            self.blobs.delete(_object_path(ref))
            self.blobs.delete(_copy_path(ref))

    def remove_given_up(self) -> None:
        """After a rollback: epochs in between can never be restored any more."""
        self.prune(keep=len(self._log.entries()))

    def sweep(self, lease: Lease) -> None:
        """Before work starts: remove temporary files and objects that are not in use."""
        # List the objects first: if no other driver has taken over after that, none of them can
        # belong to a later driver.
        paths = self._object_paths()
        self._log.require(lease)
        self.remove_given_up()
        named = [ref for manifest in self.manifests() for ref in manifest.objects]
        kept = {path for ref in named for path in (_object_path(ref), _copy_path(ref))}
        for path in paths:
            if path not in kept:
                self.blobs.delete(path)
        self.blobs.clean()
        self._log.index(self._log.entries())

    def forget_all(self, lease: Lease | None = None, wait: Wait = pause) -> None:
        """Start afresh: delete all manifests and objects; leases stay, so old drivers stay fenced.

        Without a lease this fences every existing driver.
        """
        # Before another driver can follow: so none of these objects belongs to a later one.
        paths = [*self._object_paths(), *self.blobs.list(CALLS)]
        if lease is None:
            self._lease = self._log.claim("fresh", "")
            slot = self._lease.slot
        else:
            slot = performed(append(self._log, lease, "fresh", None), wait)
        self._remove([entry for entry in self._log.entries() if entry.slot < slot], ())
        for path in paths:
            self.blobs.delete(path)

    def _remove(self, entries: Iterable[Entry], kept: Iterable[Manifest]) -> None:
        """Manifests before objects: a crash in between leaves orphans, never broken manifests."""
        named = {ref for manifest in self._remove_manifests(entries) for ref in manifest.objects}
        self.discard(named - {ref for manifest in kept for ref in manifest.objects})

    def _remove_manifests(self, entries: Iterable[Entry]) -> list[Manifest]:
        """Remove the manifests among these entries, and return them."""
        checkpoints = [e for e in entries if e.kind == "checkpoint"]
        for entry in checkpoints:
            self._log.remove(entry.slot)
        return [Manifest(entry.slot, entry.lease, entry.body) for entry in checkpoints]

    def _require_lease(self) -> None:
        if self._lease is not None:
            self._log.require(self._lease)

    def _object_paths(self) -> list[str]:
        return [*self.blobs.list(OBJECTS), *self.blobs.list(COPIES)]

    def _corrupt(self, ref: ObjectRef, problem: str) -> CorruptObject:
        return CorruptObject(
            f"object '{ref.name}' in {self.blobs!r} cannot be used: {problem}. Recovery falls "
            "back to an older checkpoint if there is one."
        )


def _valid(entries: list[Entry]) -> list[Manifest]:
    """The manifests since the last fresh start, newest first."""
    start = _fresh_start(entries)
    return [
        Manifest(entry.slot, entry.lease, entry.body)
        for entry in reversed(entries)
        if entry.kind == "checkpoint" and entry.slot > start
    ]


def _holder(entries: list[Entry]) -> Holder | None:
    """The owner of the newest lease that no entries of an older lease follow.

    A claim that arrived late in a slot of the past was never held.
    """
    oldest: float = math.inf
    for entry in reversed(entries):
        # A fresh start has an owner only if it came with a separate lease.
        claims = entry.kind == "lease" or (entry.kind == "fresh" and entry.body)
        if claims and entry.lease <= oldest:
            return Holder.of(entry)
        if entry.kind != "corrupt":
            oldest = min(oldest, entry.lease)
    return None


def _skipped(entries: list[Entry]) -> list[Skipped]:
    """Unreadable entries since the last fresh start: earlier ones do not matter."""
    start = _fresh_start(entries)
    broken = [entry for entry in entries if entry.kind == "corrupt" and entry.slot > start]
    return [Skipped(path_of(entry.slot), entry.reason, entry.slot) for entry in broken]


def _fresh_start(entries: list[Entry]) -> int:
    return max((entry.slot for entry in entries if entry.kind == "fresh"), default=0)


def _object_path(ref: ObjectRef) -> str:
    return f"{OBJECTS}{ref.name}.{ref.checksum}"


def _copy_path(ref: ObjectRef) -> str:
    return f"{COPIES}{ref.name}.{ref.checksum}"


def _shown_path(manifest: Manifest) -> str:
    return f"{SHOWN}{manifest.slot:08d}"
