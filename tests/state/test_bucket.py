"""Blobs in a bucket of a real object store, with all that can happen on the way to it."""

import threading
import uuid
from collections.abc import Iterator

import pytest

from everstream.errors import LeaseLost, StoreError
from everstream.state import FsspecBlobs
from everstream.state.storage.bucket import IN_PARTS_FROM_BYTES
from everstream.state.store import CheckpointStore
from tests.s3_proxy import S3Proxy
from tests.s3_server import BUCKET, SECRET, S3Server


@pytest.fixture
def proxy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    with S3Proxy(s3, seed=7) as proxy:
        for name, value in proxy.variables.items():
            monkeypatch.setenv(name, value)
        yield proxy


def somewhere() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def test_of_many_who_create_through_a_bad_network_one_wins_and_knows_it(proxy: S3Proxy) -> None:
    url = somewhere()
    FsspecBlobs(url).create("first", b"it works")
    proxy.trouble = 0.3
    for path in ("a", "b", "c"):
        won: list[bytes] = []
        unknown: list[bytes] = []
        start = threading.Barrier(8)

        def create(data: bytes, path: str, start: threading.Barrier) -> None:
            blobs = FsspecBlobs(url)
            start.wait()
            try:
                blobs.create(path, data)
            except FileExistsError:
                return
            except StoreError:
                unknown.append(data)  # noqa: B023 - the threads are joined in this round
            else:
                won.append(data)  # noqa: B023

        tries = [
            threading.Thread(target=create, args=(b"%d" % number, path, start))
            for number in range(8)
        ]
        for each in tries:
            each.start()
        for each in tries:
            each.join()
        there = FsspecBlobs(url).read(path)
        assert len(won) <= 1
        assert there in won or (not won and there in unknown)
    assert {"busy", "cut before", "cut after", "slow"} <= set(proxy.happened)


def test_leases_and_manifests_are_right_through_a_bad_network(proxy: S3Proxy) -> None:
    store = CheckpointStore(FsspecBlobs(somewhere()))
    first = store.acquire_lease("one")
    proxy.trouble = 0.3
    bodies = [{"number": number, "objects": []} for number in range(8)]
    for body in bodies:
        store.append_manifest(first, body)
    second = store.acquire_lease("another")
    proxy.trouble = 0.0
    assert second.number > first.number
    assert sorted(m.body["number"] for m in store.manifests()) == list(range(8))
    with pytest.raises(LeaseLost):
        store.append_manifest(first, {"number": 9, "objects": []})
    assert proxy.happened["cut after"] > 0, "puts that happened and were not answered"


def test_a_server_that_takes_the_wish_for_an_exclusive_create_and_ignores_it_is_refused(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with S3Proxy(s3, cheats=True) as proxy:
        for name, value in proxy.variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StoreError, match="creates an object that exists already"):
            FsspecBlobs(somewhere()).create("a", b"1")


def test_large_objects_go_in_parts(proxy: S3Proxy) -> None:
    blobs = FsspecBlobs(somewhere())
    pieces = (b"a" * IN_PARTS_FROM_BYTES, b"b" * 1_000_000, b"", b"c")
    checksum = blobs.write_summed("large", pieces)
    assert blobs.read(f"large.{checksum}") == b"".join(pieces)


def test_wrong_credentials_are_said_without_them(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{SECRET}-wrong")
    with pytest.raises(StoreError, match="cannot write 'a' in the store") as caught:
        FsspecBlobs(somewhere()).write("a", b"1")
    assert SECRET not in str(caught.value)


def test_a_store_that_cannot_be_reached_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everstream.state.storage.bucket.RETRIES", {"max_retries": 1})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    with pytest.raises(StoreError, match="Check that the store can be reached"):
        FsspecBlobs(somewhere()).read("a")


def test_a_url_without_a_bucket_is_refused() -> None:
    with pytest.raises(StoreError, match="Give bucket and folder"):
        FsspecBlobs("s3://")
