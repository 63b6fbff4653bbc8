"""The dict of a very large store stands still during a capture, and its owner notices nothing."""

import gc
import pickle
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from everstream.state import ObjectRef, ShardState
from everstream.state.backends import overlay, slicing
from everstream.state.backends.memory import MemoryBackend
from everstream.state.backends.overlay import Overlay, depth, fold, pairs
from everstream.state.backends.protocol import StateBackend
from tests.state.histories import goes_wrong

KEYS = st.integers(0, 7)


def still() -> float:
    return 0.0


class AnOverlay(RuleBasedStateMachine):
    """A dict with captures that begin, are read and end at random, against a plain dict."""

    def __init__(self) -> None:
        super().__init__()
        self.lowest: dict[int, int] = {}
        self.real: dict[int, int] = self.lowest
        self.plain: dict[int, int] = {}
        self.captures: list[tuple[Any, list[tuple[int, int]], list[tuple[int, int]]]] = []

    @rule(key=KEYS, value=st.integers())
    def put(self, key: int, value: int) -> None:
        self.real[key] = self.plain[key] = value

    @rule(key=KEYS)
    def delete(self, key: int) -> None:
        if key in self.plain:
            del self.real[key], self.plain[key]
        else:
            with pytest.raises(KeyError):
                del self.real[key]

    @rule(key=KEYS)
    def pop(self, key: int) -> None:
        assert self.real.pop(key, None) == self.plain.pop(key, None)

    @rule(key=KEYS, value=st.integers())
    def setdefault(self, key: int, value: int) -> None:
        assert self.real.setdefault(key, value) == self.plain.setdefault(key, value)

    @rule(entries=st.dictionaries(KEYS, st.integers(), max_size=4))
    def update(self, entries: dict[int, int]) -> None:
        self.real.update(entries)
        self.plain |= entries

    @rule()
    def popitem(self) -> None:
        if self.plain:
            assert self.real.popitem() == self.plain.popitem()

    @rule()
    def clear(self) -> None:
        self.real.clear()
        self.plain.clear()

    @rule()
    @precondition(lambda self: len(self.captures) < 3 and depth(self.real) < 4)
    def stand_still(self) -> None:
        standing, self.real = self.real, Overlay(self.real)
        self.captures.append((pairs(standing), [], list(self.plain.items())))

    @rule(which=st.integers(0, 2))
    @precondition(lambda self: self.captures)
    def read_one(self, which: int) -> None:
        which %= len(self.captures)
        entries, seen, expected = self.captures[which]
        try:
            seen.append(next(entries))
        except StopIteration:
            assert seen == expected
            del self.captures[which]

    @rule()
    def give_up(self) -> None:
        self.captures.clear()

    @rule()
    @precondition(lambda self: not self.captures)
    def fold_some(self) -> None:
        self.real = fold(self.real, still)

    @rule()
    @precondition(lambda self: not self.captures)
    def fold_all(self) -> None:
        while isinstance(self.real, Overlay):
            self.real = fold(self.real, still)
        assert self.real is self.lowest

    @invariant()
    def looks_the_same(self) -> None:
        assert list(self.real) == list(self.real.keys()) == list(self.plain)
        assert list(self.real.items()) == list(self.plain.items())
        assert list(self.real.values()) == list(self.plain.values())
        assert list(reversed(self.real)) == list(reversed(self.plain))
        assert len(self.real) == len(self.plain)
        assert self.real == self.plain and self.plain == self.real.copy()
        assert dict(self.real) == {**self.real} == self.real | {} == {} | self.real == self.plain
        assert pickle.loads(pickle.dumps(self.real)) == self.plain
        for key in range(9):
            assert (key in self.real) == (key in self.plain)
            assert self.real.get(key) == self.plain.get(key)


class TestAnOverlay(AnOverlay.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=40, stateful_step_count=40)

    @pytest.fixture(autouse=True)
    def one_entry_a_fold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(overlay, "FOLD_ENTRIES", 1)


def large(number: int, value: Callable[[int], Any]) -> tuple[ShardState, StateBackend[Any, Any]]:
    """A state whose next capture is a full one, though little has changed."""
    state = ShardState()
    store = state.keystore("op", "store")
    for key in range(number):
        store.put(key, value(key))
    state.mark_durable(state.capture({}), ObjectRef("x", 1, "x"))
    state._base = None
    return state, store


@pytest.mark.parametrize("value", [lambda n: str(n) + "x", lambda n: [n]], ids=["texts", "lists"])
def test_the_work_at_the_marker_does_not_grow_with_the_number_of_keys(
    value: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slicing, "COPIED_ENTRIES", 5_000)
    state, store = large(50_000, value)
    entries = store.changing(())
    store.put(7, 7)
    references = [*map(sys.getrefcount, entries.values())]
    gc.disable()
    tracemalloc.start()
    try:
        capture = state.capture({}, in_slices=True)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert capture.kind == "full" and not capture.whole
    assert peak_bytes < 50_000, "a list of so many keys has 400,000 bytes"
    assert references[8:] == [*map(sys.getrefcount, entries.values())][8:], "nobody else has them"


def test_a_large_store_is_the_same_dict_again_after_its_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slicing, "COPIED_ENTRIES", 100)
    state, store = large(10_000, str)
    entries = store.changing(())
    capture = state.capture({}, in_slices=True)
    for key in range(5_000, 15_000):
        store.put(key, "new")
    for key in range(2_500):
        store.delete(key)
    while not capture.whole:
        state.save_slice(still)
    assert state.saving and len(store) == 12_500
    while state.saving:
        state.save_slice(still)
    assert store.changing(()) is entries and list(entries) == list(range(2_500, 15_000))
    data = capture.encode()
    other = ShardState()
    other.restore([data], [ObjectRef.of("x", data)])
    assert other.keystore("op", "store").items() == [(n, str(n)) for n in range(10_000)]


def test_a_fold_ends_when_its_time_is_over_and_goes_on_later() -> None:
    entries: dict[int, int] = Overlay(dict.fromkeys(range(10), 0))
    entries.update(dict.fromkeys(range(5, 50_000), 1))
    now_s = 0.0

    def slow() -> float:
        nonlocal now_s
        now_s += overlay.FOLD_S / 2
        return now_s

    folds = 0
    while isinstance(entries, Overlay):
        entries = fold(entries, slow)
        folds += 1
    assert folds > 10
    assert list(entries.items()) == [(n, int(n >= 5)) for n in range(50_000)]


def test_who_asks_for_the_raw_dict_gets_it_whole_in_the_middle_of_a_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slicing, "COPIED_ENTRIES", 0)
    state, store = large(2_000, lambda n: [n])
    capture = state.capture({}, in_slices=True)
    store.put(1, [0])
    entries = store.entries
    entries[2].append(0)
    store.touch([2])
    assert type(entries) is dict and entries[1] == [0] and entries is store.changing(())
    while state.saving:
        state.save_slice(still)
    data = capture.encode()
    other = ShardState()
    other.restore([data], [ObjectRef.of("x", data)])
    assert other.keystore("op", "store").items() == [(n, [n]) for n in range(2_000)]
    assert state.capture({}, in_slices=True).whole


def test_stores_with_frames_do_not_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slicing, "COPIED_ENTRIES", 0)
    state, store = large(10, lambda n: pl.DataFrame({"n": [n]}))
    assert state.capture({}, in_slices=True).whole and not store.layered
    data = state.capture({}).encode()
    state.restore([data], [ObjectRef.of("x", data)])
    state._base = None
    assert state.capture({}, in_slices=True).whole and not store.layered


def test_captures_that_come_too_fast_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slicing, "COPIED_ENTRIES", 0)
    monkeypatch.setattr(slicing, "SLICE_ENTRIES", 1)
    state, store = large(10, lambda n: [n])
    for number in range(10):
        state.capture({}, in_slices=True)
        store.put(number, [number])
        state.save_slice(still)
        assert store.layered <= 2


def test_a_restore_in_the_middle_of_a_fold_leaves_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slicing, "COPIED_ENTRIES", 0)
    monkeypatch.setattr(overlay, "FOLD_ENTRIES", 1)
    state, store = large(10, str)
    capture = state.capture({}, in_slices=True)
    for key in range(5, 15):
        store.put(key, "new")
    store.delete(1)
    while not capture.whole:
        state.save_slice(still)
    for _ in range(3):
        state.save_slice(still)
    assert store.layered
    data = capture.encode()
    state.restore([data], [ObjectRef.of("x", data)])
    assert not state.saving and not store.layered
    assert store.items() == [(n, str(n)) for n in range(10)]


def impatient_fold(self: MemoryBackend[Any, Any], clock_s: Callable[[], float]) -> None:
    """Brings changes down under a capture that reads what is there."""
    self._entries = fold(self._entries, clock_s)


def always_folding(self: ShardState, clock_s: Callable[[], float]) -> None:
    """Folds while captures are under way."""
    self._fold(clock_s)
    save_slice(self, clock_s)


save_slice = ShardState.save_slice


def delete_below(self: Overlay[Any, Any], key: Any) -> None:
    """Takes what is deleted from under the captures."""
    dict.pop(self, key, None)
    self.below.pop(key, None)
    self.size -= 1


def put_again(self: Overlay[Any, Any], key: Any, value: Any) -> None:
    """Puts a key that was deleted back where it was."""
    if not dict.__contains__(self, key) and self._is_new(key):
        self.size += 1
    self.gone.pop(key, None)
    dict.__setitem__(self, key, value)


MUTANTS: dict[str, list[tuple[type, str, Any]]] = {
    "impatient fold": [
        (MemoryBackend, "fold", impatient_fold),
        (ShardState, "save_slice", always_folding),
    ],
    "deletes below": [(Overlay, "__delitem__", delete_below)],
    "forgets the order": [(Overlay, "__setitem__", put_again)],
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_histories_find(
    mutant: list[tuple[type, str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slicing, "AT_ONCE_ENTRIES", 0)
    monkeypatch.setattr(slicing, "SLICE_ENTRIES", 1)
    monkeypatch.setattr(slicing, "COPIED_ENTRIES", 0)
    monkeypatch.setattr(overlay, "FOLD_ENTRIES", 1)
    assert not goes_wrong(range(5))
    for part in mutant:
        monkeypatch.setattr(*part)
    assert goes_wrong(range(300))
