"""A writer that was replaced wakes up after a rewind: it deletes and overwrites nothing."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everstream.connectors import JsonLines
from everstream.connectors.files import parts
from everstream.connectors.files.parts import PartFolder, PartName, PendingName
from everstream.core.ids import first_generation
from everstream.core.permits import permit
from everstream.state.store import CheckpointStore
from tests.connectors.lake_places import LakePlace
from tests.connectors.writing import sink_shard, write_checkpoint
from tests.s3_server import BUCKET

pytestmark = pytest.mark.usefixtures("quick_disk")

REMOVE = PartFolder.remove


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder for part files: on the local disk, and in a bucket, where a rename is a copy."""
    if request.param == "local":
        return str(tmp_path / "out")
    for name, value in request.getfixturevalue("s3").variables.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def shown_in(folder: str) -> dict[str, bytes]:
    """The committed part files and what is in them."""
    place = PartFolder.at(folder, ".jsonl")
    return {
        f"{name}": place.fs.cat_file(place.path_of(name)) for name in place.parts("words.counts")
    }


def takes_over(sink: JsonLines, generation: int) -> None:
    """The next run after a rewind to checkpoint 1: it commits another checkpoint 2."""
    writer = sink.open(sink_shard(generation=generation))
    writer.recover([], permit(1))
    writer.write(["of the successor"])
    prepared = writer.prepare(2)
    assert prepared is not None
    prepared.commit(permit(2))


def test_a_zombie_that_is_rolling_back_deletes_nothing_of_its_successor(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has listed the part files, and stops before it deletes the first of them."""
    sink = JsonLines(folder)
    write_checkpoint(sink, ["given up"], checkpoint=2).commit(permit(2))

    def late(place: PartFolder, name: PartName | PendingName) -> None:
        if isinstance(name, PartName):
            monkeypatch.setattr(PartFolder, "remove", REMOVE)
            takes_over(sink, 3)
        REMOVE(place, name)

    monkeypatch.setattr(PartFolder, "remove", late)
    sink.open(sink_shard(generation=2)).recover([], permit(1))
    assert shown_in(folder) == {"part-words.counts-0000-00000002-g3": b'"of the successor"\n'}


def test_a_zombie_that_begins_to_roll_back_late_deletes_nothing_of_its_successor(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has written its fence, and stops before it lists the part files."""
    sink = JsonLines(folder)
    write_checkpoint(sink, ["given up"], checkpoint=2).commit(permit(2))
    listed = PartFolder.parts

    def late(place: PartFolder, owner: str) -> list[PartName]:
        monkeypatch.setattr(PartFolder, "parts", listed)
        takes_over(sink, 3)
        return listed(place, owner)

    monkeypatch.setattr(PartFolder, "parts", late)
    with pytest.raises(Exception, match=r"generation 3 .* has taken over"):
        sink.open(sink_shard(generation=2)).recover([], permit(1))
    assert shown_in(folder) == {"part-words.counts-0000-00000002-g3": b'"of the successor"\n'}


def test_a_zombie_that_is_committing_overwrites_nothing_of_its_successor(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy has been read, as by an object store, and is written after its successor's commit."""
    sink = JsonLines(folder)
    zombie = write_checkpoint(sink, ["given up"], checkpoint=2)
    renamed: Callable[[Any, str, str], None] = parts.rename

    def late(fs: Any, source: str, target: str) -> None:
        monkeypatch.setattr(parts, "rename", renamed)
        content = fs.cat_file(source)
        takes_over(sink, 2)
        fs.pipe_file(target, content)

    monkeypatch.setattr(parts, "rename", late)
    zombie.commit(permit(2))
    assert shown_in(folder)["part-words.counts-0000-00000002-g2"] == b'"of the successor"\n'


def test_an_abort_of_a_zombie_deletes_nothing_of_its_successor(folder: str) -> None:
    sink = JsonLines(folder)
    zombie = write_checkpoint(sink, ["given up"], checkpoint=2)
    takes_over(sink, 2)
    zombie.abort()
    assert shown_in(folder) == {"part-words.counts-0000-00000002-g2": b'"of the successor"\n'}


def test_no_generation_comes_again_after_a_rewind_or_a_fresh_start(tmp_path: Path) -> None:
    """The names of part files are unique because of this."""
    used: list[int] = []
    for _ in range(3):
        store = CheckpointStore.at(str(tmp_path / "store"))
        lease = store.acquire_lease("a run, or a rewind")
        store.append_manifest(lease, {"epoch": 1, "objects": []})
        used.append(first_generation(lease.number))
        store.prune(keep=1)
        store.forget_all()
        store.sweep(store.acquire_lease("the next"))
    assert used == sorted(set(used))


def test_data_files_of_two_writers_of_a_lake_table_never_have_the_same_name(
    lake: LakePlace,
) -> None:
    zombie = lake.prepared([{"n": 1}], checkpoint=2)
    staged = lake.parquet_files()
    writer = lake.open().open(lake.sink_shard(2))
    writer.recover([], permit(1))
    writer.write([{"n": 2}])
    prepared = writer.prepare(2)
    assert prepared is not None
    prepared.commit(permit(2))
    committed = lake.parquet_files()
    assert staged and committed and staged.isdisjoint(committed)
    zombie.abort()
    assert lake.parquet_files() == committed and lake.rows() == [{"n": 2}]
