"""Objects that are kept are read now and then: one that is damaged is written anew, and said."""

import random

import pytest

from everstream.engine.scrubber import LARGEST_BYTES, Scrubber
from everstream.simulation.disk import SimulatedDisk
from everstream.state.objects import ObjectRef
from everstream.state.store import CheckpointStore, _copy_path, _object_path


class Scene:
    def __init__(self) -> None:
        self.disk = SimulatedDisk(random.Random(0))
        self.store = CheckpointStore(self.disk)
        self.refs = [self.store.put(f"shard/{number}", b"x" * 50) for number in range(3)]
        self.scrubber = Scrubber(self.store, lambda: self.refs, shortest_pause_s=0.001)

    def round(self) -> list[str]:
        for _ in self.refs:
            self.scrubber.read_one()
        return self.scrubber.found()


@pytest.mark.parametrize("path_of", [_object_path, _copy_path])
@pytest.mark.parametrize("how", ["rot", "missing"])
def test_a_damaged_object_is_healed_by_the_other_and_said(path_of: object, how: str) -> None:
    it = Scene()
    assert callable(path_of)
    path = path_of(it.refs[1])
    whole = it.disk.files[path]
    if how == "rot":
        it.disk.rot(path)
    else:
        it.disk.delete(path)
    (said,) = it.round()
    assert "'shard/1' was healed" in said
    assert it.disk.files[path] == whole
    assert it.round() == []


def test_what_is_damaged_twice_or_no_longer_kept_is_left_alone() -> None:
    it = Scene()
    first, second, _ = it.refs
    for path in (_object_path(first), _copy_path(first), _object_path(second)):
        it.disk.delete(path)
    it.refs = [first]
    assert it.round() == []
    assert _object_path(second) not in it.disk.files


def test_each_is_read_once_in_a_round_and_large_ones_never(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Scene()
    large = ObjectRef("large", LARGEST_BYTES + 1, "0" * 32)
    seen: list[str] = []

    def weakness_of(self: CheckpointStore, ref: ObjectRef) -> None:
        seen.append(ref.name)

    monkeypatch.setattr(CheckpointStore, "weakness_of", weakness_of)
    it.refs = [*it.refs, large]
    for _ in range(6):
        it.scrubber.read_one()
    assert seen == ["shard/0", "shard/1", "shard/2"] * 2
    it.refs = []
    assert it.scrubber.read_one() == 0


def test_a_store_that_cannot_be_reached_stops_nobody() -> None:
    it = Scene()
    it.disk.odd["read"] = 2
    assert it.round() == []


def test_the_thread_says_when_it_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Scene()

    def broken(self: CheckpointStore, ref: ObjectRef) -> None:
        it.scrubber.stop()
        raise ZeroDivisionError

    monkeypatch.setattr(CheckpointStore, "weakness_of", broken)
    it.scrubber._loop()
    (said,) = it.scrubber.found()
    assert "no longer scrubbed" in said and "ZeroDivisionError" in said
