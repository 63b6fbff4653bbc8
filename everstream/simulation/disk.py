"""A store that fails: writes torn, lost, late or not synced, errors of any kind, objects that rot.

Each write happens in one virtual instant, but a crash can hit that instant: then the file is
missing, or cut short, or complete although the writer got no answer. A put can also time out and
arrive much later, when its writer may be dead; a create that finds the name taken then changes
nothing.

A write is visible at once, but durable only when its folder has been synced: a power cut may undo
any change since then. As on a real disk, writes are synced and deletions are not.
"""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

from everstream.errors import NotStored
from everstream.simulation.faults import STORES, raise_one
from everstream.state.blobs import store_errors
from everstream.state.objects import Data, checksum_of, pieces_of


class DiskFull(NotStored):
    """There is no room, for a while."""


Operation: TypeAlias = Literal["put", "read", "delete"]


class SimulatedDisk:
    """Blobs in memory; the same interface as a real filesystem of the store."""

    def __init__(self, chance: random.Random) -> None:
        self.files: dict[str, bytes] = {}
        self.chance = chance
        self.full = False
        self.lose_answer = False
        self.delayed: dict[str, Callable[[str, Callable[[], None]], None]] = {}
        """Prefix -> callback that receives the next put of such a path, to perform it later."""
        self.odd: Counter[Operation] = Counter()
        """How many of the next operations raise an error of any kind."""
        self.watch: Callable[[str, bytes], None] | None = None
        """Called with everything that was created."""
        self._unsynced: dict[str, bytes | None] = {}
        """Path -> what a power cut may bring back (None: nothing was there)."""

    def write(self, path: str, data: Data) -> None:
        whole = b"".join(pieces_of(data))
        with store_errors(f"write '{path}'"):
            self._put(path, partial(self._set, path, whole))

    def write_summed(self, path: str, data: Data) -> str:
        checksum = checksum_of(data)
        self.write(f"{path}.{checksum}", data)
        return checksum

    def create(self, path: str, data: bytes) -> None:
        if path in self.files:
            raise FileExistsError(path)
        with store_errors(f"create '{path}'"):
            self._put(path, partial(self._create, path, data))
            if self.lose_answer:
                self.lose_answer = False
                raise OSError(5, "Input/output error", path)

    def _put(self, path: str, put: Callable[[], None]) -> None:
        if self.full:
            raise DiskFull(f"No space left on device: '{path}'")
        for prefix in self.delayed:
            if path.startswith(prefix):
                self.delayed.pop(prefix)(path, put)
                raise TimeoutError(110, "Connection timed out", path)
        if self.odd["put"] and self.chance.random() < 0.5:
            self._fail_oddly("put")
        put()
        self._fail_oddly("put")

    def _fail_oddly(self, operation: Operation) -> None:
        if self.odd[operation]:
            self.odd[operation] -= 1
            raise_one(STORES, f"the {operation} failed in an unusual way", self.chance)

    def _create(self, path: str, data: bytes) -> None:
        if path not in self.files:
            self._set(path, data)
            if self.watch is not None:
                self.watch(path, data)

    def _set(self, path: str, data: bytes) -> None:
        self._change(path, data)
        self.sync(path.rpartition("/")[0])

    def _change(self, path: str, data: bytes | None) -> None:
        """Visible, and not yet durable."""
        before = self.files.pop(path, None)
        self._unsynced.setdefault(path, before)
        if data is not None:
            self.files[path] = data

    def sync(self, folder: str) -> None:
        """All changes in this folder become durable."""
        for path in [path for path in self._unsynced if path.rpartition("/")[0] == folder]:
            del self._unsynced[path]

    def lose_unsynced(self) -> None:
        """The power is cut: each change that was not synced may be undone."""
        for path, before in self._unsynced.items():
            if self.chance.random() < 0.5:
                self.files.pop(path, None)
                if before is not None:
                    self.files[path] = before
        self._unsynced.clear()

    def read(self, path: str) -> bytes:
        with store_errors(f"read '{path}'"):
            self._fail_oddly("read")
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def list(self, prefix: str, after: str = "") -> list[str]:
        return sorted(path for path in self.files if path.startswith(prefix) and path > after)

    def delete(self, path: str) -> None:
        with store_errors(f"delete '{path}'"):
            self._fail_oddly("delete")
        if path in self.files:
            self._change(path, None)

    def clean(self) -> None:
        """There are no temporary files here."""

    def crash_during_write(self, path: str, data: bytes) -> None:
        """The writer died in this write: nothing, part or all of it is there."""
        fate = self.chance.random()
        if fate < 0.3:
            self._change(path, data[: self.chance.randrange(len(data) + 1)])
        elif fate < 0.5:
            self._change(path, data)

    def rot(self, path: str) -> None:
        """Change one byte, as silent corruption does."""
        data = bytearray(self.files[path])
        data[self.chance.randrange(len(data))] ^= 0x5A
        self.files[path] = bytes(data)
