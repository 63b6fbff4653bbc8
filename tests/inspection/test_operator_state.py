"""State becomes a table: numbers stay numbers, everything else becomes readable text."""

import datetime
import sys
import types
import uuid
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.ids import CheckpointNumber, Epoch, ShardId
from everstream.errors import UserError
from everstream.inspection import look, read_state
from everstream.state.snapshot import ShardState
from everstream.state.store import CheckpointStore


@dataclass(frozen=True)
class Place:
    name: str


def store_with(*captures: dict[str, dict[Any, Any]], operator: str = "op") -> str:
    """A store whose epoch has one shard, saved in so many steps: state -> entries to put."""
    url = f"memory://{uuid.uuid4().hex}"
    store = CheckpointStore.at(url)
    state, chain = ShardState(), ()
    for number, entries in enumerate(captures):
        for name, items in entries.items():
            for key, value in items.items():
                state.keystore(operator, name).put(key, value)
        capture = state.capture({})
        ref = store.put(f"{operator}-0/{number:08d}-1.ckpt", capture.encode())
        chain = state.mark_durable(capture, ref)
    shard = ShardId(operator, 0)
    record = CheckpointRecord(shard, CheckpointNumber(1), (operator,), tuple(chain))
    manifest = EpochManifest(Epoch(1), {shard: record}, "made", shard_counts={operator: 1})
    store.append_manifest(store.acquire_lease("test"), manifest.to_json())
    return url


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1, 2], [1, 2]),
        ([1, 2.5], [1.0, 2.5]),
        ([1, None], [1, None]),
        ([True, False], [True, False]),
        (["a", "b"], ["a", "b"]),
        ([2**70, 1], [str(2**70), "1"]),
        ([2**60, 0.5], [str(2**60), "0.5"]),
        ([True, 1], ["True", "1"]),
        (["a", 1], ["a", "1"]),
        ([[1], {"b": 2}], ["[1]", "{'b': 2}"]),
        ([b"x", b"y"], ["b'x'", "b'y'"]),
        ([Place("here"), None], ["Place(name='here')", None]),
        ([datetime.date(2020, 1, 2)] * 2, [datetime.date(2020, 1, 2)] * 2),
    ],
)
def test_plain_values_stay_and_others_become_text(values: list[Any], shown: list[Any]) -> None:
    frame = read_state(store_with({"seen": dict(enumerate(values))}), "op")
    assert frame["key"].to_list() == [0, 1]
    assert frame["value"].to_list() == shown
    assert [type(value) for value in frame["value"]] == [type(value) for value in shown]


def test_several_states_are_told_apart_by_name() -> None:
    frame = read_state(store_with({"total": {"a": 1}, "last": {"a": 7, ("b", 2): 8}}), "op")
    rows = {(row["state"], row["key"]): row["value"] for row in frame.iter_rows(named=True)}
    assert rows == {("total", "a"): 1, ("last", "a"): 7, ("last", "('b', 2)"): 8}


def test_increments_are_laid_on_top_of_each_other() -> None:
    first = {"seen": dict.fromkeys(range(1000), 0)}
    url = store_with(first, {"seen": {1: 10}}, {"seen": {1: 11, 2: 12}})
    (checkpoint,) = look(CheckpointStore.at(url)).checkpoints
    assert checkpoint.manifest is not None
    (record,) = checkpoint.manifest.records.values()
    assert len(record.objects) == 3
    frame = read_state(url, "op")
    changed = frame.filter(pl.col("value") != 0)
    assert dict(changed.select("key", "value").iter_rows()) == {1: 11, 2: 12}
    assert len(frame) == 1000


def test_an_operator_without_state_gives_an_empty_table() -> None:
    frame = read_state(store_with({}), "op")
    assert frame.is_empty() and frame.columns == ["shard", "state", "key", "value"]


def test_a_class_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("a_module_of_mine")
    exec("class Visit:\n    pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "a_module_of_mine", module)
    url = store_with({"seen": {1: module.Visit()}})
    monkeypatch.delitem(sys.modules, "a_module_of_mine")
    with pytest.raises(UserError, match="a_module_of_mine"):
        read_state(url, "op")


def test_a_url_where_nothing_is_is_not_a_store() -> None:
    with pytest.raises(UserError, match="'memory://nothing-here' is not a store"):
        read_state("memory://nothing-here", "op")


@pytest.mark.parametrize(
    "entries",
    [{"a": 1, "b": 2}, {1: "one", 2: None}, {"day": datetime.date(2020, 1, 2)}, {"t": (1, 2)}, {}],
)
def test_spark_gets_the_same_table(entries: dict[Any, Any], spark: SparkSession) -> None:
    url = store_with({"seen": entries})
    frame = read_state(url, "op", spark=spark)
    assert frame.columns == ["shard", "state", "key", "value"]
    same = read_state(url, "op")
    assert [tuple(row) for row in frame.collect()] == list(same.iter_rows())
