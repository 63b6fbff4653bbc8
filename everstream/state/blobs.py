"""Blobs: named bytes in a folder, on a local disk or any other filesystem fsspec knows.

A blob is complete or absent. `write` replaces; `create` lets exactly one of several creators win,
which the order of manifests depends on. Every error underneath becomes a StoreError that names the
path and the fix.
"""

import builtins
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from everstream.errors import EverstreamError, InternalError, NotStored, StoreError, said
from everstream.state.objects import Data, checksum_of, pieces_of
from everstream.state.storage.bucket import PROBES, PROTOCOLS, Bucket
from everstream.state.storage.exclusive import Creating, exclusive_create
from everstream.state.storage.localdisk import LocalDisk, NothingPut


class Blobs(Protocol):
    """Named bytes. Paths are relative, with forward slashes."""

    def write(self, path: str, data: Data) -> None:
        """Put these bytes there, replacing existing ones; a reader never sees half of them."""

    def write_summed(self, path: str, data: Data) -> str:
        """Like `write`, to the path with a dot and the data's checksum. Returns the checksum."""

    def create(self, path: str, data: bytes) -> None:
        """Put these bytes there if the path is free, else raise FileExistsError.

        NotStored means that they are not there; after any other error they may be, or appear later.
        """

    def read(self, path: str) -> bytes:
        """The bytes; FileNotFoundError if there are none."""

    def list(self, prefix: str, after: str = "") -> list[str]:
        """The paths that start with this prefix and come after this one, sorted."""

    def delete(self, path: str) -> None:
        """Remove a blob; harmless if it is not there."""

    def clean(self) -> None:
        """Remove files left behind by dead writers."""


class FsspecBlobs:
    """Blobs under a URL: a local folder, memory://, s3://, gs://, az:// or others.

    Picklable: the other side opens the same URL.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self._options = options
        self._disk: Blobs
        if url.partition("://")[0] in PROTOCOLS:
            self._disk = Bucket(url, **options)
            return
        try:
            filesystem, root = fsspec.core.url_to_fs(url, **options)
        except ImportError as error:
            raise StoreError(f"the store '{url}' needs a package: {error}") from error
        except ValueError as error:
            raise StoreError(
                f"the store '{url}' cannot be opened: {error}. Give a folder, or a URL with a "
                "protocol that fsspec knows, such as s3://bucket/folder."
            ) from error
        local = isinstance(filesystem, LocalFileSystem)
        self._disk = LocalDisk(root) if local else _Remote(filesystem, root)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen, (self.url, self._options))

    def __repr__(self) -> str:
        return f"FsspecBlobs({self.url!r})"

    def write(self, path: str, data: Data) -> None:
        with self._errors("write", path):
            self._disk.write(path, data)

    def write_summed(self, path: str, data: Data) -> str:
        with self._errors("write", path):
            return self._disk.write_summed(path, data)

    def create(self, path: str, data: bytes) -> None:
        with self._errors("create", path, passing=(FileExistsError,)):
            self._disk.create(path, data)

    def read(self, path: str) -> bytes:
        with self._errors("read", path, passing=(FileNotFoundError,)):
            return self._disk.read(path)

    def list(self, prefix: str, after: str = "") -> builtins.list[str]:
        with self._errors("list", prefix or "."):
            return sorted(self._disk.list(prefix, after))

    def delete(self, path: str) -> None:
        with self._errors("delete", path):
            self._disk.delete(path)

    def clean(self) -> None:
        with self._errors("clean", "."):
            self._disk.clean()

    @contextmanager
    def _errors(
        self, verb: str, path: str, passing: tuple[type[OSError], ...] = ()
    ) -> Iterator[None]:
        if path.startswith("/") or ".." in path.split("/"):
            raise InternalError(f"'{path}' is not a path inside the store '{self.url}'")
        with store_errors(f"{verb} '{path}' in the store '{self.url}'", passing):
            yield


@contextmanager
def store_errors(what: str, passing: tuple[type[OSError], ...] = ()) -> Iterator[None]:
    """Turn every error into a StoreError that names the failed operation and the cause.

    Libraries of object stores raise errors of many kinds, most of which are no OSError.
    """
    try:
        yield
    except EverstreamError:
        raise
    except OSError as error:
        if isinstance(error, passing):
            raise
        kind = NotStored if isinstance(error, NothingPut) else StoreError
        why = error.strerror or said(error) or type(error).__name__
        raise kind(f"cannot {what}: {why}. {_advice(error)}") from error
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a cancelled request, for example, is no Exception
        cause = f"{type(error).__module__}.{type(error).__qualname__}: {said(error)}"
        raise StoreError(f"cannot {what}: {cause}. {_REACHABLE}") from error


def _reopen(url: str, options: dict[str, Any]) -> FsspecBlobs:
    return FsspecBlobs(url, **options)


def _advice(error: OSError) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return (
                "Free some space or put the store on a larger disk; then start again: the last "
                "checkpoint is complete."
            )
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return (
                "Grant this user write access, or choose another store. Its filesystem must allow "
                "hard links."
            )
        case errno.ENOTSUP | errno.ENOSYS | errno.EMLINK:
            return "This filesystem has no hard links: put the store on one that has."
        case errno.ENOTDIR | errno.EISDIR | errno.EEXIST:
            return "A file is in the place of a folder: choose another store or move the file."
        case errno.ENAMETOOLONG:
            return "Give the operator or the pipeline a shorter name."
        case errno.EMFILE | errno.ENFILE:
            return "Too many open files: raise the limit (ulimit -n)."
    return _REACHABLE


_REACHABLE = "Check that the store can be reached and is healthy."


class _Remote:
    """Blobs on a filesystem of fsspec that puts whole objects, such as memory for tests."""

    def __init__(self, filesystem: AbstractFileSystem, root: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._how: Creating | None = None

    def write(self, path: str, data: Data) -> None:
        self._filesystem.pipe_file(self._full(path), b"".join(pieces_of(data)))

    def write_summed(self, path: str, data: Data) -> str:
        checksum = checksum_of(data)
        self.write(f"{path}.{checksum}", data)
        return checksum

    def create(self, path: str, data: bytes) -> None:
        if self._how is None:
            self._how = exclusive_create(self._filesystem, self._full(PROBES))
        try:
            self._how(self._full(path), data)
        except FileExistsError:
            raise
        except Exception as error:
            # Stores refuse in many words (412, 409, EINVAL). Reading the object back tells why.
            try:
                there = self.read(path)
            except Exception:
                raise error from None  # nothing is there, or it cannot be read
            if there != data:
                raise FileExistsError(path) from error

    def read(self, path: str) -> bytes:
        data: bytes = self._filesystem.cat_file(self._full(path))
        return data

    def list(self, prefix: str, after: str = "") -> list[str]:
        self._filesystem.invalidate_cache()
        folder = self._full(prefix.rpartition("/")[0]).rstrip("/")
        try:
            names = self._filesystem.find(folder)
        except FileNotFoundError:
            return []
        paths = [path.removeprefix(self._root).lstrip("/") for path in names]
        return [path for path in paths if path.startswith(prefix) and path > after]

    def delete(self, path: str) -> None:
        try:
            self._filesystem.rm_file(self._full(path))
        except FileNotFoundError:
            return

    def clean(self) -> None:
        """Nothing to do: objects are put in one step, under their own names."""

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"
