"""The checkpoint store: objects with checksums, and the log of manifests that names them.

Objects come first, the manifest that names them last: what no manifest names does not count. The
log of manifests has one order that all drivers agree on, and only the holder of the newest lease
can add to it. Names of objects should hold the lease number, so that no two drivers share one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from everstream.errors import CorruptObject, InternalError
from everstream.state.blobs import Blobs, FsspecBlobs
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

__all__ = ["CheckpointStore", "Holder", "Lease", "Manifest", "ObjectRef", "Skipped", "Survey"]

OBJECTS: Final = "objects/"


@dataclass(frozen=True, slots=True)
class Survey:
    """One look at everything in the log, for those who only read."""

    manifests: list[Manifest]
    """All whole manifests, newest first."""
    skipped: list[Skipped]
    holder: Holder | None
    """Who took the newest lease; None if nobody ever did, so there is no store here."""
    unnamed: list[str]
    """Objects that no manifest names, without their checksums."""


class CheckpointStore:
    """Objects and manifests under one root."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self.skipped: list[Skipped] = []
        """What the last call of `manifests` had to leave out."""
        self._log = ManifestLog(blobs)
        self._lease: Lease | None = None

    @classmethod
    def at(cls, url: str) -> "CheckpointStore":
        """The store in this folder or under this URL."""
        return cls(FsspecBlobs(url))

    def __reduce__(self) -> tuple[Any, ...]:
        return (CheckpointStore, (self.blobs,))

    def put(self, name: str, data: Data) -> ObjectRef:
        """Store an object; the reference goes into a manifest.

        Never overwrites other content, even under the same name: a zombie cannot do harm.
        """
        checksum = self.blobs.write_summed(f"{OBJECTS}{name}", data)
        return ObjectRef(name, sum(map(len, pieces_of(data))), checksum)

    def get(self, ref: ObjectRef) -> bytes:
        """The object, checked; CorruptObject says what is wrong with it."""
        data, problem = self._examine(ref)
        if problem is not None:
            raise self._corrupt(ref, problem)
        return data

    def problem_of(self, ref: ObjectRef) -> str | None:
        """What is wrong with an object; None if it is whole."""
        return self._examine(ref)[1]

    def _examine(self, ref: ObjectRef) -> tuple[bytes, str | None]:
        try:
            data = self.blobs.read(_object_path(ref))
        except FileNotFoundError:
            return b"", "it is missing"
        if len(data) != ref.size_bytes:
            return data, f"it has {len(data)} bytes instead of {ref.size_bytes}"
        if checksum_of(data) != ref.checksum:
            return data, "its checksum does not match"
        return data, None

    def acquire_lease(self, owner: str) -> Lease:
        """Take over this store: from now on nobody who came before can add a manifest."""
        self._lease = self._log.claim("lease", owner)
        return self._lease

    def append_manifest(self, lease: Lease, body: dict[str, Any]) -> int:
        """Add a manifest and give its slot, or raise LeaseLost.

        `body["objects"]` lists every object it takes to recover. After a StoreError it is
        unknown whether the manifest counts; going on or recovering from it are both right.
        """
        if not isinstance(body.get("objects"), list):
            raise InternalError("a manifest needs the key 'objects', a list of object references")
        for fields in body["objects"]:
            ObjectRef.from_json(fields)
        return self._log.append(lease, "checkpoint", body)

    def manifests(self) -> list[Manifest]:
        """All whole manifests, newest first; `skipped` tells what was left out."""
        entries = self._log.entries(anew=True)
        self.skipped = _skipped(entries)
        return _valid(entries)

    def survey(self) -> Survey:
        """One consistent look at the log. Changes nothing, and needs no lease."""
        # Objects first: what is written while we look is then named, or not seen at all.
        paths = self.blobs.list(OBJECTS)
        entries = self._log.entries(anew=True)
        manifests = _valid(entries)
        named = {_object_path(ref) for manifest in manifests for ref in manifest.objects}
        # A fresh start has an owner only if it came with a lease of its own.
        claims = [e for e in entries if e.kind == "lease" or (e.kind == "fresh" and e.body)]
        return Survey(
            manifests,
            _skipped(entries),
            Holder.of(claims[-1]) if claims else None,
            [path[len(OBJECTS) :].rpartition(".")[0] for path in paths if path not in named],
        )

    def still_has(self, manifest: Manifest) -> bool:
        """Whether nobody has pruned this manifest by now."""
        return manifest.slot in self._log.slots()

    def prune(self, keep: int, *, objects: bool = True) -> None:
        """Keep the newest manifests and all that they name; remove what only others named.

        What was given up goes first and does not count: if the manifest that was written again
        rots one day, nobody must take one of those for the newest. Without `objects` only
        manifests go: what they named may be needed by one to come.
        """
        if keep < 1:
            raise InternalError(f"at least one manifest must be kept, not {keep}")
        if self._lease is not None:
            self._log.require(self._lease)
        entries = self._log.entries()
        kept = standing(_valid(entries))[:keep]
        slots = {manifest.slot for manifest in kept}
        gone = [entry for entry in entries if entry.slot not in slots]
        if objects:
            self._remove(gone, kept)
            return
        for entry in gone:
            if entry.kind == "checkpoint":
                self._log.remove(entry.slot)

    def discard(self, refs: Iterable[ObjectRef]) -> None:
        """Delete objects that nothing will name."""
        for ref in refs:
            self.blobs.delete(_object_path(ref))

    def remove_given_up(self) -> None:
        """After going back: what lay in between can never be restored any more."""
        self.prune(keep=len(self._log.entries()))

    def sweep(self, lease: Lease) -> None:
        """Remove what was given up or is named nowhere, and temporary files. Before work starts."""
        # Look at the objects first: if nobody has taken over after that, none of them can
        # belong to a later driver.
        paths = self.blobs.list(OBJECTS)
        self._log.require(lease)
        self.remove_given_up()
        named = {_object_path(ref) for manifest in self.manifests() for ref in manifest.objects}
        for path in paths:
            if path not in named:
                self.blobs.delete(path)
        self.blobs.clean()

    def forget_all(self, lease: Lease | None = None) -> None:
        """Start afresh: all manifests and objects go; leases stay, so old drivers stay fenced.

        Without a lease this fences off every driver there is.
        """
        if lease is None:
            slot = self._log.claim("fresh", "").slot
        else:
            slot = self._log.append(lease, "fresh", None)
        paths = self.blobs.list(OBJECTS)
        self._remove([entry for entry in self._log.entries() if entry.slot < slot], ())
        for path in paths:
            self.blobs.delete(path)

    def _remove(self, entries: Iterable[Entry], kept: Iterable[Manifest]) -> None:
        """Manifests before objects: a crash in between leaves orphans, never broken manifests."""
        manifests = [entry for entry in entries if entry.kind == "checkpoint"]
        named = {ref for entry in manifests for ref in Manifest(entry.slot, 0, entry.body).objects}
        for entry in manifests:
            self._log.remove(entry.slot)
        for ref in named - {ref for manifest in kept for ref in manifest.objects}:
            self.blobs.delete(_object_path(ref))

    def _corrupt(self, ref: ObjectRef, problem: str) -> CorruptObject:
        return CorruptObject(
            f"object '{ref.name}' in {self.blobs!r} cannot be used: {problem}. Recovery falls "
            "back to an older checkpoint if there is one."
        )


def _valid(entries: list[Entry]) -> list[Manifest]:
    """The manifests since the last fresh start, newest first."""
    start = max((entry.slot for entry in entries if entry.kind == "fresh"), default=0)
    return [
        Manifest(entry.slot, entry.lease, entry.body)
        for entry in reversed(entries)
        if entry.kind == "checkpoint" and entry.slot > start
    ]


def _skipped(entries: list[Entry]) -> list[Skipped]:
    return [Skipped(path_of(e.slot), e.reason, e.slot) for e in entries if e.kind == "corrupt"]


def _object_path(ref: ObjectRef) -> str:
    return f"{OBJECTS}{ref.name}.{ref.checksum}"
