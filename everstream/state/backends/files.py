"""The files of a table on disk in a checkpoint: named, and put into the store once.

A table's files never change, so a checkpoint is a list of objects, and those that an earlier one
has put into the store are only named again. A shelf on the local disk keeps links to files that are
in the store: a rollback takes from there the files that still exist, and fetches the rest.
"""

import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from everstream.errors import CorruptObject, InternalError, StoreError
from everstream.state.backends.table import FILES, RocksTable
from everstream.state.objects import ObjectRef
from everstream.state.saved import Saved

Put: TypeAlias = Callable[[str, Any], ObjectRef]
Load: TypeAlias = Callable[[Sequence[ObjectRef]], list[bytes]]

_LEFT_OUT: Final = (".log", "LOG", "LOCK", "IDENTITY")
"""Files that a table makes anew, or does not need."""


class SavedFiles(Saved, word="disk-state"):
    """One store on disk in a snapshot: its files, as objects of the store."""

    def __init__(self, files: dict[str, ObjectRef], small: dict[str, bytes], keys: int) -> None:
        self._files = {
            name: (ref.name, ref.size_bytes, ref.checksum) for name, ref in files.items()
        }
        self.small = small
        """Small files that change with every checkpoint: their contents."""
        self.keys = keys

    @property
    def files(self) -> dict[str, ObjectRef]:
        return {name: ObjectRef(*ref) for name, ref in self._files.items()}

    def fetch(self, folder: Path, shelf: "Shelf", load: Load) -> None:
        """Fill a folder for opening a table. Raises CorruptObject if a file is incomplete."""
        for name in (*self._files, *self.small):
            if name != os.path.basename(name) or name in ("", ".", ".."):
                raise CorruptObject(f"a checkpoint names the file '{name}', outside of its folder.")
        for name, ref in self.files.items():
            if not shelf.take(ref, folder / name):
                [data] = load([ref])
                (folder / name).write_bytes(data)
                shelf.keep(ref, folder / name)
        for name, data in self.small.items():
            (folder / name).write_bytes(data)


class Shelf:
    """Links to files that are in the store, by their checksums."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, ref: ObjectRef, path: Path) -> None:
        """Keep a link to this file, the content of that object."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):
            os.link(path, self._place(ref))

    def take(self, ref: ObjectRef, path: Path) -> bool:
        """Link it to this path if it is here."""
        try:
            os.link(self._place(ref), path)
        except OSError:
            return False
        # Its blocks have checksums, which every read of a block verifies.
        if path.stat().st_size == ref.size_bytes:
            return True
        path.unlink()
        return False

    def forget(self, refs: Collection[ObjectRef]) -> None:
        for ref in refs:
            self._place(ref).unlink(missing_ok=True)

    def forget_all_but(self, refs: Collection[ObjectRef]) -> None:
        kept = {self._place(ref) for ref in refs}
        for path in self._folder.glob("*"):
            if path not in kept:
                path.unlink(missing_ok=True)

    def _place(self, ref: ObjectRef) -> Path:
        return self._folder / f"{ref.checksum}-{ref.size_bytes}"


class Frozen:
    """A table as of one instant.

    Until `make` is done, the table must not be written to. The thread that saves it or the thread
    that wants to write makes it, whichever comes first. From then on it is only links to files, so
    a writer does not wait until it is saved.
    """

    def __init__(
        self,
        table: RocksTable,
        folder: Path,
        keys: int,
        known: dict[str, ObjectRef],
        shelf: Shelf,
        owner: str,
    ) -> None:
        """known: the files that are already in the store; those put there are added to it."""
        self._table = table
        self._folder = folder
        self._keys = keys
        self._known = known
        self._shelf = shelf
        self._owner = owner
        self._saving = threading.Lock()
        self._making = threading.Lock()
        """Taken by the holder of the other lock, or alone."""
        self._made = False
        self._given_up = False
        self.saved: SavedFiles | None = None
        self.new_bytes = 0
        """The bytes put into the store because of it."""

    @property
    def made(self) -> bool:
        """Whether the table may be written to."""
        return self._made

    def make(self) -> None:
        """Link the files as they are now."""
        with self._making:
            if self._given_up:
                raise StoreError(f"the state of {self._owner} was given up before it was saved")
            if not self._made:
                self._table.save_as(self._folder)
                self._made = True

    def save(self, put: Put, prefix: str) -> SavedFiles:
        """Put missing files into the store. Done once, however many checkpoints use it."""
        with self._saving:
            if self.saved is None:
                self.make()
                self.saved = self._save(put, prefix)
                shutil.rmtree(self._folder, ignore_errors=True)
            return self.saved

    def give_up(self) -> None:
        """The table is about to be closed, or this capture is no longer needed."""
        with self._saving, self._making:
            self._given_up = True
            shutil.rmtree(self._folder, ignore_errors=True)

    def _save(self, put: Put, prefix: str) -> SavedFiles:
        files, small = {}, {}
        for path in sorted(self._folder.iterdir()):
            if path.name.endswith(_LEFT_OUT):
                continue
            if path.suffix != FILES:
                small[path.name] = path.read_bytes()
                continue
            ref = self._known.get(path.name)
            if ref is None:
                ref = put(f"{prefix}/{place_of(self._owner)}-{path.name}", path.read_bytes())
                self._known[path.name] = ref
                self.new_bytes += ref.size_bytes
            files[path.name] = ref
            self._shelf.keep(ref, path)
        if "CURRENT" not in small:
            raise InternalError(f"the files of {self._owner} are incomplete: {sorted(small)}")
        return SavedFiles(files, small, self._keys)


def place_of(owner: str) -> str:
    """A unique name for the folder or object of a state."""
    return hashlib.sha1(owner.encode(), usedforsecurity=False).hexdigest()[:12]


def new_folder(parent: Path) -> Path:
    """An empty folder in here that nothing else uses."""
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Path(tempfile.mkdtemp(dir=parent))


def temporary_folder() -> Path:
    """A folder for data that is read once."""
    return Path(tempfile.mkdtemp(prefix="everstream-read-"))
