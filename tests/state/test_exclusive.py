"""Whether exclusive create is exclusive is tried out; what refuses, in whatever words, has refused."""

import errno
import threading
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from everstream.errors import LeaseLost, StoreError
from everstream.state.blobs import FsspecBlobs
from everstream.state.storage import exclusive
from everstream.state.store import CheckpointStore


class Bucket(MemoryFileSystem):
    """An object store in memory, with locks of its own."""

    protocol = "bucket"
    store: dict[str, Any] = {}  # noqa: RUF012 - as fsspec has it
    pseudo_dirs = [""]  # noqa: RUF012
    _one_at_a_time = threading.RLock()

    def put(self, path: str, value: bytes) -> None:
        MemoryFileSystem.pipe_file(self, path, value)


class Cheat(Bucket):
    """Takes the wish and ignores it."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self.put(path, value)


class Liar(Bucket):
    """Says that it is there already, and replaces it."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        there = self.exists(path)
        self.put(path, value)
        if there and mode == "create":
            raise FileExistsError(path)


class LooksFirst(Bucket):
    """Exclusive, unless several come at once: here all of them have looked before one writes."""

    looked = threading.Barrier(exclusive.AT_ONCE)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        if mode == "create":
            if self.exists(path):
                raise FileExistsError(path)
            if path.endswith("-2"):
                self.looked.wait()
        self.put(path, value)


class Ignorant(Bucket):
    def pipe_file(self, path: str, value: bytes) -> None:  # type: ignore[override]
        self.put(path, value)


class Generic(Bucket):
    pipe_file = AbstractFileSystem.pipe_file


class Refusing(Bucket):
    """Exclusive, and refuses with an error of its own kind."""

    error: Exception = FileExistsError("there")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        with self._one_at_a_time:
            if mode == "create" and self.exists(path):
                raise self.error
            self.put(path, value)


class Azure(Bucket):
    """Knows another word for it, and does not mind words that it does not know."""

    def pipe_file(self, path: str, value: bytes, overwrite: bool = True, **_: Any) -> None:
        with self._one_at_a_time:
            if not overwrite and self.exists(path):
                raise ResourceExists("BlobAlreadyExists")
            self.put(path, value)


class ClientError(Exception):
    """As libraries of object stores have them: no OSError."""


class ResourceExists(ClientError):
    pass


@pytest.fixture
def bucket() -> Iterator[str]:
    yield "bucket://folder/store"
    Bucket.store.clear()
    Bucket.pseudo_dirs[:] = [""]


def opened(kind: type[Bucket], url: str) -> CheckpointStore:
    fsspec.register_implementation("bucket", kind, clobber=True)
    return CheckpointStore.at(url)


@pytest.mark.parametrize(
    "kind, why",
    [
        (Cheat, "creates an object that exists already"),
        (Liar, "and replaces it"),
        (LooksFirst, "at once, more than one succeeds"),
        (Ignorant, "has no exclusive create"),
        (Generic, "which two can do at once"),
    ],
)
def test_a_store_that_only_pretends_is_refused_with_names_of_those_that_do_not(
    bucket: str, kind: type[Bucket], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext

    monkeypatch.setattr(exclusive, "_memory_lock", nullcontext())
    with pytest.raises(StoreError, match=rf"{why}.*s3://, gs:// or az://"):
        opened(kind, bucket).acquire_lease("driver")
    assert Bucket.store == {}, "and nothing is left of the attempt"


@pytest.mark.parametrize(
    "error",
    [
        FileExistsError("there"),
        OSError(errno.EINVAL, "PreconditionFailed: 412"),
        PermissionError(errno.EACCES, "an object is there"),
        ClientError("ConditionalRequestConflict (409)"),
        RuntimeError("odd"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_refusal_in_any_words_ends_a_driver_that_was_replaced(
    bucket: str, error: Exception
) -> None:
    class InTheseWords(Refusing):
        pass

    InTheseWords.error = error
    old = opened(InTheseWords, bucket)
    lease = old.acquire_lease("old")
    opened(InTheseWords, bucket).acquire_lease("new")
    with pytest.raises(LeaseLost, match="'new' has taken over"):
        old.append_manifest(
            lease, {"epoch": 1, "objects": []}, wait=lambda trouble: pytest.fail(str(trouble))
        )


def test_a_store_that_says_it_otherwise_can_be_used(bucket: str) -> None:
    store = opened(Azure, bucket)
    lease = store.acquire_lease("driver")
    assert store.append_manifest(lease, {"epoch": 1, "objects": []}) == 2
    with pytest.raises(FileExistsError):
        store.blobs.create("manifests/00000002.json", b"another")


def test_what_landed_although_the_store_said_no_is_ours(bucket: str) -> None:
    class LosesAnswers(Refusing):
        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
            super().pipe_file(path, value, mode)
            if "manifests" in path:
                raise ClientError("the connection was reset")

    blobs = opened(LosesAnswers, bucket).blobs
    blobs.create("manifests/1", b"mine")
    with pytest.raises(FileExistsError):
        blobs.create("manifests/1", b"not mine")


def test_an_error_that_is_no_refusal_stays_what_it_is(bucket: str) -> None:
    class Down(Refusing):
        down = False

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
            if Down.down:
                raise ClientError("no route to host")
            super().pipe_file(path, value, mode)

    store = opened(Down, bucket)
    store.acquire_lease("driver")
    Down.down = True
    with pytest.raises(StoreError, match="no route to host"):
        store.blobs.create("manifests/7", b"mine")
    with pytest.raises(StoreError, match="no route to host"):
        opened(Down, bucket).acquire_lease("another")


def test_reading_a_store_tries_nothing_out() -> None:
    fsspec.register_implementation("bucket", Cheat, clobber=True)
    assert FsspecBlobs("bucket://folder/store").list("manifests/") == []
    assert Bucket.store == {}
