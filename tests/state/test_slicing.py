"""A large store is saved in slices while its operator goes on, and still as of one instant."""

import threading
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstream.errors import InternalError, UserError
from everstream.state import CapturedState, ObjectRef, ShardState
from everstream.state.backends import overlay, protocol, slicing
from everstream.state.backends.memory import MemoryBackend
from everstream.state.backends.protocol import StateBackend
from everstream.state.backends.slicing import Slices, StandingSlices, Watched
from tests.state.histories import STEPS, History, Step, goes_wrong


@pytest.fixture(autouse=True, params=["copied", "standing"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One entry a slice, of a copy of the dict or of the dict itself."""
    how: str = request.param
    monkeypatch.setattr(slicing, "AT_ONCE_ENTRIES", 0)
    monkeypatch.setattr(slicing, "SLICE_ENTRIES", 1)
    monkeypatch.setattr(slicing, "COPIED_ENTRIES", 10**6 if how == "copied" else 0)
    monkeypatch.setattr(overlay, "FOLD_ENTRIES", 1)
    return how


def still() -> float:
    return 0.0


def filled(entries: dict[Any, Any]) -> tuple[ShardState, StateBackend[Any, Any]]:
    state = ShardState()
    store = state.keystore("op", "store")
    for key, value in entries.items():
        store.put(key, value)
    return state, store


def finish(state: ShardState) -> None:
    while state.saving:
        state.save_slice(still)


def restored(capture: CapturedState) -> list[tuple[Any, Any]]:
    data = capture.encode()
    other = ShardState()
    other.restore([data], [ObjectRef.of("x", data)])
    return other.keystore("op", "store").items()


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2**20)), min_size=60, max_size=90))
def test_each_chain_saved_in_slices_restores_exactly_its_instant(
    steps: list[tuple[Step, int]],
) -> None:
    history = History(in_slices=True)
    for step, seed in steps:
        step(history, Random(seed))
        history.check()


def forgetful_save(self: Slices, keys: Iterable[Any]) -> None:
    """Leaves to its turn what is about to change."""


def placeless_save(self: Slices, keys: Iterable[Any]) -> None:
    """Saves out of turn, and does not remember it."""
    entries = self._standing if isinstance(self, StandingSlices) else self._entries
    self._early.append({key: entries[key] for key in keys if key in entries})


def forgetful_update(self: Watched, keys: Iterable[Any]) -> None:
    """Takes several keys at once without telling."""
    dict.update(self, dict.fromkeys(keys))


def ends_all(self: MemoryBackend[Any, Any], slices: Slices) -> None:
    """Watches no more when the first of two captures is whole."""
    self._slices.clear()


MUTANTS: list[tuple[type, str, Any]] = [
    (Slices, "save", forgetful_save),
    (Slices, "save", placeless_save),
    (Watched, "update", forgetful_update),
    (MemoryBackend, "end_slices", ends_all),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant[2].__name__)
def test_histories_find_what_would_leak_into_a_capture(
    mutant: tuple[type, str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*mutant)
    assert goes_wrong(range(300))


def test_histories_find_held_values_that_are_left_to_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "_UNHELD", protocol._UNHELD + 100)
    assert goes_wrong(range(300))


CHANGES: dict[str, Callable[[StateBackend[Any, Any]], None]] = {
    "read": lambda store: store["b"].append(1),
    "got": lambda store: store.get("b").append(1),  # type: ignore[union-attr]
    "listed": lambda store: dict(store.items())["b"].append(1),
    "raw": lambda store: store.changing(["b"])["b"].append(1),
    "replaced": lambda store: store.put("b", [1]),
    "deleted": lambda store: store.delete("b"),
    "cleared": lambda store: store.clear(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_value_that_changes_between_two_slices_is_saved_as_it_was(
    change: Callable[[StateBackend[Any, Any]], None],
) -> None:
    state, store = filled({"a": [], "b": [0], "c": 3})
    capture = state.capture({}, in_slices=True)
    state.save_slice(still)
    assert not capture.whole
    change(store)
    finish(state)
    assert restored(capture) == [("a", []), ("b", [0]), ("c", 3)], "in its order, too"


def test_a_capture_is_not_encoded_before_its_last_slice() -> None:
    state, _ = filled({"a": [], "b": []})
    capture = state.capture({}, in_slices=True)
    state.save_slice(still)
    with pytest.raises(InternalError, match="last slice"):
        capture.encode()


def test_a_value_that_cannot_be_saved_is_no_fault_of_who_reads_it() -> None:
    state, store = filled({"a": [], "b": [threading.Lock()]})
    state.capture({}, in_slices=True)
    assert len(store["b"]) == 1
    for _ in range(2):
        with pytest.raises(UserError, match=r"operator 'op'.*cannot be saved"):
            state.save_slice(still)


def test_a_value_that_cannot_be_saved_in_its_turn_never_makes_a_capture() -> None:
    state, _ = filled({"a": [threading.Lock()], "b": []})
    capture = state.capture({}, in_slices=True)
    for _ in range(3):
        with pytest.raises(UserError, match=r"operator 'op'.*cannot be saved"):
            state.save_slice(still)
    assert not capture.whole


@pytest.mark.parametrize("value", [1, "text", (1, "text")], ids=str)
def test_what_cannot_change_is_not_pickled_early(value: Any, how: str) -> None:
    state, store = filled({"a": value, "b": value})
    capture = state.capture({}, in_slices=True)
    assert capture.whole or isinstance(value, tuple) or how == "standing"
    for slices in capture.slices.values():
        assert store["a"] == value
        store.put("b", 2)
        assert not slices._early


def test_frames_and_stores_that_are_changed_unseen_go_in_one_piece() -> None:
    state, store = filled({"a": pl.DataFrame({"n": [1]}), "b": []})
    assert state.capture({}, in_slices=True).whole
    state, store = filled({"a": [], "b": []})
    store.entries["a"].append(1)
    assert state.capture({}, in_slices=True).whole


def test_marking_a_key_is_plain_again_after_the_last_slice() -> None:
    state, store = filled({"a": [], "b": []})
    capture = state.capture({}, in_slices=True)
    assert type(store._dirty) is Watched
    finish(state)
    assert type(store._dirty) is dict
    capture = state.capture({}, in_slices=True)
    state.mark_failed(capture)
    finish(state)
    assert type(store._dirty) is dict and not state.saving


def test_no_more_than_two_captures_are_sliced_at_a_time(how: str) -> None:
    state, store = filled({"a": [], "b": []})
    first, second, third = (state.capture({}, in_slices=True) for _ in range(3))
    assert (first.whole, second.whole, third.whole) == (True, how == "standing", False)
    store["a"].append(1)
    finish(state)
    assert restored(first) == restored(second) == restored(third) == [("a", []), ("b", [])]


def test_a_slice_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slicing, "SLICE_ENTRIES", 10**6)
    monkeypatch.setattr(overlay, "FOLD_ENTRIES", 10**6)
    state, _ = filled({n: [n] for n in range(1000)})
    capture = state.capture({}, in_slices=True)
    now_s = 0.0

    def slow() -> float:
        nonlocal now_s
        now_s += slicing.SLICE_S / 3
        return now_s

    slices = 0
    while state.saving:
        state.save_slice(slow)
        slices += 1
    assert slices > 100, "pieces get smaller where they take long"
    assert restored(capture) == [(n, [n]) for n in range(1000)]


def test_a_value_put_since_the_last_capture_and_held_is_not_taken_for_the_captures_own() -> None:
    state, store = filled({"a": 1, "b": []})
    state.capture({}, in_slices=True)
    held: list[int] = []
    store.put("a", held)
    second = state.capture({}, in_slices=True)
    held.append(1)
    finish(state)
    assert restored(second) == [("a", []), ("b", [])]
