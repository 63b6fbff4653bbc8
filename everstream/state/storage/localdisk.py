"""Blobs on a local disk: complete or absent, whatever dies in between.

Data goes to a temporary name, is forced to the disk, and only then gets its real name, by rename
(which replaces) or by hard link (which does not). Temporary names identify their writer, so that
leftovers of a crash can be told from files that a live process is still writing.
"""

import mmap
import os
import re
import socket
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from everstream.state.objects import Data, checksum_of, pieces_of
from everstream.state.storage.folders import create_private, make_folders, sync_folder

PIECES_PER_WRITE = 1000
"""The system accepts at most 1024."""

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<host>[^.]+)\.(?P<pid>\d+)\.\d+\.tmp")
_HOST = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname()) or "localhost"
_serial = count()


class NothingPut(OSError):
    """Failed before the blob got its name: it is not there, and will not appear later."""


class LocalDisk:
    """Blobs in a folder. Raises OSError; paths are relative, with forward slashes."""

    def __init__(self, root: str) -> None:
        self._root = Path(os.path.abspath(root))
        self._made: set[Path] = set()

    def write(self, path: str, data: Data) -> None:
        target = self._root / path
        temporary, _ = self._write_temporary(target, data, _no_checksum)
        self._rename(temporary, target)

    def write_summed(self, path: str, data: Data) -> str:
        target = self._root / path
        alone = len(pieces_of(data)) == 1
        of_file = (lambda descriptor: checksum_of(data)) if alone else _checksum_of_file
        temporary, checksum = self._write_temporary(target, data, of_file)
        self._rename(temporary, target.with_name(f"{target.name}.{checksum}"))
        return checksum

    def create(self, path: str, data: bytes) -> None:
        target = self._root / path
        try:
            temporary, _ = self._write_temporary(target, data, _no_checksum)
        except OSError as error:
            raise NothingPut(error.errno, error.strerror) from error
        try:
            try:
                os.link(temporary, target)
            except FileExistsError:
                # A network disk may report a link that it made, after a lost reply, as failed.
                if os.stat(temporary).st_nlink != 2:
                    raise
        finally:
            _unlink(temporary)
        sync_folder(target.parent)

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def list(self, prefix: str, after: str = "") -> list[str]:
        return [path for path in self._walk(prefix, after) if not _is_temporary(path)]

    def delete(self, path: str) -> None:
        _unlink(self._root / path)

    def clean(self) -> None:
        """Remove temporary files, except those of other live processes on this machine."""
        for path in self._walk(""):
            match = _TEMPORARY.fullmatch(path.rpartition("/")[2])
            if match is None:
                continue
            alive = match["host"] == _HOST and _is_alive(int(match["pid"]))
            if not alive:
                _unlink(self._root / path)

    def _walk(self, prefix: str, after: str = "") -> Iterator[str]:
        folder = prefix.rpartition("/")[0]
        folders = [f"{folder}/" if folder else ""]
        while folders:
            inner = folders.pop()
            try:
                with os.scandir(self._root / inner) as scan:
                    entries = [*scan]
            except FileNotFoundError:
                continue
            folders += [f"{inner}{e.name}/" for e in entries if e.is_dir() and not e.is_symlink()]
            # A folder can have very many files of which few are requested.
            paths = [inner + entry.name for entry in entries if not entry.is_dir()]
            yield from [path for path in paths if path > after and path.startswith(prefix)]

    def _rename(self, temporary: Path, target: Path) -> None:
        try:
            os.replace(temporary, target)
        except OSError:
            _unlink(temporary)
            raise
        sync_folder(target.parent)

    def _write_temporary(
        self, target: Path, data: Data, checksum_of_file: Callable[[int], str]
    ) -> tuple[Path, str]:
        name = f".{target.name}.{_HOST}.{os.getpid()}.{next(_serial)}.tmp"
        temporary = target.parent / name
        if target.parent not in self._made:
            make_folders(target.parent, self._root)
            self._made.add(target.parent)
        try:
            descriptor = create_private(temporary, self._root)
        except FileNotFoundError:
            make_folders(target.parent, self._root)
            descriptor = create_private(temporary, self._root)
        try:
            try:
                _write_all(descriptor, pieces_of(data))
                checksum = checksum_of_file(descriptor)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            _unlink(temporary)
            raise
        return temporary, checksum


def _write_all(descriptor: int, pieces: tuple[bytes, ...]) -> None:
    """Many pieces in one call: each return from a call competes with the shards for the GIL."""
    rest = [memoryview(piece) for piece in reversed(pieces) if piece]
    while rest:
        written = os.writev(descriptor, rest[: -PIECES_PER_WRITE - 1 : -1])
        while rest and written >= len(rest[-1]):
            written -= len(rest.pop())
        if written:
            rest[-1] = rest[-1][written:]


def _checksum_of_file(descriptor: int) -> str:
    """The checksum of what was just written, from the page cache, in one call for the same reason.

    Its pages are mapped as they are read: mapping them all first would keep the shards from the
    GIL.
    """
    if not os.fstat(descriptor).st_size:
        return checksum_of(b"")
    with mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as content:
        return checksum_of((content,))  # type: ignore[arg-type]


def _no_checksum(descriptor: int) -> str:
    return ""


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def _is_temporary(path: str) -> bool:
    return path.endswith(".tmp") and _TEMPORARY.fullmatch(path.rpartition("/")[2]) is not None


def _is_alive(pid: int) -> bool:
    if pid == os.getpid():
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
