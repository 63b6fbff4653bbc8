"""Blobs in a bucket of S3, Google or Azure, through obstore.

It uses the exclusive create of each store, sends large objects in parts, retries with growing
pauses, and lets other threads run while it waits. Credentials and endpoint come from the
environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `GOOGLE_...`, `AZURE_...`), or the machine's
role: they are never part of what is saved or sent.
"""

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from everstream.errors import StoreError
from everstream.state.objects import Data, checksum_of, pieces_of
from everstream.state.storage.exclusive import check_exclusive

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PROTOCOLS: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")
PROBES: Final = "probes"
"""Where exclusive create is tested before the first blob is created."""
IN_PARTS_FROM_BYTES: Final = 16 << 20
CLIENT: Final = {"connect_timeout": "10s", "timeout": "60s"}
RETRIES: Final[Any] = {"max_retries": 6, "retry_timeout": timedelta(seconds=60)}
ENDPOINTS: Final = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    *("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "GOOGLE_BASE_URL"),
)


class Bucket:
    """Blobs under a URL like s3://bucket/folder."""

    def __init__(self, url: str, **options: Any) -> None:
        try:
            import obstore
        except ImportError as error:
            raise StoreError(
                f"the store '{url}' needs a package: pip install 'everstream[cloud]'"
            ) from error
        self._obstore = obstore
        self._store = _opened(url, options)
        self._is_exclusive = False

    def write(self, path: str, data: Data) -> None:
        pieces = pieces_of(data)
        large = sum(map(len, pieces)) >= IN_PARTS_FROM_BYTES
        self._obstore.put(self._store, path, iter(pieces) if large else b"".join(pieces))

    def write_summed(self, path: str, data: Data) -> str:
        checksum = checksum_of(data)
        self.write(f"{path}.{checksum}", data)
        return checksum

    def create(self, path: str, data: bytes) -> None:
        if not self._is_exclusive:
            check_exclusive(self._put_new, self.read, self.delete, PROBES)
            self._is_exclusive = True
        create_in(self._store, path, data)

    def read(self, path: str) -> bytes:
        return bytes(self._obstore.get(self._store, path).bytes())

    def list(self, prefix: str, after: str = "") -> list[str]:
        folder = prefix.rpartition("/")[0]
        pages = self._obstore.list(self._store, folder or None, offset=after or None)
        return [meta["path"] for some in pages for meta in some if meta["path"].startswith(prefix)]

    def delete(self, path: str) -> None:
        try:
            self._obstore.delete(self._store, path)
        except FileNotFoundError:
            return

    def clean(self) -> None:
        """Nothing to do: objects are put in one step, under their own names."""

    def _put_new(self, path: str, data: bytes) -> None:
        self._obstore.put(self._store, path, data, mode="create", use_multipart=False)


def plain_endpoint() -> bool:
    """Whether the environment names an endpoint without TLS, as one on this machine is."""
    return any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS)


def open_store(url: str, options: dict[str, Any], retries: Any) -> "ObjectStore":
    """The object store of a URL, with obstore's options; raises what obstore raises."""
    from obstore.store import from_url

    plain = plain_endpoint() or str(options.get("endpoint", "")).startswith("http://")
    client: Any = {**CLIENT, "allow_http": plain}
    return from_url(url, client_options=client, retry_config=retries, **options)


def create_in(store: "ObjectStore", path: str, data: bytes) -> None:
    """Put these bytes there if nothing is there, else raise FileExistsError."""
    import obstore

    try:
        obstore.put(store, path, data, mode="create", use_multipart=False)
    except obstore.exceptions.AlreadyExistsError as error:
        # An answer may be lost after the put has happened: the next attempt then finds our own
        # object.
        if bytes(obstore.get(store, path).bytes()) != data:
            raise FileExistsError(path) from error


def _opened(url: str, options: dict[str, Any]) -> "ObjectStore":
    from obstore.exceptions import BaseError

    try:
        return open_store(url, options, RETRIES)
    except (BaseError, ValueError) as error:
        raise StoreError(
            f"the store '{url}' cannot be opened: {error}. Give bucket and folder, such as "
            "s3://bucket/folder, and set the region, endpoint and credentials as environment "
            "variables."
        ) from error
