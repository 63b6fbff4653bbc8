"""A store with what this machine wrote lately near at hand, on its own disk.

A worker that is started again on the same machine, or a spare there that takes its place, finds its last
snapshots in a folder and reads only the rest from the store. A copy counts only if it is exactly what
the manifest names: one that is torn, old or gone is passed over, and the store has the last word. The
folder is bounded: what was used longest ago goes first.
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
"""Of the free space of the disk at most one in so many parts."""
FORGOTTEN_S = 86_400.0
"""A folder that nobody has used for so long belongs to a run that was killed."""
PREFIX = "everstream-near-"


class LocalCopies:
    """The folder of one run on this machine."""

    def __init__(self, run: str, limit_bytes: int = LIMIT_BYTES) -> None:
        """run: known to all processes of a run; all who say the same share the folder."""
        name = hashlib.sha256(run.encode()).hexdigest()[:32]
        self.folder = Path(tempfile.gettempdir()) / f"{PREFIX}{os.getuid()}-{name}"
        self._limit_bytes = limit_bytes

    def open(self) -> bool:
        """Whether there is one that only we can enter."""
        with suppress(OSError):
            self._sweep()
            self.folder.mkdir(mode=0o700, exist_ok=True)
            found = self.folder.lstat()
            private = stat.S_IMODE(found.st_mode) == 0o700 and found.st_uid == os.geteuid()
            free = shutil.disk_usage(self.folder).free
            self._limit_bytes = min(self._limit_bytes, free // SHARE)
            return private and stat.S_ISDIR(found.st_mode)
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
        """The object, if what is here is exactly that."""
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
        found = []
        for entry in os.scandir(self.folder):
            with suppress(FileNotFoundError):  # another worker has made room, too
                known = entry.stat()
                found.append((known.st_mtime, known.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
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
    """A store whose objects are looked for near at hand first."""

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
    """Whether copies near at hand spare anybody a way: a store that is a folder is near already."""
    return get_protocol(url) not in LocalFileSystem.protocol


def store_with(near: LocalCopies | None, url: str, key: StoreKey | None) -> CheckpointStore:
    """The store as a worker sees it."""
    if near is None or not near.open():
        return CheckpointStore.at(url, key)
    return LocalRecoveryStore(blobs_at(url, key), near)
