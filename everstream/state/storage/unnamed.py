"""Files without names on the local disk, for data that is needed only while something refers to it.

A file without a name disappears when nothing refers to a piece of it any more: when everything was
read, when it is no longer needed, or when its process was killed. So nothing is ever left behind.
"""

import errno
import os
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from everstream.errors import EnvironmentFault

FILE_BYTES: Final = 256 << 20
"""A file is freed only when no piece of it is in use, so its size is limited."""


class UnnamedFile:
    """Grows at its end. Two threads may read and write at the same time."""

    def __init__(self, folder: str) -> None:
        self._fd, path = tempfile.mkstemp(prefix="unnamed-", dir=folder)
        os.unlink(path)
        self.size_bytes = 0

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def append(self, data: Sequence[Any]) -> "Piece":
        """Counts only when all of it is written."""
        with open(self._fd, "wb", buffering=1 << 18, closefd=False) as writer:
            writer.seek(self.size_bytes)
            at, checksum = self.size_bytes, 0
            for part in data:
                writer.write(part)
                checksum = zlib.crc32(part, checksum)
            end = writer.tell()
        self.size_bytes = end
        return Piece(self, at, end - at, checksum)

    def read(self, at: int, size_bytes: int) -> bytes:
        parts: list[bytes] = []
        end = at + size_bytes
        while at < end:
            part = os.pread(self._fd, end - at, at)
            if not part:
                raise EnvironmentFault(f"a file on the local disk is cut short. {_ANOTHER_DISK}")
            parts.append(part)
            at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(frozen=True)
class Piece:
    """A piece of data in such a file. A reference to it keeps the file."""

    file: UnnamedFile
    at: int
    size_bytes: int
    checksum: int

    def read(self) -> bytes:
        data = self.file.read(self.at, self.size_bytes)
        if zlib.crc32(data) != self.checksum:
            raise EnvironmentFault(
                f"the local disk returned other bytes than were written to it. {_ANOTHER_DISK}"
            )
        return data


class UnnamedFiles:
    """Consecutive pieces, in as many files as needed."""

    def __init__(self, folder: str, what: str) -> None:
        """folder: if it does not exist, the system's temporary one. what: the data, for errors."""
        self._folder = folder
        self._what = what
        self._file: UnnamedFile | None = None

    def append(self, data: Sequence[Any]) -> Piece:
        """Write this; raises an EnvironmentFault with the fix if that fails."""
        # A folder made for this would stay behind if its run has no driver.
        folder = self._folder if os.path.isdir(self._folder) else tempfile.gettempdir()
        try:
            if self._file is None or self._file.size_bytes >= FILE_BYTES:
                self._file = UnnamedFile(folder)
            return self._file.append(data)
        except OSError as error:
            raise EnvironmentFault(
                f"cannot write {self._what} to '{folder}': {error.strerror}. {_advice(error)}"
            ) from error

    def let_go(self) -> None:
        """Only holders of a piece still need what was written."""
        self._file = None


def _advice(error: OSError) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return (
                "Free some space there or set TMPDIR to a larger disk; then start again: the last "
                "checkpoint is complete."
            )
        case errno.EMFILE | errno.ENFILE:
            return "Too many open files: raise the limit (ulimit -n)."
    return _ANOTHER_DISK


_ANOTHER_DISK: Final = "Check the disk, or set TMPDIR to a folder on another one."
