"""Our folders and files on a local disk: names that survive a power failure, closed to others.

A name is durable only when its folder has been synced; that applies to folders, too. A store or a
journal is readable by its owner alone, because it holds whatever the records hold. To share one
with a group, make its folder beforehand and let the group write to it (`mkdir -m 770 checkpoints`):
then the group may use everything in it.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make a closed file's content survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(folder: Path, private: Path | None = None) -> None:
    """Make a folder and its parents, each on the disk before the next.

    `private` and everything in it is closed to others; folders above follow the user's umask.
    """
    if folder.is_dir():
        # Another process may have made it a moment ago without syncing yet; a folder of a parent
        # that we may not read was not made by us.
        with suppress(PermissionError):
            sync_folder(folder.parent)
        return
    make_folders(folder.parent, private)
    if private is None or not folder.is_relative_to(private):
        folder.mkdir(exist_ok=True)
    else:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder != private and _is_shared(private):
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o070)
    sync_folder(folder.parent)


def create_private(path: Path, private: Path) -> int:
    """A new file in a private folder, to write and read; FileExistsError if it is there."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    if _is_shared(private):
        os.fchmod(descriptor, 0o660)
    return descriptor


def _is_shared(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IWGRP)
