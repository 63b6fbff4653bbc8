"""A lock that shows which run on this machine uses a store; it disappears with its process.

The lease in the log of manifests makes two drivers safe: only the later one can add anything. The
lock is for people: it tells a second run that the first is still alive, before it fences that one
by mistake. The system releases it when the process ends, however that happens. For a store that is
no local folder it is kept in the folder for temporary files and is visible on this machine alone:
in a folder that only its owner can enter, because other users can put links and files beside it.
"""

import errno
import fcntl
import hashlib
import os
import stat
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import get_protocol

from everstream.errors import EnvironmentFault, UserError
from everstream.state.storage.folders import make_folders

LOCK = "driver.lock"
TEXT_BYTES = 4096
_here: Counter[Path] = Counter()
"""The locks of runs in this process. The system does not distinguish between them, and releases a
lock when any descriptor of its file is closed: so their files are opened once."""
_changing = threading.Lock()


@contextmanager
def held(url: str, owner: str, take_over: bool) -> Iterator[None]:
    """Hold the store for a run of `owner`; a UserError if another run holds it.

    With `take_over`, the previous holder keeps a lock that is no longer checked.
    """
    path = _path(url)
    with _changing:
        if _here[path] and not take_over:
            raise _in_use(url, "another run of this process")
        _here[path] += 1
    try:
        with _locked(path, url, owner, take_over):
            yield
    finally:
        with _changing:
            _here[path] -= 1


@contextmanager
def _locked(path: Path, url: str, owner: str, take_over: bool) -> Iterator[None]:
    descriptor = _opened(path, take_over)
    if descriptor is None:
        yield  # such a store cannot be opened either, and opening it gives a better error
        return
    try:
        if not _lock(descriptor):
            raise _in_use(url, _owner(descriptor))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, owner.encode()[:TEXT_BYTES], 0)
        yield
    finally:
        os.close(descriptor)


def _in_use(url: str, owner: str) -> UserError:
    return UserError(
        f"the store '{url}' is in use: {owner} is running on it. Stop that run first, or name "
        "another store. To take the store from it use --take-over (take_over=True): it can then "
        "make nothing stable any more, and ends."
    )


def holder_of(url: str) -> str | None:
    """The owner of the run on this store, if it is in another process of this machine."""
    path = _path(url)
    if _here[path]:
        return None
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return None if _lock(descriptor) else _owner(descriptor)
    finally:
        os.close(descriptor)


def is_held(url: str) -> bool:
    """Whether a run uses this store, in this process or another one of this machine."""
    return _here[_path(url)] > 0 or holder_of(url) is not None


def _path(url: str) -> Path:
    if get_protocol(url) in LocalFileSystem.protocol:
        return Path(LocalFileSystem._strip_protocol(url)) / LOCK
    name = hashlib.sha256(url.encode()).hexdigest()[:32]
    return _private_folder() / f"{name}.lock"


def _private_folder() -> Path:
    """The folder for locks of stores that are no folders of this machine."""
    folder = Path(tempfile.gettempdir()) / f"everstream-locks-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise EnvironmentFault(
            f"'{folder}' is not a folder that only you can enter: another user created it, or it "
            "is open to others. Remove it, or set TMPDIR to a folder that belongs to you."
        )
    return folder


def _opened(path: Path, anew: bool) -> int | None:
    try:
        make_folders(path.parent, path.parent)
        if anew:
            path.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise EnvironmentFault(
                f"'{path}' is a link, and locks are never opened through one: remove it."
            ) from None
        return None


def _lock(descriptor: int) -> bool:
    """Whether it is ours now. On a filesystem without locks, no other holder is known."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def _owner(descriptor: int) -> str:
    text = os.pread(descriptor, TEXT_BYTES, 0).decode(errors="replace")
    return f"'{text}'" if text else "another run"
