"""Savepoints: checkpoints with a name, kept until you delete them.

A savepoint is a full copy, with everything needed to restore it, in a folder of the store that no
run cleans up. So it takes the space of the state a second time, and nothing done to the store
afterwards, `--fresh` included, can harm it. Its manifest is written last: without one it does not
count.
"""

import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from everstream.errors import CorruptObject, StoreError, UserError
from everstream.state.blobs import Blobs
from everstream.state.manifests import Manifest, objects_of
from everstream.state.objects import ObjectRef, check_format, checksum_of
from everstream.state.store import CheckpointStore

SAVEPOINTS: Final = "savepoints/"
MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
"""The format of exported savepoints, and of the file around a manifest."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint as it is listed."""

    name: str
    body: dict[str, Any]
    """The manifest, as the core wrote it."""
    taken_at: float
    """In seconds since 1970."""
    slot: int | None
    """The slot of its checkpoint in this store's log; None if it came from another store."""
    edited: bool = False
    """Its state was changed since the checkpoint: see `everstream/inspection/editing.py`."""

    @property
    def objects(self) -> tuple[ObjectRef, ...]:
        return objects_of(self.body)

    @property
    def epoch(self) -> int:
        return int(self.body["epoch"])

    @property
    def pipeline(self) -> str:
        return str(self.body["pipeline"])

    @property
    def size_bytes(self) -> int:
        return sum(ref.size_bytes for ref in self.objects)

    def to_json(self) -> dict[str, Any]:
        """In the form of its file."""
        return {
            "format": FORMAT,
            "taken_at": self.taken_at,
            "slot": self.slot,
            "manifest": self.body,
            **({"edited": True} if self.edited else {}),
        }

    @classmethod
    def from_json(cls, name: str, fields: dict[str, Any]) -> "Savepoint":
        check_format(f"savepoint '{name}'", fields.get("format", 1), FORMAT)
        edited = fields.get("edited", False)
        return cls(name, fields["manifest"], fields["taken_at"], fields["slot"], edited)


def checked_name(name: str) -> str:
    """The name, if it is valid."""
    if not _NAME.fullmatch(name) or name.isdigit():
        raise UserError(
            f"'{name}' is no name for a savepoint: use letters, digits, '.', '_' and '-', and not "
            "digits alone, which would be an epoch."
        )
    return name


def savepoints_in(store: CheckpointStore) -> list[Savepoint]:
    """All savepoints, by name."""
    ends = f"/{MANIFEST}"
    paths = (path for path in store.blobs.list(SAVEPOINTS) if path.endswith(ends))
    return [savepoint(store, path[len(SAVEPOINTS) : -len(ends)]) for path in paths]


def savepoint(store: CheckpointStore, name: str) -> Savepoint:
    """The savepoint of this name; a UserError lists the existing ones."""
    try:
        text = store.blobs.read(_path(checked_name(name), MANIFEST))
    except FileNotFoundError:
        there = ", ".join(other.name for other in savepoints_in(store)) or "none"
        raise UserError(
            f"there is no savepoint '{name}' in {store.blobs!r}; it has: {there}."
        ) from None
    try:
        checksum, _, body = text.partition(b"\n")
        if checksum.decode() != checksum_of(body):
            raise ValueError("its checksum does not match")
        return Savepoint.from_json(name, json.loads(body))
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"the manifest of savepoint '{name}' cannot be read ({error}). Delete it, and take "
            "another or import it again."
        ) from None


def take_savepoint(store: CheckpointStore, name: str, now: float, at_least: int = 0) -> Savepoint:
    """Keep the newest checkpoint under this name; `at_least`: of this epoch or a later one.

    Safe during a run: if the run removes the checkpoint meanwhile, there is a newer one. `now`:
    seconds since 1970.
    """
    if _path(checked_name(name), MANIFEST) in store.blobs.list(f"{SAVEPOINTS}{name}/"):
        raise UserError(f"there is already a savepoint '{name}': delete it, or use another name.")
    while True:
        newest = next(iter(store.manifests()), None)
        if newest is None or newest.epoch < at_least:
            raise UserError("the store holds no checkpoint yet: there is nothing to keep.")
        try:
            return _copied(store, newest, name, now)
        except CorruptObject:
            if store.still_has(newest):
                raise


def _copied(store: CheckpointStore, newest: Manifest, name: str, now: float) -> Savepoint:
    taken = Savepoint(name, newest.body, now, newest.slot)
    for ref in taken.objects:
        store.blobs.write(_object_path(name, ref), store.get(ref))
    _finish(store.blobs, taken)
    return taken


def objects_in(store: CheckpointStore, kept: Savepoint) -> Iterator[tuple[ObjectRef, bytes]]:
    """Its objects, one after the other, each of them checked."""
    for ref in kept.objects:
        try:
            data = store.blobs.read(_object_path(kept.name, ref))
        except FileNotFoundError:
            data = b""
        if len(data) != ref.size_bytes or checksum_of(data) != ref.checksum:
            raise CorruptObject(
                f"savepoint '{kept.name}' cannot be restored: its object '{ref.name}' is missing or "
                "damaged. Use another savepoint, or import it again."
            )
        yield ref, data


def put_back(source: CheckpointStore, kept: Savepoint, target: CheckpointStore) -> None:
    """Copy the objects of a savepoint into a store, so that a manifest may name them."""
    for ref, data in objects_in(source, kept):
        copied = target.put(ref.name, data)
        assert copied == ref


def delete_savepoint(store: CheckpointStore, name: str) -> None:
    """The manifest first: after a crash the rest of it is no savepoint any more."""
    folder = f"{SAVEPOINTS}{checked_name(name)}/"
    paths = store.blobs.list(folder)
    if not paths:
        savepoint(store, name)
    store.blobs.delete(_path(name, MANIFEST))
    for path in paths:
        store.blobs.delete(path)


class Incoming:
    """A savepoint that is being imported into a store: first its objects, then `finish`."""

    def __init__(self, store: CheckpointStore, arriving: Savepoint) -> None:
        if _path(checked_name(arriving.name), MANIFEST) in store.blobs.list(SAVEPOINTS):
            raise UserError(
                f"there is already a savepoint '{arriving.name}': delete it, or use another name."
            )
        self._blobs = store.blobs
        self._arriving = arriving
        self._missing = set(arriving.objects)

    def add(self, name: str, data: bytes) -> None:
        """One of its objects; checked."""
        ref = ObjectRef.of(name, data)
        if ref not in self._missing:
            raise StoreError(f"object '{name}' is damaged, or does not belong to this savepoint.")
        self._blobs.write(_object_path(self._arriving.name, ref), data)
        self._missing.discard(ref)

    def finish(self) -> None:
        if self._missing:
            missing = min(ref.name for ref in self._missing)
            raise StoreError(f"the savepoint is incomplete: '{missing}' is missing.")
        _finish(self._blobs, self._arriving)


def _finish(blobs: Blobs, taken: Savepoint) -> None:
    body = json.dumps(taken.to_json()).encode()
    try:
        blobs.create(_path(taken.name, MANIFEST), checksum_of(body).encode() + b"\n" + body)
    except FileExistsError:
        raise UserError(
            f"another command has just taken a savepoint '{taken.name}': use another name."
        ) from None


def _path(name: str, file: str) -> str:
    return f"{SAVEPOINTS}{name}/{file}"


def _object_path(name: str, ref: ObjectRef) -> str:
    return _path(name, f"objects/{ref.name}.{ref.checksum}")


# A savepoint as one file: a tar archive with its manifest first and its objects after it. It is
# read and written piece by piece, so no more than one object is in memory. An import is checked
# against the manifest, object by object, before any of it counts.
FIRST = "savepoint.json"

OnObject = Callable[[ObjectRef], None]


def export_savepoint(
    store: CheckpointStore, kept: Savepoint, file: str | os.PathLike[str], notify: OnObject
) -> None:
    """Write it to a file, which appears only when it is complete. `notify` is called for each object.

    Only the owner can read the file, because it holds the state in plain form.
    """
    path = Path(file)
    if path.exists():
        raise UserError(f"'{path}' exists already: delete it, or give another name.")
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.unlink(missing_ok=True)
    with (
        open(unfinished, "xb", opener=_for_the_owner) as written,
        tarfile.open(fileobj=written, mode="w") as archive,
    ):
        head = {"name": kept.name, **kept.to_json()}
        _add(archive, FIRST, json.dumps(head).encode())
        for ref, data in objects_in(store, kept):
            _add(archive, ref.name, data)
            notify(ref)
    with unfinished.open("rb") as whole:
        os.fsync(whole.fileno())
    unfinished.rename(path)


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def import_savepoint(
    store: CheckpointStore, file: str | os.PathLike[str], name: str | None, notify: OnObject
) -> Savepoint:
    """Put the savepoint of such a file into a store, under its own name or another."""
    try:
        with tarfile.open(file, "r:") as archive:
            head = archive.next()
            if head is None or head.name != FIRST:
                raise tarfile.ReadError("it does not begin with a savepoint's manifest")
            fields = json.loads(_content(archive, head))
            # Its slot was in the log of another store.
            arriving = Savepoint.from_json(name or fields["name"], {**fields, "slot": None})
            incoming = Incoming(store, arriving)
            while (member := archive.next()) is not None:
                data = _content(archive, member)
                incoming.add(member.name, data)
                notify(ObjectRef.of(member.name, data))
            incoming.finish()
    except (tarfile.TarError, ValueError, KeyError) as error:
        raise StoreError(f"'{file}' is no complete savepoint: {error}") from None
    except OSError as error:
        raise UserError(f"'{file}' cannot be read: {error}") from None
    return arriving


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    data = stream.read() if stream is not None else b""
    if len(data) != member.size:
        raise tarfile.ReadError(f"it ends in the middle of '{member.name}'")
    return data
