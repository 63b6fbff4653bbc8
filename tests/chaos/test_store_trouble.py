"""The store lets us down: a corrupt newest checkpoint, a full disk."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.core.ids import ShardId
from everstream.errors import StoreError
from everstream.events import CheckpointAborted, RunEvent, StoreDamaged

from .conftest import (
    MASTER,
    Killer,
    expected,
    kill,
    killable,
    newest_manifest,
    open_gate,
    pid_of,
    shown,
)

OFTEN = es.Coordinated(every="200ms")


class Corrupter(Killer):
    """Spoils one object of the newest checkpoint and its copy, then kills a worker."""

    def epoch(self, epoch: int) -> None:
        if epoch == 4:
            manifest = newest_manifest(self.folder / "store")
            newest = manifest.records[ShardId("count", 0)].objects[-1]
            for folder in ("objects", "copies"):
                path = self.folder / "store" / folder / f"{newest.name}.{newest.checksum}"
                spoiled = bytearray(path.read_bytes())
                spoiled[len(spoiled) // 2] ^= 0xFF
                path.write_bytes(bytes(spoiled))
            kill(pid_of(self.folder, "middle"))


def test_a_corrupt_newest_checkpoint_falls_back_to_the_last_whole_one_and_says_so(
    tmp_path: Path,
) -> None:
    listener = Corrupter(tmp_path)
    result = killable(tmp_path).run(
        checkpoint=OFTEN, store=tmp_path / "store", master=MASTER, workers=6, listener=listener
    )
    assert shown(tmp_path) == expected()
    assert any(event.fallback_epoch is not None for event in listener.of(StoreDamaged))
    assert [report.from_epoch < 4 for report in result.recoveries] == [True]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=False
    )
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


class Filler(Killer):
    """Fills the disk after some epochs; makes room when told that a checkpoint failed."""

    def __init__(self, folder: Path, disk: Path) -> None:
        super().__init__(folder, failures=99)
        self.file = disk / "filler"
        self.failed_at: int | None = None
        self.newest = 0

    def epoch(self, epoch: int) -> None:
        self.newest = epoch
        if epoch == 3:
            with self.file.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    return
        if self.failed_at is not None and epoch > self.failed_at:
            open_gate(self.folder)

    def on_event(self, event: RunEvent) -> None:
        super().on_event(event)
        if isinstance(event, CheckpointAborted) and self.failed_at is None:
            self.failed_at = self.newest
            self.make_room()

    def make_room(self) -> None:
        self.file.unlink()


def test_a_full_disk_is_said_and_checkpoints_go_on_when_there_is_room(
    tmp_path: Path, small_disk: Path
) -> None:
    listener = Filler(tmp_path, small_disk)
    result = killable(tmp_path).run(
        checkpoint=OFTEN, store=small_disk / "store", master=MASTER, workers=6, listener=listener
    )
    assert shown(tmp_path) == expected()
    assert result.recoveries == []
    assert any("space" in failed.reason for failed in listener.of(CheckpointAborted))
    assert listener.failed_at is not None


class Full(Filler):
    """Leaves the disk full."""

    def make_room(self) -> None:
        pass


def test_a_disk_that_stays_full_ends_the_run_and_the_next_one_is_exact(
    tmp_path: Path, small_disk: Path
) -> None:
    listener = Full(tmp_path, small_disk)
    options = {"store": small_disk / "store", "master": MASTER, "workers": 6, "history": False}
    with pytest.raises(es.RunFailed, match="6 checkpoints in a row have failed") as caught:
        killable(tmp_path).run(
            checkpoint=OFTEN, listener=listener, tolerable_checkpoint_failures=5, **options
        )
    assert f"resumes from epoch {listener.newest}" in str(caught.value)
    news = [failed for failed in listener.of(CheckpointAborted) if not failed.repeated]
    assert len(news) == 1, "what does not change is said once"
    listener.file.unlink()
    open_gate(tmp_path)
    killable(tmp_path).run(checkpoint=OFTEN, listener=es.Listener(), **options)
    assert shown(tmp_path) == expected()


class Deleter(Killer):
    """Deletes the store after some epochs."""

    def epoch(self, epoch: int) -> None:
        if epoch == 3:
            shutil.rmtree(self.folder / "store")


@pytest.mark.parametrize("engine", ["tasks", "microbatch"])
def test_a_store_that_is_deleted_under_a_run_is_noticed_and_not_made_up(
    tmp_path: Path, engine: Any
) -> None:
    with pytest.raises((es.RunFailed, StoreError), match="was deleted, or emptied"):
        killable(tmp_path).run(
            checkpoint=OFTEN,
            store=tmp_path / "store",
            master=MASTER,
            engine=engine,
            listener=Deleter(tmp_path),
            history=False,
        )
    manifests = tmp_path / "store" / "manifests"
    assert not manifests.exists() or not list(manifests.iterdir()), "nobody takes it for a store"
