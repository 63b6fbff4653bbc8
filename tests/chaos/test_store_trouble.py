"""The store lets us down: a corrupt newest checkpoint, a full disk."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import everstream as es
from everstream.core.ids import ShardId
from everstream.core.manifest import EpochManifest

from .conftest import MASTER, Killer, expected, kill, killable, open_gate, pid_of, shown

OFTEN = es.Coordinated(every="200ms")


class Corrupter(Killer):
    """Spoils one object of the newest checkpoint and its copy, then kills a host."""

    def epoch(self, manifest: EpochManifest) -> None:
        if manifest.epoch == 4:
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
    assert any("falling back to epoch" in note for note in listener.notes)
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

    def epoch(self, manifest: EpochManifest) -> None:
        self.newest = manifest.epoch
        if manifest.epoch == 3:
            with self.file.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    return
        if self.failed_at is not None and manifest.epoch > self.failed_at:
            open_gate(self.folder)

    def note(self, text: str, warning: bool) -> None:
        super().note(text, warning)
        if "given up" in text and self.failed_at is None:
            self.failed_at = self.newest
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
    assert any("given up" in note and "space" in note for note in listener.notes)
    assert listener.failed_at is not None
