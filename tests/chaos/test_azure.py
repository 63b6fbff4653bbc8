"""Checkpoints and output in Azure Blob Storage, as its maker's emulator knows it."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import from_url

import everstream as es
from everstream.connectors.files.filesystem import filesystem_of
from everstream.connectors.files.parts import PartFolder, owner_of
from everstream.core.orders import Outcome
from everstream.errors import LeaseLost
from everstream.pipeline.sink import SinkShard
from everstream.state import FsspecBlobs
from everstream.state.storage.bucket import IN_PARTS_FROM_BYTES
from everstream.state.store import CheckpointStore
from everstream.testing import sinks
from everstream.testing.sinks import check_sink
from tests.azure_server import CONTAINER, AzureServer
from tests.spark import MASTER

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    with AzureServer(tmp_path_factory.mktemp("azure") / "server") as server:
        yield server


@pytest.fixture
def folder(
    server: AzureServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> str:
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    return f"az://{CONTAINER}/{request.function.__name__}"


def test_of_many_who_create_the_same_one_wins_and_knows_it(folder: str) -> None:
    won: list[bytes] = []
    start = threading.Barrier(16)

    def create(data: bytes) -> None:
        blobs = FsspecBlobs(folder)
        start.wait()
        try:
            blobs.create("one", data)
        except FileExistsError:
            return
        won.append(data)

    threads = [threading.Thread(target=create, args=(b"%d" % n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [FsspecBlobs(folder).read("one")]


def test_leases_manifests_and_large_objects_are_as_elsewhere(folder: str) -> None:
    store = CheckpointStore(FsspecBlobs(folder))
    first = store.acquire_lease("one")
    for number in range(4):
        store.append_manifest(first, {"number": number, "objects": []})
    second = store.acquire_lease("another")
    assert second.number > first.number
    assert sorted(m.body["number"] for m in store.manifests()) == list(range(4))
    with pytest.raises(LeaseLost):
        store.append_manifest(first, {"number": 9, "objects": []})
    blobs = FsspecBlobs(folder)
    pieces = (b"a" * IN_PARTS_FROM_BYTES, b"b" * 1_000_000, b"c")
    checksum = blobs.write_summed("large", pieces)
    assert blobs.read(f"large.{checksum}") == b"".join(pieces)
    assert f"large.{checksum}" in blobs.list("large")
    blobs.delete(f"large.{checksum}")
    blobs.delete(f"large.{checksum}")
    assert blobs.list("large") == []


def test_output_is_exactly_once_whoever_crashes_where(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "_scenarios", lambda kind, all=sinks._scenarios: all(kind)[::6])

    def read_back(sink: Any, who: SinkShard) -> Iterator[Any]:
        parts = PartFolder.at(f"{folder}/{Path(who.store).parent.name}", ".jsonl")
        for part in parts.parts(owner_of(who.pipeline, who.operator)):
            for line in parts.fs.cat_file(parts.path_of(part)).splitlines():
                yield json.loads(line)

    check_sink(lambda place: es.JsonLines(f"{folder}/{Path(place).name}/"), read_back)


def test_a_killed_worker_loses_and_doubles_nothing_and_no_secret_is_stored(
    server: AzureServer, folder: str
) -> None:
    numbers = es.Pipeline("counted").source(es.Paced(es.Range(6_000, batch=50), rate=6_000))
    counts = numbers.key_by(lambda n: n % 7).fold(
        init=int, update=lambda count, _: count + 1, name="count", shards=2
    )
    result = counts.sink(es.JsonLines(f"{folder}/out/"), name="out").run(
        master=MASTER,
        workers=2,
        store=f"{folder}/store",
        checkpoint=es.Coordinated(every="200ms"),
        kill=["count@1000"],
    )
    assert result.outcome is Outcome.FINISHED and len(result.recoveries) == 1
    fs, path = filesystem_of(f"{folder}/out")
    shown = Counter(
        tuple(json.loads(line))
        for name in fs.glob(f"{path}/*.jsonl")
        for line in fs.cat_file(name).splitlines()
    )
    totals = Counter(n % 7 for n in range(6_000))
    assert shown == Counter((key, i + 1) for key, n in totals.items() for i in range(n))
    stored = from_url(f"{folder}/store", client_options={"allow_http": True})
    found = [meta["path"] for some in obstore.list(stored) for meta in some]
    assert found
    assert not any(server.secret.encode() in bytes(obstore.get(stored, p).bytes()) for p in found)
