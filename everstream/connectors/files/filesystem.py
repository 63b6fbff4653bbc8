"""Folders on any fsspec filesystem: opened once, absolute, and with errors that explain the fix.

Paths are made absolute where the pipeline is written, because a Spark task runs in another
working directory. On a local disk a file counts as durable only after an fsync of the file and
of its folder; other filesystems guarantee durability when a file is closed.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from everstream.errors import UserError
from everstream.extras import extra
from everstream.state.storage import folders
from everstream.state.storage.bucket import PROTOCOLS, create_in, open_store

MAGIC = frozenset("*?[")
"""Characters that make a path a pattern."""


def filesystem_of(
    path: str | os.PathLike[str], options: Mapping[str, Any] | None = None
) -> tuple[Any, str]:
    """The filesystem of a path or URL, and the absolute path there."""
    url = os.fspath(path)
    scheme = fsspec.utils.get_protocol(url)
    if scheme in PROTOCOLS:
        from everstream.connectors.files.filesystem import BucketFiles

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


def folders_in(fs: Any, folder: str) -> list[str]:
    """The names of the folders directly in a folder; empty if there is no such folder."""
    fs.invalidate_cache(folder)
    try:
        entries = fs.ls(folder, detail=True)
    except FileNotFoundError:
        return []
    found = (entry["name"].rstrip("/") for entry in entries if entry["type"] == "directory")
    return sorted(name.rsplit("/", 1)[-1] for name in found)


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
    try:
        fs.rm_file(path)
    except FileNotFoundError:
        return


RETRIES: Final[Any] = {"max_retries": 20, "retry_timeout": timedelta(seconds=60)}
"""Retries while an object store restarts."""
READ_AHEAD_BYTES: Final = 4 << 20
PART_BYTES: Final = 16 << 20
"""Files are uploaded in parts of this size."""


class BucketFiles(AbstractFileSystem):  # type: ignore[misc]
    """Paths are `bucket/folder/name`; options are obstore's (`access_key_id`, `endpoint`, ...)."""

    protocol = PROTOCOLS
    cachable = False  # the environment may have another endpoint the next time

    def __init__(self, scheme: str, **options: Any) -> None:
        super().__init__(scheme=scheme, **options)
        with extra("cloud"):
            import obstore
        self._obstore = obstore
        self._scheme = scheme
        self._options = options
        self._stores: dict[str, Any] = {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        scheme, separator, rest = str(path).partition("://")
        return (rest if separator and scheme in PROTOCOLS else str(path)).rstrip("/")

    # Listing.

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        store, key = self._at(path)
        if key:
            try:
                with _as_os_error(path):
                    return _file(path, self._obstore.head(store, key)["size"])
            except FileNotFoundError:
                pass
        if self._listed(path):
            return _folder(path)
        raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        entries = self._listed(path) or [self.info(path)]
        return entries if detail else [entry["name"] for entry in entries]

    def _listed(self, folder: str) -> list[dict[str, Any]]:
        store, key = self._at(folder)
        bucket = folder.partition("/")[0]
        with _as_os_error(folder):
            listing = self._obstore.list_with_delimiter(store, f"{key}/" if key else None)
        folders = [_folder(f"{bucket}/{name.rstrip('/')}") for name in listing["common_prefixes"]]
        # Some servers list a folder that was created or emptied as an object.
        inside = [meta for meta in listing["objects"] if meta["path"] != key]
        return [*folders, *(_file(f"{bucket}/{m['path']}", m["size"]) for m in inside)]

    # Reading.

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        path = self._strip_protocol(path)
        store, key = self._at(path)
        with _as_os_error(path):
            if start is None and end is None:
                return bytes(self._obstore.get(store, key).bytes())
            size: int = self._obstore.head(store, key)["size"]
            first, last = slice(start, end).indices(size)[:2]
            if last <= first:
                return b""
            return bytes(self._obstore.get_range(store, key, start=first, end=last))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        path = self._strip_protocol(path)
        if mode == "rb":
            return _Reading(self, path, mode, READ_AHEAD_BYTES)
        if mode != "wb":
            raise ValueError(f"a file in a bucket is read (rb) or written (wb), not '{mode}'")
        store, key = self._at(path)
        return _Writing(self._obstore.open_writer(store, key, buffer_size=PART_BYTES), path)

    # Changing.

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        path = self._strip_protocol(path)
        store, key = self._at(path)
        with _as_os_error(path):
            if mode == "create":
                create_in(store, key, value)
            else:
                self._obstore.put(store, key, value)

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        """A copy, then a delete: if interrupted in between, it is repeated."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        store, key = self._at(source)
        with _as_os_error(source):
            self._obstore.copy(store, key, self._at(target)[1])
        self.rm_file(source)

    def rm_file(self, path: str) -> None:
        path = self._strip_protocol(path)
        store, key = self._at(path)
        with _as_os_error(path):
            self._obstore.delete(store, key)

    def rm(self, path: Any, recursive: bool = False, **_: Any) -> None:
        for each in path if isinstance(path, list) else [path]:
            for name in self.find(each) if recursive else [each]:
                self.rm_file(name)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Nothing to do: a folder exists when it contains something."""

    def _at(self, path: str) -> tuple[Any, str]:
        """The bucket of a path, opened once, and the name in it."""
        bucket, _, key = path.partition("/")
        if bucket not in self._stores:
            self._stores[bucket] = self._opened(bucket)
        return self._stores[bucket], key

    def _opened(self, bucket: str) -> Any:
        from obstore.exceptions import BaseError

        try:
            return open_store(f"{self._scheme}://{bucket}", self._options, RETRIES)
        except (BaseError, ValueError, TypeError) as error:
            # The error shows the names of options, never their values.
            raise UserError(
                f"the bucket '{self._scheme}://{bucket}' cannot be opened ({type(error).__name__}). "
                "Set region, endpoint and credentials as environment variables, or pass obstore's "
                f"names for them; given: {', '.join(self._options) or 'none'}."
            ) from None


class _Reading(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start, end)
        return data


class _Writing:
    """A file that appears when it is closed; if never closed, it leaves nothing visible."""

    def __init__(self, writer: Any, path: str) -> None:
        self._writer = writer
        self._path = path

    def __enter__(self) -> "_Writing":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: bytes) -> int:
        with _as_os_error(self._path):
            self._writer.write(data)
        return len(data)

    def close(self) -> None:
        if not self._writer.closed():
            with _as_os_error(self._path):
                self._writer.close()


def _file(path: str, size: int) -> dict[str, Any]:
    return {"name": path, "size": size, "type": "file"}


def _folder(path: str) -> dict[str, Any]:
    return {"name": path, "size": 0, "type": "directory"}


@contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Converts what obstore raises to the OSErrors that connectors expect."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(path) from None
    except BaseError as error:
        text = " ".join(str(error).split("\n\nDebug source")[0].split())
        raise OSError(f"{path}: {text}") from None
