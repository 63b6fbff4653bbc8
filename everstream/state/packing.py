"""A savepoint as one file: a tar archive with its manifest first and its objects behind it.

It is read and written piece by piece, so no more than one object is in memory. What comes in is
checked against the manifest, object by object, before any of it counts.
"""

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

from everstream.errors import StoreError, UserError
from everstream.state.objects import ObjectRef
from everstream.state.savepoints import Incoming, Savepoint, objects_in
from everstream.state.store import CheckpointStore

FIRST = "savepoint.json"

Told = Callable[[ObjectRef], None]


def export_savepoint(
    store: CheckpointStore, kept: Savepoint, file: str | os.PathLike[str], told: Told
) -> None:
    """Write it into a file, which is there only when it is whole. `told` of each object."""
    path = Path(file)
    if path.exists():
        raise UserError(f"'{path}' is there already: delete it, or give another name.")
    unfinished = path.with_name(path.name + ".unfinished")
    with tarfile.open(unfinished, "w") as archive:
        head = {"name": kept.name, **kept.to_json()}
        _add(archive, FIRST, json.dumps(head).encode())
        for ref, data in objects_in(store, kept):
            _add(archive, ref.name, data)
            told(ref)
    with unfinished.open("rb") as written:
        os.fsync(written.fileno())
    unfinished.rename(path)


def import_savepoint(
    store: CheckpointStore, file: str | os.PathLike[str], name: str | None, told: Told
) -> Savepoint:
    """Put the savepoint of such a file into a store, under its own name or another."""
    try:
        with tarfile.open(file, "r:") as archive:
            head = archive.next()
            if head is None or head.name != FIRST:
                raise tarfile.ReadError("it does not begin with a savepoint's manifest")
            fields = json.loads(_content(archive, head))
            # Its place was in the log of another store.
            arriving = Savepoint.from_json(name or fields["name"], {**fields, "slot": None})
            incoming = Incoming(store, arriving)
            while (member := archive.next()) is not None:
                data = _content(archive, member)
                incoming.add(member.name, data)
                told(ObjectRef.of(member.name, data))
            incoming.finish()
    except (tarfile.TarError, ValueError, KeyError) as error:
        raise StoreError(f"'{file}' is no whole savepoint: {error}") from None
    except OSError as error:
        raise UserError(f"'{file}' cannot be read: {error}") from None
    return arriving


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    found = archive.extractfile(member)
    data = found.read() if found is not None else b""
    if len(data) != member.size:
        raise tarfile.ReadError(f"it ends in the middle of '{member.name}'")
    return data
