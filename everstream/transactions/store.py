"""Where a log lives: a local folder, or any fsspec filesystem.

A local folder appends to files, and `sync` calls fsync. An object store cannot append, so each
block becomes a separate object, durable at once. Both put whole objects under their name in
one step.
"""

import os
from abc import ABC, abstractmethod
from io import BufferedWriter, RawIOBase
from pathlib import Path
from typing import Any

import fsspec

from everstream.state.storage.folders import sync_folder


class Store(ABC):
    snapshots_kept = 2
    """How many snapshots a log keeps, so that there is an older one if one is damaged."""

    @abstractmethod
    def append(self, name: str, data: bytes) -> None:
        """Add to the end of an object; `sync` makes it durable."""

    @abstractmethod
    def sync(self) -> None:
        """Make everything appended so far durable."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Make a whole object durable under its name, in one step."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """Everything appended or put under a name."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all objects."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an object."""

    @abstractmethod
    def seal(self) -> None:
        """Close open files; later appends start new ones."""


def open_store(place: str | os.PathLike[str]) -> Store:
    """A store from a folder path or an fsspec URL such as `memory://ledger` or `s3://b/p`."""
    text = os.fspath(place)
    if "://" in text and not text.startswith("file://"):
        filesystem, path = fsspec.core.url_to_fs(text)
        return ObjectStore(filesystem, path)
    return LocalStore(Path(text.removeprefix("file://")))


class LocalStore(Store):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._open: dict[str, BufferedWriter | RawIOBase] = {}
        self._dirty: set[str] = set()

    def append(self, name: str, data: bytes) -> None:
        file = self._open.get(name)
        if file is None:
            file = self._open[name] = open(self._folder / name, "ab", buffering=0)  # noqa: SIM115
            sync_folder(self._folder)
        view = memoryview(data)
        self._dirty.add(name)
        while len(view):
            written = file.write(view)
            view = view[written or 0 :]

    def sync(self) -> None:
        for name in self._dirty:
            os.fsync(self._open[name].fileno())
        self._dirty.clear()

    def put(self, name: str, data: bytes) -> None:
        temporary = self._folder / f"{name}.tmp"
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._folder / name)
        sync_folder(self._folder)

    def get(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self._folder) if not name.endswith(".tmp"))

    def delete(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def seal(self) -> None:
        self.sync()
        for file in self._open.values():
            file.close()
        self._open.clear()


class ObjectStore(Store):
    """Blocks as objects `name/000000`, `name/000001`, ... on an fsspec filesystem."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem = filesystem
        self._path = path.rstrip("/")
        filesystem.makedirs(self._path, exist_ok=True)
        self._counts: dict[str, int] = {}

    def append(self, name: str, data: bytes) -> None:
        count = self._counts.get(name)
        if count is None:
            count = len(self._parts(name))
        self._filesystem.pipe_file(f"{self._path}/{name}/{count:09d}", data)
        self._counts[name] = count + 1

    def sync(self) -> None:
        """An object is durable once it is put."""

    def _parts(self, name: str) -> list[str]:
        if not self._filesystem.exists(f"{self._path}/{name}"):
            return []
        return sorted(self._filesystem.ls(f"{self._path}/{name}", detail=False))

    def put(self, name: str, data: bytes) -> None:
        self._filesystem.pipe_file(f"{self._path}/{name}/000000000", data)

    def get(self, name: str) -> bytes:
        return b"".join(self._filesystem.cat_file(part) for part in self._parts(name))

    def names(self) -> list[str]:
        self._filesystem.invalidate_cache()
        entries = self._filesystem.ls(self._path, detail=False)
        return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries)

    def delete(self, name: str) -> None:
        self._filesystem.rm(f"{self._path}/{name}", recursive=True)

    def seal(self) -> None:
        self._counts.clear()
