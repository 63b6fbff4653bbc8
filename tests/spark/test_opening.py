"""A store that cannot be read is never taken for an empty one."""

from pathlib import Path

import pytest

import everstream as es
from everstream.spark.opening import checkpoints_in
from everstream.state.store import CheckpointStore


def damaged(folder: Path) -> str:
    store = CheckpointStore.at(str(folder))
    store.append_manifest(store.acquire_lease("test"), {"epoch": 1, "objects": []})
    for entry in (folder / "manifests").glob("*.json"):
        data = bytearray(entry.read_bytes())
        data[len(data) // 2] ^= 1
        entry.write_bytes(bytes(data))
    return str(folder)


def test_a_store_whose_manifests_are_all_damaged_is_refused_before_spark_starts(
    tmp_path: Path,
) -> None:
    store = damaged(tmp_path / "store")
    pipeline = es.Pipeline("numbers")
    pipeline.source(es.Range(3)).sink(es.JsonLines(str(tmp_path / "out")))
    with pytest.raises(es.StoreError, match="nobody knows how far") as caught:
        pipeline.run(store=store, master="spark://nowhere.invalid:1")
    assert "backup" in str(caught.value) and "which deletes" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_store_that_nobody_has_used_is_empty(tmp_path: Path) -> None:
    assert checkpoints_in(CheckpointStore.at(str(tmp_path))) == []


def test_after_a_fresh_start_what_was_damaged_before_is_of_no_account(tmp_path: Path) -> None:
    store = CheckpointStore.at(damaged(tmp_path / "store"))
    store.forget_all(store.acquire_lease("fresh"))
    assert checkpoints_in(CheckpointStore.at(str(tmp_path / "store"))) == []
