"""Manifests are written elsewhere, and what became of them is told where the work came from."""

import threading
import time
from pathlib import Path

import pytest

from everstream.core.checkpointing.manifest import KEPT_MANIFESTS, EpochManifest
from everstream.core.ids import Epoch
from everstream.core.orders import Discard
from everstream.engine.manifest_writer import ManifestWriter
from everstream.errors import InternalError, StoreError
from everstream.state.store import CheckpointStore
from tests.processes import PATIENCE_S


class Told:
    def __init__(self, store: CheckpointStore) -> None:
        self.done: list[tuple[int, StoreError | None]] = []
        self.troubles: list[str] = []
        self.threads: set[threading.Thread] = set()
        self.writer = ManifestWriter(
            store,
            store.acquire_lease("test"),
            removes_objects=True,
            on_done=self._on_done,
            on_trouble=self._on_trouble,
        )
        self.writer.start()

    def _on_done(self, manifest: EpochManifest, error: StoreError | None) -> None:
        self.threads.add(threading.current_thread())
        self.done.append((manifest.epoch, error))

    def _on_trouble(self, text: str) -> None:
        self.threads.add(threading.current_thread())
        self.troubles.append(text)

    def wait_for(self, done: int, troubles: int = 0) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while len(self.done) < done or len(self.troubles) < troubles:
            assert time.monotonic() < deadline_s, (self.done, self.troubles)
            self.writer.deliver()
            time.sleep(0.01)
        self.writer.stop()


def manifest(epoch: int) -> EpochManifest:
    return EpochManifest(Epoch(epoch), {}, "p")


def test_manifests_are_written_in_order_and_told_on_the_callers_thread(tmp_path: Path) -> None:
    store = CheckpointStore.at(str(tmp_path))
    told = Told(store)
    for epoch in range(1, 6):
        told.writer.put(manifest(epoch))
    told.wait_for(5)
    assert told.done == [(epoch, None) for epoch in range(1, 6)]
    assert told.threads == {threading.current_thread()}
    newest = [entry.body["epoch"] for entry in CheckpointStore.at(str(tmp_path)).manifests()]
    assert newest[0] == 5
    assert KEPT_MANIFESTS <= len(newest) <= KEPT_MANIFESTS + 1, "the last removal may be under way"


def test_what_cannot_be_removed_is_told_and_stops_nobody(tmp_path: Path) -> None:
    class Stubborn(CheckpointStore):
        def discard(self, refs: object) -> None:
            raise StoreError("read-only")

    store = Stubborn.at(str(tmp_path))
    assert isinstance(store, Stubborn)
    told = Told(store)
    told.writer.put(Discard(()))
    told.writer.put(manifest(1))
    told.wait_for(1, troubles=1)
    assert told.done == [(1, None)]
    assert "older checkpoints could not be removed: read-only" in told.troubles[0]


def test_whoever_has_lost_the_lease_learns_it(tmp_path: Path) -> None:
    told = Told(CheckpointStore.at(str(tmp_path)))
    CheckpointStore.at(str(tmp_path)).acquire_lease("another")
    told.writer.put(manifest(1))
    told.wait_for(1)
    assert isinstance(told.done[0][1], StoreError)


def test_an_error_of_any_kind_costs_a_manifest_and_not_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore.at(str(tmp_path))
    told = Told(store)
    create, troubles = store.blobs.create, iter([RuntimeError("no connection")])

    def odd(path: str, data: bytes) -> None:
        for trouble in troubles:
            raise trouble
        create(path, data)

    monkeypatch.setattr(store.blobs, "create", odd)
    told.writer.put(manifest(1))
    told.writer.put(manifest(2))
    told.wait_for(2)
    (_, error), (_, fine) = told.done
    assert isinstance(error, StoreError) and "no connection" in str(error)
    assert fine is None


def test_a_thread_that_breaks_ends_the_run(tmp_path: Path) -> None:
    class Odd(CheckpointStore):
        def append_manifest(self, *_: object) -> int:
            raise SystemExit("nobody expects this")

    store = Odd.at(str(tmp_path))
    told = Told(store)
    told.writer.put(manifest(1))
    with pytest.raises(InternalError, match="the thread that writes manifests broke") as raised:
        told.wait_for(1)
    assert "nobody expects this" in str(raised.value)
