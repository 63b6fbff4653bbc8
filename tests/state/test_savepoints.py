"""Savepoints in a store: copies of their own that nobody tidies up, whole or not there."""

import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from everstream.errors import CorruptObject, StoreError, UserError
from everstream.state.objects import ObjectRef
from everstream.state.savepoints import (
    delete_savepoint,
    export_savepoint,
    import_savepoint,
    objects_in,
    savepoint,
    savepoints_in,
    take_savepoint,
)
from everstream.state.store import CheckpointStore, Lease


def epoch(store: CheckpointStore, lease: Lease, number: int) -> ObjectRef:
    """A checkpoint with one object."""
    ref = store.put(f"count-0/{number}", f"state {number}".encode())
    body = {"epoch": number, "pipeline": "counted", "objects": [ref.to_json()]}
    store.append_manifest(lease, body)
    return ref


@pytest.fixture
def store(url: str) -> CheckpointStore:
    return CheckpointStore.at(url)


@pytest.fixture
def lease(store: CheckpointStore) -> Lease:
    return store.acquire_lease("tests")


def test_it_stays_whatever_a_run_does_to_its_checkpoints(
    store: CheckpointStore, lease: Lease
) -> None:
    ref = epoch(store, lease, 1)
    taken = take_savepoint(store, "first", now=5.0)
    epoch(store, lease, 2)
    store.prune(keep=1)
    store.forget_all(lease)
    store.sweep(lease)
    assert savepoints_in(store) == [taken] == [savepoint(store, "first")]
    assert (taken.epoch, taken.pipeline, taken.taken_at, taken.size_bytes) == (1, "counted", 5.0, 7)
    assert list(objects_in(store, taken)) == [(ref, b"state 1")]


def test_a_run_that_removes_the_checkpoint_meanwhile_has_a_newer_one(
    store: CheckpointStore, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = epoch(store, lease, 1)
    get = store.get

    def pruned_first(ref: ObjectRef) -> bytes:
        if ref == first:
            epoch(store, lease, 2)
            store.prune(keep=1)
        return get(ref)

    monkeypatch.setattr(store, "get", pruned_first)
    taken = take_savepoint(store, "newest", now=5.0)
    assert taken.epoch == 2
    assert [data for _, data in objects_in(store, taken)] == [b"state 2"]


def test_names_are_taken_once_and_missing_ones_are_answered_with_those_there_are(
    store: CheckpointStore, lease: Lease
) -> None:
    with pytest.raises(UserError, match="no checkpoint yet"):
        take_savepoint(store, "first", now=5.0)
    epoch(store, lease, 1)
    take_savepoint(store, "first", now=5.0)
    with pytest.raises(UserError, match="already"):
        take_savepoint(store, "first", now=6.0)
    with pytest.raises(UserError, match=r"no savepoint 'second'.*it has: first"):
        savepoint(store, "second")
    for name in ("", "12", "../first", ".hidden", "a/b", "a" * 101):
        with pytest.raises(UserError, match="no name for a savepoint"):
            take_savepoint(store, name, now=5.0)
    delete_savepoint(store, "first")
    assert savepoints_in(store) == [] and store.blobs.list("savepoints/") == []
    with pytest.raises(UserError, match="it has: none"):
        delete_savepoint(store, "first")


def test_damage_is_found_before_anything_is_restored(store: CheckpointStore, lease: Lease) -> None:
    epoch(store, lease, 1)
    taken = take_savepoint(store, "first", now=5.0)
    (path,) = (path for path in store.blobs.list("savepoints/first/objects/"))
    store.blobs.write(path, b"State 1")
    with pytest.raises(CorruptObject, match=r"count-0/1.*damaged"):
        list(objects_in(store, taken))
    manifest = "savepoints/first/manifest.json"
    store.blobs.write(manifest, store.blobs.read(manifest).replace(b"counted", b"another"))
    with pytest.raises(StoreError, match="checksum"):
        savepoint(store, "first")


def told(ref: ObjectRef) -> None:
    """Nobody watches."""


def test_it_travels_in_one_file(store: CheckpointStore, lease: Lease, tmp_path: Path) -> None:
    epoch(store, lease, 1)
    taken = take_savepoint(store, "first", now=5.0)
    file = tmp_path / "first.tar"
    export_savepoint(store, taken, file, told)
    with pytest.raises(UserError, match="exists already"):
        export_savepoint(store, taken, file, told)
    other = CheckpointStore.at(str(tmp_path / "other"))
    found = import_savepoint(other, file, None, told)
    assert (found.body, found.slot) == (taken.body, None)
    assert [data for _, data in objects_in(other, found)] == [b"state 1"]
    with pytest.raises(UserError, match="already"):
        import_savepoint(other, file, None, told)


def test_an_exported_savepoint_is_its_owners_alone(
    store: CheckpointStore, lease: Lease, tmp_path: Path
) -> None:
    epoch(store, lease, 1)
    taken = take_savepoint(store, "first", now=5.0)
    file, precious = tmp_path / "first.tar", tmp_path / "precious"
    precious.write_text("do not change")
    (tmp_path / "first.tar.unfinished").symlink_to(precious)
    before = os.umask(0)
    try:
        export_savepoint(store, taken, file, told)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert precious.read_text() == "do not change"


def shorter(data: bytes) -> bytes:
    return data[:1540]


def without_objects(data: bytes) -> bytes:
    return data[:1024] + bytes(1024)


def changed(data: bytes) -> bytes:
    return data.replace(b"state 1", b"State 1")


@pytest.mark.parametrize("damage", [shorter, without_objects, changed, lambda data: b"no archive"])
def test_a_damaged_file_leaves_no_savepoint_behind(damage: Any, tmp_path: Path) -> None:
    store = CheckpointStore.at(str(tmp_path / "store"))
    epoch(store, store.acquire_lease("tests"), 1)
    file = tmp_path / "first.tar"
    export_savepoint(store, take_savepoint(store, "first", now=5.0), file, told)
    with tarfile.open(file) as archive:
        assert archive.getnames() == ["savepoint.json", "count-0/1"]
    file.write_bytes(damage(file.read_bytes()))
    other = CheckpointStore.at(str(tmp_path / "other"))
    with pytest.raises(StoreError):
        import_savepoint(other, file, None, told)
    assert savepoints_in(other) == []
