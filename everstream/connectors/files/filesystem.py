"""Folders on any fsspec filesystem: opened once, absolute, and with errors that explain the fix.

Paths are made absolute where the pipeline is written, because a Spark task runs in another
working directory. On a local disk a file counts as durable only after an fsync of the file and
of its folder; other filesystems guarantee durability when a file is closed.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from everstream.errors import UserError
from everstream.state.storage import folders
from everstream.state.storage.bucket import PROTOCOLS

MAGIC = frozenset("*?[")
"""Characters that make a path a pattern."""


def filesystem_of(
    path: str | os.PathLike[str], options: Mapping[str, Any] | None = None
) -> tuple[Any, str]:
    """The filesystem of a path or URL, and the absolute path there."""
    url = os.fspath(path)
    scheme = fsspec.utils.get_protocol(url)
    if scheme in PROTOCOLS:
        from everstream.connectors.files.buckets import BucketFiles

        bucket = BucketFiles(scheme, **dict(options or {}))
        return bucket, bucket._strip_protocol(url)
    try:
        fs, inside = fsspec.core.url_to_fs(url, **dict(options or {}))
    except ImportError as error:
        raise UserError(
            f"'{url}' needs a package that is not installed: {error}. "
            "Install it on every machine that runs the pipeline."
        ) from error
    except ValueError as error:
        raise UserError(f"'{url}' is not a path or URL that can be opened: {error}.") from error
    return fs, inside.rstrip("/") or "/"


def is_pattern(path: str) -> bool:
    return not MAGIC.isdisjoint(path)


def place_of(fs: Any, path: str) -> str:
    """A file or folder as text, without credentials."""
    return path if is_local(fs) else f"{type(fs).__name__}: {path}"


def is_local(fs: Any) -> bool:
    return isinstance(fs, LocalFileSystem)


def opened_for_arrow(fs: Any, path: str) -> Any:
    """A file for Arrow to read, so that its threads do not wait for Python unnecessarily."""
    return pa.OSFile(path) if is_local(fs) else fs.open(path, "rb")


def names_in(fs: Any, folder: str) -> list[str]:
    """The names of the files directly in a folder; empty if there is no such folder."""
    fs.invalidate_cache(folder)
    try:
        entries = fs.ls(folder, detail=True)
    except FileNotFoundError:
        return []
    return sorted(entry["name"].rsplit("/", 1)[-1] for entry in entries if entry["type"] == "file")


def make_folders(fs: Any, folder: str, private: str | None = None) -> None:
    """Make a folder and its parents so that their names survive a power failure.

    On a local disk, other users have no access to `private` and what is in it.
    """
    if is_local(fs):
        folders.make_folders(Path(folder), None if private is None else Path(private))
    else:
        fs.makedirs(folder, exist_ok=True)


def create(fs: Any, path: str, private: str | None) -> Any:
    """An empty file, open for writing; on a local disk a private file is closed to other users."""
    if private is not None and is_local(fs):
        with suppress(FileExistsError):
            os.close(folders.create_private(Path(path), Path(private)))
    return fs.open(path, "wb")


def sync_file(fs: Any, path: str) -> None:
    """Make a closed file's content survive a power failure."""
    if is_local(fs):
        folders.sync_file(Path(path))


def sync_folder(fs: Any, folder: str) -> None:
    """Make the names in a folder survive a power failure."""
    if is_local(fs):
        folders.sync_folder(Path(folder))


def rename(fs: Any, source: str, target: str) -> None:
    """Move a file, replacing any file with the target name; atomic if the filesystem supports it."""
    if is_local(fs):
        os.replace(source, target)
    else:
        fs.mv(source, target)


def remove(fs: Any, path: str) -> None:
    """Remove a file; harmless if it is gone."""
    try:
        fs.rm_file(path)
    except FileNotFoundError:
        return
