"""A store with local copies of the objects that this machine wrote recently.

A worker that restarts on the same machine, or a spare there that replaces it, finds its last
snapshots in a folder and reads only the rest from the store. A copy counts only if it is exactly
what the manifest names: a torn, old or missing copy is ignored, and the store is read instead. The
folder is bounded: the least recently used copies are evicted first.
"""

import hashlib
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import get_protocol

from everstream.state.blobs import Blobs
from everstream.state.objects import Data, ObjectRef, checksum_of, pieces_of
from everstream.state.signing import StoreKey, blobs_at
from everstream.state.store import CheckpointStore

LIMIT_BYTES = 1 << 30
SHARE = 10
"""At most one part in this many of the free space of the disk."""
FORGOTTEN_S = 86_400.0
"""A folder that was unused for this long belongs to a run that was killed."""
PREFIX = "everstream-near-"


class LocalCopies:
    """The folder of one run on this machine."""

    def __init__(self, run: str, limit_bytes: int = LIMIT_BYTES) -> None:
        """run: known to all processes of a run; processes with the same value share the folder."""
        name = hashlib.sha256(run.encode()).hexdigest()[:32]
        self.folder = Path(tempfile.gettempdir()) / f"{PREFIX}{os.getuid()}-{name}"
        self._limit_bytes = limit_bytes

    def open(self) -> bool:
        """Whether there is a folder that only we can enter."""
        with suppress(OSError):
            self._sweep()
            self.folder.mkdir(mode=0o700, exist_ok=True)
            status = self.folder.lstat()
            private = stat.S_IMODE(status.st_mode) == 0o700 and status.st_uid == os.geteuid()
            free = shutil.disk_usage(self.folder).free
            self._limit_bytes = min(self._limit_bytes, free // SHARE)
            return private and stat.S_ISDIR(status.st_mode)
        return False

    def keep(self, ref: ObjectRef, data: Data) -> None:
        """Keep a copy, if there is room; nothing depends on it."""
        if ref.size_bytes > self._limit_bytes:
            return
        path = self._path(ref)
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        with suppress(OSError):
            with beside.open("wb") as file:
                file.writelines(pieces_of(data))
            beside.rename(path)
            self._make_room()

    def find(self, ref: ObjectRef) -> bytes | None:
        """The object, if the copy is exactly that."""
        path = self._path(ref)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if len(data) != ref.size_bytes or checksum_of(data) != ref.checksum:
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return data

    def remove(self) -> None:
        """The run is over."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, ref: ObjectRef) -> Path:
        name = hashlib.sha256(f"{ref.name}.{ref.checksum}".encode()).hexdigest()
        return self.folder / name

    def _make_room(self) -> None:
        copies = []
        for entry in os.scandir(self.folder):
            with suppress(FileNotFoundError):  # another worker is evicting, too
                known = entry.stat()
                copies.append((known.st_mtime, known.st_size, entry.path))
        total = sum(size for _, size, _ in copies)
        for _, size, path in sorted(copies):
            if total <= self._limit_bytes:
                return
            Path(path).unlink(missing_ok=True)
            total -= size

    def _sweep(self) -> None:
        for other in self.folder.parent.glob(f"{PREFIX}{os.getuid()}-*"):
            with suppress(OSError):
                if other != self.folder and time.time() - other.stat().st_mtime > FORGOTTEN_S:
                    shutil.rmtree(other, ignore_errors=True)


class LocalRecoveryStore(CheckpointStore):
    """A store whose objects are read from local copies first."""

    def __init__(self, blobs: Blobs, near: LocalCopies) -> None:
        super().__init__(blobs)
        self._near = near

    def put(self, name: str, data: Data) -> ObjectRef:
        ref = super().put(name, data)
        self._near.keep(ref, data)
        return ref

    def get(self, ref: ObjectRef) -> bytes:
        data = self._near.find(ref)
        if data is None:
            data = super().get(ref)
            self._near.keep(ref, data)
        return data


def helps(url: str) -> bool:
    """Whether local copies save time: a store that is a folder is already local."""
    return get_protocol(url) not in LocalFileSystem.protocol


def store_with(near: LocalCopies | None, url: str, key: StoreKey | None) -> CheckpointStore:
    """The store as a worker sees it."""
    if near is None or not near.open():
        return CheckpointStore.at(url, key)
    return LocalRecoveryStore(blobs_at(url, key), near)
