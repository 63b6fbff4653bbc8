"""Values of an earlier version: migrated when they are touched, saved as what they are, never mixed up."""

from collections.abc import Callable
from typing import Any

import pytest

from everstream.errors import UserError
from everstream.state.migrating import Migration, Outdated
from everstream.state.objects import ObjectRef
from everstream.state.snapshot import ShardState

KEYS = 2_000
"""More than are cut loose at once."""


def doubled(value: Any, version: int) -> list[Any]:
    return [value * 2, version]


SECOND = Migration(2, doubled)
THIRD = Migration(3, {1: lambda had: [had * 2, 1], 2: tuple})


class Kept:
    """A shard's state, and what it has saved."""

    def __init__(self) -> None:
        self.state = ShardState()
        self.saved: list[tuple[ObjectRef, bytes]] = []

    def store(self, migration: Migration) -> Any:
        return self.state.keystore("count", "seen", None, migration)

    def checkpoint(self, *, in_slices: bool = False) -> int:
        """Its size in bytes."""
        capture = self.state.capture({"numbers": {"offset": 1}}, in_slices=in_slices)
        while not capture.whole:
            self.state.save_slice(lambda: 0.0)
        data = capture.encode()
        ref = ObjectRef.of(f"object-{len(self.saved)}", data)
        known = {**dict(self.saved), ref: data}
        self.saved = [(one, known[one]) for one in self.state.mark_durable(capture, ref)]
        return len(data)

    def restart(self) -> None:
        self.state = ShardState()
        refs, data = zip(*self.saved, strict=True)
        assert self.state.restore(data, refs) == {"numbers": {"offset": 1}}


def first(count: int = KEYS) -> Kept:
    kept = Kept()
    store = kept.store(Migration())
    for key in range(count):
        store.put(key, key)
    kept.checkpoint()
    kept.restart()
    return kept


@pytest.mark.parametrize(
    "touch",
    [
        lambda store, key: store[key],
        lambda store, key: store.get(key),
        lambda store, key: dict(store.items())[key],
        lambda store, key: store.entries[key],
        lambda store, key: store.changing([key])[key],
    ],
    ids=["[]", "get", "items", "entries", "changing"],
)
def test_whoever_reads_a_value_gets_one_of_the_new_version(
    touch: Callable[[Any, int], Any],
) -> None:
    store = first(5).store(SECOND)
    assert touch(store, 3) == [6, 1]
    assert dict(store.pairs())[3] == [6, 1]
    assert (len(store), 3 in store, 9 in store, store.get(9)) == (5, True, False, None)


def test_only_what_is_touched_is_migrated_and_saved_again() -> None:
    kept = first()
    store = kept.store(SECOND)
    whole = kept.checkpoint()
    assert isinstance(dict(store.pairs())[4], Outdated)
    store[4], store[5] = [0, 0], store[5]
    assert kept.checkpoint() < whole / 10
    kept.restart()
    store = kept.store(SECOND)
    assert [store[key] for key in (4, 5, 6)] == [[0, 0], [10, 1], [12, 1]]


@pytest.mark.parametrize("in_slices", [False, True])
def test_a_second_upgrade_knows_the_version_of_every_value(in_slices: bool) -> None:
    kept = first()
    store = kept.store(SECOND)
    for key in range(0, KEYS, 3):
        store[key].append("touched")
    kept.checkpoint(in_slices=in_slices)
    for key in range(0, KEYS, 5):
        store[key].append("again")
    store.put("new", [1, 2])
    kept.checkpoint(in_slices=in_slices)
    kept.restart()
    store = kept.store(THIRD)
    kept.checkpoint(in_slices=in_slices)
    kept.restart()
    store = kept.store(THIRD)
    for key in range(KEYS):
        marks = [*(["touched"] if key % 3 == 0 else []), *(["again"] if key % 5 == 0 else [])]
        assert store[key] == (key * 2, 1, *marks)
    assert store["new"] == (1, 2)


def test_a_capture_under_way_has_what_was_there_when_it_was_taken() -> None:
    kept = first()
    store = kept.store(SECOND)
    capture = kept.state.capture({}, in_slices=True)
    assert not capture.whole
    for key in range(KEYS):
        store[key].append("later")
    while not capture.whole:
        kept.state.save_slice(lambda: 0.0)
    data = capture.encode()
    other = ShardState()
    other.restore([data], [ObjectRef.of("object", data)])
    assert other.keystore("count", "seen", None, SECOND)[7] == [14, 1]


def test_a_function_that_fails_half_way_leaves_the_value_as_it_was() -> None:
    kept = Kept()
    kept.store(Migration()).put("a", [1])
    kept.checkpoint()
    kept.restart()

    def fails_once(value: list[int], version: int) -> list[int]:
        value.append(2)
        if failures.append(version) is None and len(failures) == 1:
            raise ValueError("half way")
        return value

    failures: list[int] = []
    store = kept.store(Migration(2, fails_once))
    with pytest.raises(ValueError, match="half way"):
        store["a"]
    assert store["a"] == [1, 2]


def test_going_back_in_a_living_process_goes_back_to_the_version_that_was_saved() -> None:
    kept = first(5)
    store = kept.store(SECOND)
    assert store[1] == [2, 1]
    refs, data = zip(*kept.saved, strict=True)
    kept.state.restore(data, refs)
    assert kept.store(SECOND)[1] == [2, 1]
    kept.checkpoint()
    kept.restart()
    assert kept.store(SECOND)[1] == [2, 1]


def test_values_of_a_later_version_are_refused() -> None:
    kept = first(5)
    kept.store(SECOND)
    kept.checkpoint()
    kept.restart()
    with pytest.raises(UserError, match="have version 2, and the program keeps version 1"):
        kept.store(Migration())


def test_state_that_goes_on_under_another_name_keeps_its_version() -> None:
    kept = first(5)
    kept.store(SECOND)[1].append("touched")
    kept.checkpoint()
    kept.restart()
    other = ShardState()
    other.adopt(kept.state, lambda operator: "total")
    store: Any = other.keystore("total", "seen", None, THIRD)
    assert (store[1], store[2]) == ((2, 1, "touched"), (4, 1))
