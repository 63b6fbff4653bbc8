"""A power failure takes every name whose folder was not synced: what was said to be durable stays."""

import os
from pathlib import Path

import pytest

from everstream.connectors import FromList, Journal, JsonLines
from everstream.connectors.dead_letters import DeadLetters
from everstream.core.permits import permit
from everstream.pipeline.rejects import Rejected
from everstream.pipeline.sink import Sink, SinkShard
from everstream.state import FsspecBlobs


class Disk:
    """Remembers which folders and files were synced, and what stood in the folders then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: dict[str, set[str]] = {}
        self.files: set[int] = set()
        fsync = os.fsync

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if os.path.isdir(path):
                self.names[path] = set(os.listdir(path))
            else:
                self.files.add(os.fstat(descriptor).st_ino)

        monkeypatch.setattr(os, "fsync", synced)

    def survives(self, path: Path, below: Path) -> bool:
        """Whether the file is there, and whole, after a power failure; `below` always is."""
        for folder, name in ((p.parent, p.name) for p in (path, *path.parents)):
            if folder == below.parent:
                break
            if name not in self.names.get(str(folder), set()):
                return False
        return path.stat().st_ino in self.files


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def sink_shard(store: Path) -> SinkShard:
    return SinkShard("words", "counts", 0, 1, 1, str(store))


def test_a_blob_survives_in_folders_that_were_not_there(disk: Disk, tmp_path: Path) -> None:
    FsspecBlobs(str(tmp_path / "a" / "b" / "store")).write("objects/c/one", b"1")
    assert disk.survives(tmp_path / "a/b/store/objects/c/one", tmp_path)


@pytest.mark.parametrize("kind", ["json", "letters"])
def test_prepared_and_committed_output_survives_in_folders_that_were_not_there(
    disk: Disk, tmp_path: Path, kind: str
) -> None:
    sink: Sink = JsonLines(tmp_path / "a" / "out") if kind == "json" else DeadLetters()
    writer = sink.open(sink_shard(tmp_path / "new" / "store"))
    writer.recover([], permit(0))
    writer.write([1] if kind == "json" else [Rejected("record", "error", "")])
    transaction = writer.prepare(1)
    assert transaction is not None
    transaction.persist()
    (pending,) = (p for p in tmp_path.rglob("_pending/*") if "fence" not in p.name)
    assert disk.survives(pending, tmp_path)
    transaction.commit(permit(1))
    (part,) = tmp_path.rglob("part-*")
    assert disk.survives(part, tmp_path)


def test_a_folder_that_another_process_made_and_did_not_sync_is_synced(
    disk: Disk, tmp_path: Path
) -> None:
    (tmp_path / "out" / "_pending").mkdir(parents=True)
    (tmp_path / "store" / "objects").mkdir(parents=True)
    writer = JsonLines(tmp_path / "out").open(sink_shard(tmp_path))
    writer.write([1])
    transaction = writer.prepare(1)
    assert transaction is not None
    transaction.persist()
    (pending,) = (tmp_path / "out" / "_pending").iterdir()
    assert disk.survives(pending, tmp_path)
    FsspecBlobs(str(tmp_path / "store")).write("objects/a", b"1")
    assert disk.survives(tmp_path / "store" / "objects" / "a", tmp_path / "store")


def test_a_journal_survives_in_folders_that_were_not_there(disk: Disk, tmp_path: Path) -> None:
    reader = Journal(FromList([1, 2]), tmp_path / "a" / "journal").open(0, 1)
    assert reader.read() is not None
    (segment,) = tmp_path.rglob("shard-*/segment-*")
    assert disk.survives(segment, tmp_path)
    reader.close()
