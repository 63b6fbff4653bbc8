"""State on disk: how keys are written, what is saved and fetched, and what stays on the local disk."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstream.errors import CorruptObject, UserError
from everstream.pipeline.keyed_state.backend_choice import GROUPS, key_group
from everstream.pipeline.keys import stable_hash
from everstream.state import ObjectRef, ShardState
from everstream.state.backends import disk
from everstream.state.backends.disk import DiskBackend, DiskSpace
from everstream.state.backends.files import SavedFiles, Shelf
from everstream.state.backends.key_bytes import is_itself, key_in_bytes, key_of, keys_in_bytes
from everstream.state.backends.protocol import StateBackend
from tests.state.histories import STEPS, History, Step

NUMBERS = st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False), st.none())
PLAIN = st.one_of(NUMBERS, st.text(), st.binary())
ANY_KEY = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)


@pytest.fixture(params=["much in memory", "little in memory"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DiskBackend[Any, Any]]:
    if request.param == "little in memory":
        monkeypatch.setattr(disk, "HOT_BYTES", 0)
        monkeypatch.setattr(disk, "FEWEST", 2)
    made: DiskBackend[Any, Any] = DiskBackend(tmp_path, key_group, "operator 'op'")
    yield made
    made.remove()


@given(ANY_KEY, ANY_KEY)
def test_equal_keys_have_equal_bytes_and_others_have_others(one: Any, other: Any) -> None:
    same = key_in_bytes(one, key_group) == key_in_bytes(other, key_group)
    assert same == (one == other)
    assert key_of(key_in_bytes(one, key_group)) == one
    assert keys_in_bytes([one, other], key_group)[1] == key_in_bytes(other, key_group)


@given(ANY_KEY)
def test_a_key_that_says_it_is_itself_comes_back_with_its_type(key: Any) -> None:
    assert not is_itself(key) or repr(key_of(key_in_bytes(key, key_group))) == repr(key)


@given(ANY_KEY)
def test_the_group_in_front_is_that_of_the_key(key: Any) -> None:
    group = int.from_bytes(key_in_bytes(key, key_group)[:2], "big")
    assert group == key_group(key) == stable_hash(key) % GROUPS


def test_what_cannot_be_kept_on_disk_is_refused_with_the_reason(
    store: StateBackend[Any, Any],
) -> None:
    with pytest.raises(UserError, match="must be a str, bytes, bool"):
        store.get(frozenset({1}))
    with pytest.raises(UserError, match="no raw dict"):
        store.entries  # noqa: B018
    store.put("lock", Random)
    store.put("unpicklable", (number for number in range(3)))
    with pytest.raises(UserError, match="under key 'unpicklable' cannot be saved"):
        len(store)


@pytest.mark.parametrize("hot_bytes", [0, 1 << 20])
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2**20)), min_size=30, max_size=60))
def test_each_durable_chain_restores_exactly_its_instant(
    tmp_path_factory: pytest.TempPathFactory, hot_bytes: int, steps: list[tuple[Step, int]]
) -> None:
    folder = tmp_path_factory.mktemp("disk")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(disk, "HOT_BYTES", hot_bytes)
        patched.setattr(disk, "FEWEST", 1)
        history = History(on_disk=folder)
        for number, (step, seed) in enumerate(steps):
            step(history, Random(seed))
            if number % 4 == 3:  # looking writes: most steps go on without
                history.check()
        history.check()
        history.state.close()
    assert not list(folder.iterdir()), "nothing stays behind"


class Saved:
    """A store of objects, and what was done with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects: dict[ObjectRef, bytes] = {}
        self.loaded: list[ObjectRef] = []
        self.numbers = 0

    def state(self, kind: str = "disk", place: str = "here") -> ShardState:
        space = DiskSpace(str(self.folder / place), key_group, lambda op, name: kind == "disk")
        return ShardState(space)

    def put(self, name: str, data: bytes) -> ObjectRef:
        ref = ObjectRef.of(name, data)
        self.objects[ref] = data
        return ref

    def load(self, refs: Any) -> list[bytes]:
        self.loaded += refs
        if any(ref not in self.objects for ref in refs):
            raise CorruptObject("missing")
        return [self.objects[ref] for ref in refs]

    def checkpoint(self, state: ShardState) -> tuple[Any, Any]:
        """The chain, and the capture that it restores."""
        capture = state.capture({})
        self.numbers += 1
        capture.save_files(self.put, f"checkpoint-{self.numbers}")
        ref = self.put(f"checkpoint-{self.numbers}.ckpt", capture.encode())
        return state.mark_durable(capture, ref), capture

    def restored(self, chain: Any, **where: str) -> ShardState:
        state = self.state(**where)
        state.restore(self.load(chain), chain, self.load)
        return state


def filled(state: ShardState, first: int, last: int) -> StateBackend[Any, Any]:
    store = state.keystore("op", "s")
    for number in range(first, last):
        store.put(number, str(number))
    return store


def test_a_checkpoint_saves_only_files_that_are_new(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    state = saved.state()
    filled(state, 0, 20_000)
    _, first = saved.checkpoint(state)
    filled(state, 20_000, 20_100)
    _, second = saved.checkpoint(state)
    _, third = saved.checkpoint(state)
    assert set(first.files) < set(second.files) == set(third.files)
    assert second.new_bytes < first.new_bytes / 20
    kept = {ref.name for ref in saved.objects}
    assert len(kept) == len(second.files) + 3, "nothing was saved a second time"


def test_a_restore_fetches_only_files_that_are_not_on_the_local_disk(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    state = saved.state()
    filled(state, 0, 1_000)
    chain, capture = saved.checkpoint(state)
    filled(state, 0, 500).clear()
    saved.loaded.clear()
    # As a process that was killed leaves it: nobody has closed anything.
    again = saved.restored(chain)
    assert saved.loaded == list(chain)
    assert again.keystore("op", "s").get(999) == "999" and len(again.keystore("op", "s")) == 1_000
    saved.loaded.clear()
    elsewhere = saved.restored(chain, place="another machine")
    assert set(saved.loaded) == {*chain, *capture.files}
    assert len(elsewhere.keystore("op", "s")) == 1_000


def test_state_moves_from_memory_to_disk_and_back(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    state = saved.state("memory")
    filled(state, 0, 100)
    chain, _ = saved.checkpoint(state)
    on_disk = saved.restored(chain, kind="disk")
    filled(on_disk, 100, 150)
    chain, capture = saved.checkpoint(on_disk)
    assert capture.files
    back = saved.restored(chain, kind="memory")
    store = back.keystore("op", "s")
    assert not isinstance(store, DiskBackend)
    assert dict(store.items()) == {number: str(number) for number in range(150)}
    filled(back, 150, 160)
    chain, capture = saved.checkpoint(back)
    assert capture.kind == "full" and not capture.files
    assert len(saved.restored(chain, kind="memory").keystore("op", "s")) == 160


def test_a_file_that_is_missing_makes_the_restore_fail_and_changes_nothing(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    state = saved.state()
    filled(state, 0, 100)
    chain, capture = saved.checkpoint(state)
    other = saved.state(place="elsewhere")
    filled(other, 0, 7)
    del saved.objects[capture.files[0]]
    with pytest.raises(CorruptObject, match="missing"):
        other.restore(saved.load(chain), chain, saved.load)
    assert len(other.keystore("op", "s")) == 7


def test_a_damaged_file_on_the_shelf_of_another_size_is_fetched_again(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    state = saved.state()
    filled(state, 0, 100)
    chain, _ = saved.checkpoint(state)
    for shelved in tmp_path.rglob("shelf/*"):
        os.truncate(shelved, 10)
    assert len(saved.restored(chain).keystore("op", "s")) == 100


def test_a_capture_whose_upload_failed_loses_nothing(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    state = saved.state()
    store = filled(state, 0, 100)
    lost = state.capture({})
    store.put("later", 1)
    state.mark_failed(lost)
    chain, _ = saved.checkpoint(state)
    assert saved.restored(chain).keystore("op", "s").get("later") == 1


def test_writing_does_not_wait_until_a_capture_is_saved(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    state = saved.state()
    store = filled(state, 0, 100)
    capture = state.capture({})

    def put_while_others_write(name: str, data: bytes) -> ObjectRef:
        writer = threading.Thread(target=lambda: len(filled(state, 50, 300)), daemon=True)
        writer.start()
        writer.join(timeout=60)
        assert not writer.is_alive(), "who writes waits for who saves"
        return saved.put(name, data)

    capture.save_files(put_while_others_write, "checkpoint")
    ref = saved.put("checkpoint.ckpt", capture.encode())
    chain = state.mark_durable(capture, ref)
    assert len(store) == 300
    assert len(saved.restored(chain).keystore("op", "s")) == 100


def test_an_emptied_store_is_saved_as_empty(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    state = saved.state()
    store = filled(state, 0, 10)
    saved.checkpoint(state)
    for number in range(10):
        store.delete(number)
    chain, capture = saved.checkpoint(state)
    assert not capture.files and len(saved.restored(chain).keystore("op", "s")) == 0


def test_state_of_a_renamed_operator_is_taken_over_without_being_read(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    state = saved.state()
    filled(state, 0, 1_000)
    chain, capture = saved.checkpoint(state)
    heir = saved.state(place="heir")
    other = heir.beside(lambda operator: "new" if operator == "op" else None)
    other.restore(saved.load(chain), chain, saved.load)
    heir.adopt(other, lambda operator: "new" if operator == "op" else None)
    assert heir.keystore("new", "s").get(999) == "999"
    _, again = saved.checkpoint(heir)
    assert again.kind == "full" and again.files == capture.files and again.new_bytes == 0


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/b", "..", ""])
def test_no_saved_file_of_a_table_is_written_outside_of_its_folder(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "table"
    folder.mkdir()
    for files in (
        SavedFiles({name: ObjectRef.of("x", b"x")}, {}, 0),
        SavedFiles({}, {name: b"x"}, 0),
    ):
        with pytest.raises(CorruptObject, match="outside of its folder"):
            files.fetch(folder, Shelf(tmp_path / "shelf"), lambda refs: [b"x" for _ in refs])
    assert [*folder.iterdir()] == [] and not (tmp_path / "outside").exists()
