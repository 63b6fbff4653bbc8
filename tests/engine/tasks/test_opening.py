"""A store that cannot be read is never taken for an empty one."""

from pathlib import Path

import pytest

import everstream as es
from everstream.engine.store_session import checkpoints_in
from everstream.errors import StoreError
from everstream.events import RequestHonoured, RequestRefused
from everstream.state.control import Shards, record_settings
from everstream.state.store import CheckpointStore
from tests.engine.tasks.running import Notes
from tests.spark import MASTER


def damaged(folder: Path) -> str:
    store = CheckpointStore.at(str(folder))
    store.append_manifest(store.acquire_lease("test"), {"epoch": 1, "objects": []})
    for entry in (folder / "manifests").glob("*.json"):
        data = bytearray(entry.read_bytes())
        data[len(data) // 2] ^= 1
        entry.write_bytes(bytes(data))
    return str(folder)


@pytest.mark.spark("names a Spark that cannot be reached")
def test_a_store_whose_manifests_are_all_damaged_is_refused_before_spark_starts(
    tmp_path: Path,
) -> None:
    store = damaged(tmp_path / "store")
    pipeline = es.Pipeline("numbers")
    pipeline.source(es.Range(3)).sink(es.JsonLines(str(tmp_path / "out")))
    with pytest.raises(StoreError, match="position of the run is lost") as caught:
        pipeline.run(store=store, master="spark://nowhere.invalid:1")
    assert "backup" in str(caught.value) and "which deletes" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_store_that_nobody_has_used_is_empty(tmp_path: Path) -> None:
    assert checkpoints_in(CheckpointStore.at(str(tmp_path))) == []


def test_after_a_fresh_start_what_was_damaged_before_is_of_no_account(tmp_path: Path) -> None:
    store = CheckpointStore.at(damaged(tmp_path / "store"))
    store.forget_all(store.acquire_lease("fresh"))
    assert checkpoints_in(CheckpointStore.at(str(tmp_path / "store"))) == []


def test_numbers_of_shards_that_were_asked_for_before_the_first_checkpoint_are_taken_and_said(
    tmp_path: Path,
) -> None:
    pipeline = es.Pipeline("numbers")
    keyed = pipeline.source(es.Range(3), name="numbers", shards=1).key_by(lambda n: n)
    keyed.fold(int, lambda total, n: total + n, name="sum", shards=2).collect()
    store = CheckpointStore.at(str(tmp_path / "store"))
    asked = {"sum": Shards(4, 2), "numbers": Shards(3, 2), "gone": Shards(5, 1)}
    record_settings(store.blobs, {}, asked)
    heard = Notes()
    pipeline.run(store=tmp_path / "store", master=MASTER, workers=2, listener=heard)
    (honoured,) = heard.of(RequestHonoured)
    assert honoured.request == "rescale" and "'sum' has 4 shard(s) instead of 2" in honoured.text
    refused = "\n".join(event.reason for event in heard.of(RequestRefused))
    assert "3 shard(s) were requested for 'numbers', but its program" in refused
    assert "'gone', which the pipeline no longer has" in refused
    newest = checkpoints_in(CheckpointStore.at(str(tmp_path / "store")))[0]
    assert newest.shard_counts["sum"] == 4 and newest.shard_counts["numbers"] == 1
