"""Copies near at hand: they spare reads of the store, never replace what it says, and are bounded."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstream.state.blobs import FsspecBlobs
from everstream.state.local_recovery import (
    FORGOTTEN_S,
    LocalCopies,
    LocalRecoveryStore,
    helps,
    store_with,
)
from everstream.state.objects import Data, ObjectRef
from everstream.state.store import CheckpointStore


class Counting(FsspecBlobs):
    """A store in a folder that counts what is read of it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reads: Counter[str] = Counter()

    def read(self, path: str) -> bytes:
        self.reads[path.partition("/")[0]] += 1
        return super().read(path)


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCopies]:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    made = LocalCopies("a run")
    assert made.open()
    yield made
    made.remove()


def store_at(folder: Path, near: LocalCopies) -> tuple[LocalRecoveryStore, Counter[str]]:
    blobs = Counting(str(folder / "store"))
    return LocalRecoveryStore(blobs, near), blobs.reads


def test_what_was_written_here_is_read_here_by_whoever_comes_next(
    tmp_path: Path, near: LocalCopies
) -> None:
    ref = store_at(tmp_path, near)[0].put("count-0/1.ckpt", (b"snap", b"shot"))
    after, reads = store_at(tmp_path, near)
    assert after.get(ref) == b"snapshot" and not reads
    elsewhere, reads = store_at(tmp_path, LocalCopies("another run"))
    assert elsewhere.get(ref) == b"snapshot" and reads == {"objects": 1}


def test_what_is_missing_is_read_from_the_store_once(tmp_path: Path, near: LocalCopies) -> None:
    store, reads = store_at(tmp_path, near)
    ref = CheckpointStore(store.blobs).put("count-0/1.ckpt", b"written on another machine")
    assert [store.get(ref) for _ in range(3)] == 3 * [b"written on another machine"]
    assert reads == {"objects": 1}


@pytest.mark.parametrize("damage", [b"snapshoT", b"snap", b""])
def test_a_damaged_copy_is_passed_over_and_made_good(
    tmp_path: Path, near: LocalCopies, damage: bytes
) -> None:
    store, reads = store_at(tmp_path, near)
    ref = store.put("count-0/1.ckpt", b"snapshot")
    (copy,) = near.folder.iterdir()
    copy.write_bytes(damage)
    assert store.get(ref) == b"snapshot" and reads == {"objects": 1}
    assert store.get(ref) == b"snapshot" and reads == {"objects": 1}, "now it is whole again"


def test_the_folder_never_outgrows_its_bound_and_keeps_what_was_used_last(
    tmp_path: Path, near: LocalCopies
) -> None:
    small = LocalCopies("a run", limit_bytes=100)
    refs = []
    for number in range(10):
        data: Data = bytes([number]) * 30
        refs.append(ObjectRef.of(f"{number}", data))
        small.keep(refs[-1], data)
        for age, path in enumerate(sorted(small.folder.iterdir(), key=os.path.getmtime)):
            os.utime(path, (age + 10 * number, age + 10 * number))
    assert sum(path.stat().st_size for path in small.folder.iterdir()) <= 100
    assert [small.find(ref) is not None for ref in refs] == 7 * [False] + 3 * [True]
    large = ObjectRef.of("large", bytes(101))
    small.keep(large, bytes(101))
    assert small.find(large) is None and small.find(refs[-1]) is not None


def test_a_folder_that_others_could_enter_is_not_used(near: LocalCopies) -> None:
    near.folder.chmod(0o777)
    assert not LocalCopies("a run").open()
    assert type(store_with(LocalCopies("a run"), "memory://x", None)) is CheckpointStore


def test_the_folder_goes_with_its_run_and_that_of_a_killed_run_after_a_day(
    near: LocalCopies,
) -> None:
    killed = LocalCopies("killed")
    assert killed.open()
    old_s = killed.folder.stat().st_mtime - FORGOTTEN_S - 1
    os.utime(killed.folder, (old_s, old_s))
    assert LocalCopies("a run").open() and near.folder.exists()
    assert not killed.folder.exists()
    near.remove()
    assert not near.folder.exists()


def test_a_store_that_is_a_folder_needs_no_copies() -> None:
    assert not helps("/var/checkpoints") and not helps("file:///var/checkpoints")
    assert helps("s3://bucket/checkpoints") and helps("memory://x")
