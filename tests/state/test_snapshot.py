"""Captures, deltas and chains: what is restored is what was there at the instant of the capture."""

import pickle
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from everstream.errors import CorruptObject, InternalError, StoreError, UserError
from everstream.state import CapturedState, ObjectRef, ShardState
from everstream.state.backends.protocol import StateBackend
from everstream.state.snapshot import CHAIN_LIMIT

Chain = tuple[ObjectRef, ...]


class Disk:
    """Keeps what was encoded, by reference."""

    def __init__(self) -> None:
        self.objects: dict[ObjectRef, bytes] = {}

    def store(self, state: ShardState, capture: CapturedState) -> Chain:
        data = capture.encode()
        ref = ObjectRef.of(f"object-{len(self.objects)}", data)
        self.objects[ref] = data
        return state.mark_durable(capture, ref)

    def restored(self, chain: Chain) -> tuple[ShardState, dict[str, Any]]:
        state = ShardState()
        return state, state.restore([self.objects[ref] for ref in chain], chain)


def items(state: ShardState, name: str = "s") -> list[tuple[Any, Any]]:
    return list(state.keystore("op", name).entries.items())


@dataclass
class Account:
    balance: int
    history: list[int]


def nested_values() -> dict[str, Any]:
    return {
        "list": [1, [2, 3]],
        "dict": {"inner": {"deep": [1]}},
        "set": {1, 2},
        "object": Account(5, [5]),
        "tuple": (1, [2]),
        "bytearray": bytearray(b"abc"),
        "array": np.arange(4),
        "objects": np.array([[1], [2, 3]], dtype=object),
    }


def change_in_place(store: StateBackend[str, Any]) -> None:
    store["list"][1].append(9)
    store["dict"]["inner"]["deep"].append(9)
    store["set"].add(9)
    store["object"].history.append(9)
    store["object"].balance = 9
    store["tuple"][1].append(9)
    store["bytearray"].extend(b"z")
    store["array"][0] = 9
    store["objects"][0].append(9)


def plain(value: Any) -> Any:
    return [repr(item) for item in value]


@pytest.mark.parametrize("only", [*nested_values(), "all"])
@pytest.mark.parametrize("kind", ["full", "delta"])
def test_a_snapshot_encoded_after_later_updates_does_not_contain_them(only: str, kind: str) -> None:
    state, disk = ShardState(), Disk()
    store = state.keystore("op", "s")
    if kind == "delta":
        state.keystore("op", "ballast").put("x", "y" * 10_000)
        disk.store(state, state.capture({}))
    values = nested_values()
    for name in values if only == "all" else [only]:
        store.put(name, values[name])
    capture = state.capture({"offset": 3})
    assert capture.kind == kind
    for name in nested_values():
        store.get(name)
        store.put(name, store.get(name, values[name]))
    change_in_place(store)
    store.put("later", 1)
    chain = disk.store(state, capture)
    restored, extras = disk.restored(chain)
    expected = {name: value for name, value in nested_values().items() if only in (name, "all")}
    assert plain(items(restored)) == plain(expected.items())
    assert extras == {"offset": 3}


def test_a_value_changed_in_place_after_a_read_is_in_the_next_delta() -> None:
    state, disk = ShardState(), Disk()
    state.keystore("op", "ballast").put("x", "y" * 10_000)
    store = state.keystore("op", "s")
    for name, value in nested_values().items():
        store.put(name, value)
    disk.store(state, state.capture({}))
    change_in_place(store)
    capture = state.capture({})
    chain = disk.store(state, capture)
    assert capture.kind == "delta" and len(chain) == 2
    assert plain(items(disk.restored(chain)[0])) == plain(items(state))


def test_a_value_that_its_operator_holds_on_to_is_never_missed() -> None:
    state, disk = ShardState(), Disk()
    state.keystore("op", "ballast").put("x", "y" * 10_000)
    store = state.keystore("op", "s")
    held: list[int] = []
    store.put("a", held)
    store.put("b", held)
    store.put("c", [])
    for number in range(5):
        chain = disk.store(state, state.capture({}))
        held.append(number)
    chain = disk.store(state, state.capture({}))
    assert len(chain) == 6
    assert items(disk.restored(chain)[0]) == [("a", held), ("b", held), ("c", [])]


def test_keys_that_share_a_value_after_a_restore_are_both_in_the_next_delta() -> None:
    state, disk = ShardState(), Disk()
    state.keystore("op", "ballast").put("x", "y" * 10_000)
    store = state.keystore("op", "s")
    store["a"] = store["b"] = [0]
    restored, _ = disk.restored(disk.store(state, state.capture({})))
    for number in (1, 2):
        restored.keystore("op", "s")["a"].append(number)
        chain = disk.store(restored, restored.capture({}))
        assert items(disk.restored(chain)[0]) == items(restored)
    assert items(restored)[1] == ("b", [0, 1, 2])


def test_a_restored_store_keeps_the_order_in_which_its_keys_were_put() -> None:
    state, disk = ShardState(), Disk()
    state.keystore("op", "ballast").put("x", "y" * 10_000)
    store = state.keystore("op", "s")
    for key in "abcd":
        store[key] = [key]
    disk.store(state, state.capture({}))
    for fails in (True, False):
        del store["b"]
        store["e"] = 1
        store["b"] = 2
        assert store["a"] == ["a"]
        capture = state.capture({})
        if fails:
            state.mark_failed(capture)
    del store["a"]
    store["a"] = 3
    chain = disk.store(state, state.capture({}))
    assert len(chain) == 2
    assert items(disk.restored(chain)[0]) == items(state)
    assert store.keys() == ["c", "d", "e", "b", "a"]


def test_a_delta_holds_only_what_may_have_changed() -> None:
    state, disk = ShardState(), Disk()
    numbers, lists = state.keystore("op", "numbers"), state.keystore("op", "lists")
    for key in range(1000):
        numbers[key] = key
        lists[key] = [key, (0, 0)]
    full = disk.store(state, state.capture({}))
    assert numbers[7] == 7
    numbers[8] = -1
    lists[9].append(1)
    capture = state.capture({})
    delta = disk.store(state, capture)[-1]
    assert capture.kind == "delta"
    assert delta.size_bytes < 300 < full[0].size_bytes
    nothing = disk.store(state, state.capture({}))[-1]
    assert nothing.size_bytes < 100


def test_frames_are_shared_and_reading_them_does_not_make_them_dirty() -> None:
    state, disk = ShardState(), Disk()
    store = state.keystore("op", "s")
    frame = pl.DataFrame({"a": range(10_000)})
    table = pa.table({"a": range(10_000)})
    store.put("frame", frame)
    store.put("table", table)
    capture = state.capture({})
    frame.insert_column(0, pl.Series("later", range(10_000)))
    chain = disk.store(state, capture)
    assert store.get("frame") is frame and store.items()
    small = disk.store(state, state.capture({}))[-1]
    assert small.size_bytes < 100
    restored = disk.restored(chain)[0].keystore("op", "s")
    assert restored["frame"].columns == ["a"] and restored["table"].equals(table)


def test_restored_arrays_can_be_changed() -> None:
    state, disk = ShardState(), Disk()
    state.keystore("op", "s").put("a", np.zeros(3))
    restored, _ = disk.restored(disk.store(state, state.capture({})))
    restored.keystore("op", "s")["a"][0] = 1.0


def test_bulk_changes_through_entries_are_seen_when_touched() -> None:
    state, disk = ShardState(), Disk()
    store = state.keystore("op", "s")
    store.entries.update((key, key) for key in range(100))
    store.touch(range(100))
    disk.store(state, state.capture({}))
    entries = store.entries
    entries[3] = -3
    del entries[4]
    store.touch([3, 4])
    chain = disk.store(state, state.capture({}))
    assert len(chain) == 2
    assert items(disk.restored(chain)[0]) == items(state)


def test_a_chain_never_grows_longer_than_the_limit() -> None:
    state, disk = ShardState(), Disk()
    state.keystore("op", "ballast").put("x", "y" * 100_000)
    kinds = []
    for number in range(25):
        state.keystore("op", "s").put(number % 3, number)
        capture = state.capture({})
        kinds.append(capture.kind)
        chain = disk.store(state, capture)
        assert len(chain) <= CHAIN_LIMIT
        assert items(disk.restored(chain)[0]) == items(state)
    assert [n for n, kind in enumerate(kinds) if kind == "full"] == [0, 10, 20]


def test_chains_stay_within_the_limit_with_many_uploads_under_way() -> None:
    state, disk = ShardState(), Disk()
    state.keystore("op", "ballast").put("x", "y" * 100_000)
    disk.store(state, state.capture({}))
    captures = [state.capture({}) for _ in range(30)]
    chains = [disk.store(state, capture) for capture in captures]
    assert max(map(len, chains)) == CHAIN_LIMIT


def test_a_full_snapshot_follows_when_the_deltas_outweigh_half_of_the_last_one() -> None:
    state, disk = ShardState(), Disk()
    store = state.keystore("op", "s")
    for key in range(100):
        store[key] = f"{key:04d}" * 250
    disk.store(state, state.capture({}))
    kinds = []
    for _ in range(4):
        for key in range(30):
            store[key] = f"{-key:04d}" * 250
        capture = state.capture({})
        kinds.append(capture.kind)
        disk.store(state, capture)
    assert kinds == ["delta", "delta", "full", "delta"]


def test_a_failed_upload_loses_no_change() -> None:
    state, disk = ShardState(), Disk()
    state.keystore("op", "ballast").put("x", "y" * 10_000)
    store = state.keystore("op", "s")
    store["a"], store["b"] = 1, 2
    disk.store(state, state.capture({}))
    store["a"] = 10
    del store["b"]
    state.mark_failed(state.capture({}))
    store["c"] = 3
    chain = disk.store(state, state.capture({}))
    assert items(disk.restored(chain)[0]) == [("a", 10), ("c", 3)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
@pytest.mark.parametrize("fails", [None, 0, 1, 2])
def test_chains_are_right_with_several_uploads_under_way(
    order: tuple[int, ...], fails: int | None
) -> None:
    state, disk = ShardState(), Disk()
    state.keystore("op", "ballast").put("x", "y" * 10_000)
    store = state.keystore("op", "s")
    store["a"] = 0
    disk.store(state, state.capture({}))
    captures, expected = [], []
    for number in range(3):
        store["a"] = number
        store[number] = number
        store.delete(number - 1)
        captures.append(state.capture({}))
        expected.append(items(state))
    for number in order:
        if number == fails:
            state.mark_failed(captures[number])
        else:
            chain = disk.store(state, captures[number])
            assert items(disk.restored(chain)[0]) == expected[number]
    store["last"] = 1
    chain = disk.store(state, state.capture({}))
    assert items(disk.restored(chain)[0]) == items(state)


def test_state_restored_before_its_operator_asks_is_handed_over_then() -> None:
    state, disk = ShardState(), Disk()
    state.keystore("op", "s").put("a", 1)
    chain = disk.store(state, state.capture({}))
    restored, _ = disk.restored(chain)
    again = disk.store(restored, restored.capture({}))
    assert len(again) == 2
    twice, _ = disk.restored(again)
    store = twice.keystore("op", "s", init=int)
    assert store.items() == [("a", 1)] and store["unseen"] == 0


def test_a_restore_fills_the_stores_that_operators_already_hold() -> None:
    state, disk = ShardState(), Disk()
    store, other = state.keystore("op", "s"), state.keystore("op", "other")
    entries = store.entries
    store["a"] = 1
    chain = disk.store(state, state.capture({}))
    store["a"] = 2
    other["b"] = 3
    late = state.capture({})
    state.restore([disk.objects[ref] for ref in chain], chain)
    assert store.entries is entries and entries == {"a": 1} and len(other) == 0
    assert state.keystore("op", "s") is store
    overtaken = disk.store(state, late)
    assert items(disk.restored(overtaken)[0]) == [("a", 2)]
    store["c"] = 4
    chain = disk.store(state, state.capture({}))
    assert items(disk.restored(chain)[0]) == [("a", 1), ("c", 4)]


def test_after_a_reset_everything_is_empty_and_the_next_capture_is_full() -> None:
    state, disk = ShardState(), Disk()
    store = state.keystore("op", "s")
    store["a"] = 1
    disk.store(state, state.capture({}))
    state.reset()
    assert len(store) == 0
    capture = state.capture({})
    assert capture.kind == "full"
    assert items(disk.restored(disk.store(state, capture))[0]) == []


def test_a_cleared_store_is_restored_without_what_was_cleared() -> None:
    state, disk = ShardState(), Disk()
    state.keystore("op", "ballast").put("x", "y" * 10_000)
    store = state.keystore("op", "s")
    store["a"], store["b"] = 1, 2
    disk.store(state, state.capture({}))
    store.clear()
    store["c"] = 3
    chain = disk.store(state, state.capture({}))
    assert len(chain) == 2
    assert items(disk.restored(chain)[0]) == [("c", 3)]


def test_a_value_that_cannot_be_pickled_is_named_and_costs_nothing() -> None:
    state, disk = ShardState(), Disk()
    store = state.keystore("payments", "open")
    store["ok"] = [1]
    store["lock"] = threading.Lock()
    with pytest.raises(UserError, match=r"operator 'payments', state 'open'.*'lock'"):
        state.capture({})
    store.delete("lock")
    restored, _ = disk.restored(disk.store(state, state.capture({})))
    assert restored.keystore("payments", "open").items() == [("ok", [1])]


def test_values_of_classes_that_cannot_be_imported_by_name_are_saved_by_value() -> None:
    class Local:
        def __init__(self) -> None:
            self.count = 3

    state, disk = ShardState(), Disk()
    state.keystore("op", "s").put("a", Local())
    restored, extras = disk.restored(disk.store(state, state.capture({"sink": Local()})))
    assert restored.keystore("op", "s")["a"].count == 3 and extras["sink"].count == 3


def test_a_capture_is_encoded_and_settled_once() -> None:
    state = ShardState()
    capture = state.capture({})
    ref = ObjectRef.of("object", capture.encode())
    with pytest.raises(InternalError, match="twice"):
        capture.encode()
    state.mark_durable(capture, ref)
    with pytest.raises(InternalError, match="second time"):
        state.mark_failed(capture)


def test_objects_that_are_not_whole_snapshots_are_refused_and_change_nothing() -> None:
    state, disk = ShardState(), Disk()
    state.keystore("op", "s").put("a", [1])
    (ref,) = disk.store(state, state.capture({}))
    good = disk.objects[ref]
    for bad in (b"", b"EVERSNAP", good[:9], good[:-3], b"x" + good, pickle.dumps({})):
        with pytest.raises(CorruptObject, match="object-0"):
            state.restore([bad], [ref])
    with pytest.raises(StoreError, match="format 99"):
        state.restore([good[:8] + bytes([99]) + good[9:]], [ref])
    with pytest.raises(InternalError, match="reset"):
        state.restore([], [])
    state.keystore("op", "s").put("b", 1)
    delta = disk.store(state, state.capture({}))[-1]
    with pytest.raises(CorruptObject, match="incremental"):
        state.restore([disk.objects[delta]], [delta])
    assert items(state) == [("a", [1]), ("b", 1)]


def test_large_values_are_encoded_without_being_copied_and_small_ones_together() -> None:
    state = ShardState()
    store = state.keystore("hold", "state")
    large = bytes(1 << 20)
    for number in range(10_000):
        store.put(number, f"value {number}")
    store.put("large", large)
    pieces = state.capture({}).encode_in_pieces()
    assert any(piece is large for piece in pieces)
    assert len(pieces) < 10
    again = ShardState()
    data = b"".join(pieces)
    again.restore([data], [ObjectRef.of("object", data)])
    assert again.keystore("hold", "state").items() == store.items()
