"""Every state backend behaves like a dict, and its captures restore the instant they were taken at."""

import doctest
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from everstream.errors import UserError
from everstream.pipeline.keyed_state.backend_choice import key_group
from everstream.state.backends import disk, memory, slicing
from everstream.state.backends.disk import DiskBackend, entries_in
from everstream.state.backends.memory import MemoryBackend
from everstream.state.backends.protocol import StateBackend, StorePart
from everstream.state.freezing import dumps
from everstream.state.migrating import Migration
from everstream.state.objects import ObjectRef

Backend = StateBackend[Any, Any]
Make = Callable[[], Backend]


def in_memory(folder: Path, patch: pytest.MonkeyPatch) -> Backend:
    return MemoryBackend()


def under_a_capture(folder: Path, patch: pytest.MonkeyPatch) -> Backend:
    """State in memory while a capture of it is under way: what changes lies above what stands."""
    patch.setattr(slicing, "COPIED_ENTRIES", 0)
    store: Backend = MemoryBackend()
    store.put("gone", 1)
    store.close_capture(1, store.capture(full=True, in_slices=True))
    store.delete("gone")
    assert store.layered
    return store


def on_disk(folder: Path, patch: pytest.MonkeyPatch) -> Backend:
    return DiskBackend(folder, key_group, "operator 'op'")


def mostly_on_disk(folder: Path, patch: pytest.MonkeyPatch) -> Backend:
    patch.setattr(disk, "HOT_BYTES", 0)
    patch.setattr(disk, "FEWEST", 2)
    return on_disk(folder, patch)


BACKENDS = [in_memory, under_a_capture, on_disk, mostly_on_disk]


@pytest.fixture(params=BACKENDS, ids=lambda make: make.__name__)
def make(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    made: list[Backend] = []

    def new() -> Backend:
        made.append(request.param(tmp_path / str(len(made)), monkeypatch))
        return made[-1]

    yield new
    for store in made:
        store.remove()


@pytest.fixture
def store(make: Make) -> Backend:
    return make()


class Objects:
    """Where files are saved."""

    def __init__(self) -> None:
        self.content: dict[ObjectRef, bytes] = {}

    def put(self, name: str, data: bytes) -> ObjectRef:
        ref = ObjectRef.of(name, data)
        self.content[ref] = data
        return ref

    def load(self, refs: Any) -> list[bytes]:
        return [self.content[ref] for ref in refs]


def saved(part: StorePart, objects: Objects) -> Any:
    """The entries of a part as they are read back, after everything that changed since."""
    while part.slices is not None and not part.slices.whole:
        part.slices.go_on(lambda: 0.0)
    if part.files is not None:
        return entries_in(part.files.save(objects.put, "checkpoint"), objects.load)
    return pickle.loads(dumps(part.entries))


def test_put_get_contains_delete_work_as_on_a_dict(store: Backend) -> None:
    model: dict[Any, Any] = {}
    chance = Random(7)
    for number in range(2_000):
        key = chance.choice([chance.randrange(40), f"k{chance.randrange(40)}", (1, None)])
        match chance.randrange(7):
            case 0:
                store.put(key, number)
                model[key] = number
            case 1:
                store[key] = model[key] = [number]
            case 2:
                store.delete(key)
                model.pop(key, None)
            case 3:
                assert store.get(key, "none") == model.get(key, "none")
            case 4:
                assert (key in store) == store.contains(key) == (key in model)
            case 5 if isinstance(model.get(key), list):
                store[key].append(number)
                model[key].append(number)
            case _:
                entries = store.changing([key, "new"])
                assert (key in entries) == (key in model)
                entries[key] = model[key] = number
        if number % 50 == 0:
            assert dict(store.items()) == dict(store.pairs()) == model
            assert len(store) == len(model) and store.size_hint >= len(model)
    assert set(store.keys()) == set(store) == model.keys()
    assert store.memory_hint > 0
    store.clear()
    assert len(store) == 0 and list(store) == [] and not store
    assert store.get("a") is None


def test_a_missing_key_raises_and_init_gives_a_first_value(store: Backend) -> None:
    with pytest.raises(KeyError):
        store["a"]
    with pytest.raises(KeyError):
        del store["a"]
    store.init = list
    assert store.get("a") is None and "a" not in store
    store["a"].append(1)
    store["b"].append(2)
    store["c"].append(3)
    store["a"].append(4)
    assert dict(store.items()) == {"a": [1, 4], "b": [2], "c": [3]}


def test_iterating_ends_even_when_init_makes_missing_keys(store: Backend) -> None:
    store.init = int
    store[5] = 1
    assert list(store) == [5]


def test_the_store_can_be_changed_while_looping_over_its_items(store: Backend) -> None:
    for key in range(10):
        store[key] = key
    for key, value in store.items():
        if value % 2:
            store.delete(key)
    assert sorted(store.keys()) == [0, 2, 4, 6, 8]


def test_a_value_that_somebody_holds_can_be_changed_at_any_time(store: Backend) -> None:
    store.put("held", [0])
    held = store["held"]
    for number in range(100):
        store.put(number, number)
    held.append(1)
    for number in range(100):
        assert store.get(number) == number
    assert store["held"] == [0, 1]


def test_keys_come_back_as_they_were_put(store: Backend) -> None:
    keys = (True, 2.0, (3.0, "x"), 0.5, "", None, -1, 2**70, b"b")
    for key in keys:
        store.put(key, 1)
    assert sorted(map(repr, store.keys())) == sorted(map(repr, keys))
    assert store.get(1) == store.get(2) == store.get((3, "x")) == 1


@pytest.mark.parametrize("in_slices", [False, True])
def test_a_capture_holds_its_instant_and_no_later_change(store: Backend, in_slices: bool) -> None:
    store.put("a", [1])
    store.put("b", 2)
    part = store.capture(full=True, in_slices=in_slices)
    store.close_capture(7, part)
    store["a"].append("later")
    store.delete("b")
    store.put("c", 3)
    assert part is not None and part.deleted is None
    assert saved(part, Objects()) == {"a": [1], "b": 2}
    assert dict(store.items()) == {"a": [1, "later"], "c": 3}


def test_what_a_failed_capture_held_is_in_the_next_one(store: Backend) -> None:
    objects = Objects()
    store.put("a", 1)
    first = store.capture(full=True, in_slices=False)
    store.close_capture(7, first)
    assert first is not None and saved(first, objects) == {"a": 1}
    store.mark_durable(7, first.files)
    store.put("b", 2)
    failed = store.capture(full=False, in_slices=False)
    store.close_capture(8, failed)
    store.mark_failed(8, failed.files if failed is not None else None)
    store.put("c", 3)
    part = store.capture(full=False, in_slices=False)
    store.close_capture(9, part)
    assert part is not None
    before = {"a": 1} if part.deleted is not None else {}
    assert before | saved(part, objects) == {"a": 1, "b": 2, "c": 3}


def test_a_value_that_cannot_be_saved_is_named_and_no_change_is_forgotten(store: Backend) -> None:
    store.put("a", 1)
    store.put("unpicklable", (number for number in range(3)))
    with pytest.raises(UserError, match="under key 'unpicklable' cannot be saved"):
        store.capture(full=True, in_slices=False)
    store.delete("unpicklable")
    part = store.capture(full=False, in_slices=False)
    assert part is not None and saved(part, Objects()) == {"a": 1}


def test_what_was_captured_can_be_restored(make: Make) -> None:
    objects, store, restored = Objects(), make(), make()
    store.put((1, "x"), [1])
    store.put("b", {"deep": 2})
    part = store.capture(full=True, in_slices=False)
    assert part is not None
    restored.put("before", 0)
    if part.files is not None:
        restored.open(part.files.save(objects.put, "checkpoint"), objects.load, 3)
    else:
        restored.load(saved(part, objects), 3)
    assert dict(restored.items()) == {(1, "x"): [1], "b": {"deep": 2}} and restored.version == 3


@pytest.mark.parametrize("other_kind", BACKENDS, ids=lambda kind: kind.__name__)
def test_it_adopts_what_a_store_of_any_kind_holds(
    store: Backend, other_kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = other_kind(tmp_path / "other", monkeypatch)
    for number in range(20):
        other.put(number, [number])
    store.put("before", 0)
    store.adopt(other)
    assert dict(store.items()) == {number: [number] for number in range(20)}


def test_an_earlier_version_of_the_program_is_refused(store: Backend) -> None:
    assert not store.declare(Migration(2, lambda value, version: value))
    store.put("a", 1)
    assert not store.declare(Migration(2, lambda value, version: value))
    assert store.version == 2 and store.get("a") == 1
    with pytest.raises(UserError, match="version"):
        store.declare(Migration(1))


def test_the_examples_in_the_docstrings_run() -> None:
    assert doctest.testmod(memory).failed == 0
