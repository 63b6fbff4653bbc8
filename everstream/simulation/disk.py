"""A store that fails: writes can be torn or lost in a crash, and objects can rot.

Each write happens in one virtual instant, but a crash can hit the instant itself: then the file
is missing, or cut short, or whole although nobody was told.
"""

import random

from everstream.state.objects import Data, checksum_of, pieces_of


class DiskFull(OSError):
    """There is no room, for a while."""


class SimulatedDisk:
    """Blobs in memory; the same interface as a real filesystem of the store."""

    def __init__(self, chance: random.Random) -> None:
        self.files: dict[str, bytes] = {}
        self.chance = chance
        self.full = False
        self.lose_answer = False

    def write(self, path: str, data: Data) -> None:
        if self.full:
            raise DiskFull(28, "No space left on device", path)
        self.files[path] = b"".join(pieces_of(data))

    def write_summed(self, path: str, data: Data) -> str:
        checksum = checksum_of(data)
        self.write(f"{path}.{checksum}", data)
        return checksum

    def create(self, path: str, data: bytes) -> None:
        if path in self.files:
            raise FileExistsError(path)
        self.write(path, data)
        if self.lose_answer:
            self.lose_answer = False
            raise OSError(5, "Input/output error", path)

    def read(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def list(self, prefix: str) -> list[str]:
        return sorted(path for path in self.files if path.startswith(prefix))

    def delete(self, path: str) -> None:
        self.files.pop(path, None)

    def clean(self) -> None:
        """There are no temporary files here."""

    def crash_during_write(self, path: str, data: bytes) -> None:
        """The writer died in this write: nothing, part or all of it is there."""
        fate = self.chance.random()
        if fate < 0.3:
            self.files[path] = data[: self.chance.randrange(len(data) + 1)]
        elif fate < 0.5:
            self.files[path] = data

    def rot(self, path: str) -> None:
        """One byte changes by itself."""
        data = bytearray(self.files[path])
        data[self.chance.randrange(len(data))] ^= 0x5A
        self.files[path] = bytes(data)
