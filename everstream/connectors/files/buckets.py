"""Files in a bucket of S3, Google or Azure, for the file connectors: through obstore.

An fsspec filesystem that caches no listing. An exclusive create is really exclusive, and a file
appears whole when it is closed. Buckets are opened like those of a store (`state.bucket`), with the
environment's credentials and endpoint unless the connector was given others. Those travel to the
workers, and are never saved.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from everstream.errors import UserError
from everstream.extras import extra
from everstream.state.storage.bucket import PROTOCOLS, create_in, open_store

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
