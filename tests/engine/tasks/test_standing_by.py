"""Drivers' signs of life and standbys that watch them, over a real store, in one process."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from everstream.core.orders import Outcome
from everstream.engine.availability.heartbeat import HeartbeatThread
from everstream.engine.availability.standby import StandingBy
from everstream.errors import LeaseLost, StoreError
from everstream.events import StoreTaken
from everstream.state.heartbeat import WAITING, DriverStatus, Heartbeat, read_heartbeat
from everstream.state.store import CheckpointStore, Lease
from tests.engine.tasks.running import Notes

SILENCE_S = 0.5
PATIENCE_S = 60.0


def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)


class Waits:
    """A standby in a thread of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.notes = Notes()
        self.store = CheckpointStore.at(str(folder))
        self.stop = threading.Event()
        waiting = StandingBy(self.store, name, name, SILENCE_S, self.notes, self.stop.is_set)
        self.found: list[Lease | Outcome] = []
        self._thread = threading.Thread(target=lambda: self.found.append(waiting.wait()))
        self._thread.start()

    def end(self) -> Lease | Outcome:
        self._thread.join(timeout=PATIENCE_S)
        return self.found[0]


class Deaf:
    """A store that does not answer any more."""

    def read(self, path: str) -> bytes:
        raise StoreError("nobody answers")

    def write(self, path: str, data: bytes) -> None:
        raise StoreError("nobody answers")


class Runs:
    """As much of a driver as a standby sees."""

    def __init__(self, folder: Path, name: str, lease: Lease | None = None) -> None:
        self.store = CheckpointStore.at(str(folder))
        self.lease = lease or self.store.acquire_lease(name)
        self.heartbeat = HeartbeatThread(self.store.blobs, Heartbeat(self.lease.number, name, name))
        self.heartbeat.start()

    def is_heard(self, beats: int = 2) -> bool:
        heartbeat = read_heartbeat(self.store.blobs)
        return (
            heartbeat is not None
            and heartbeat.lease == self.lease.number
            and heartbeat.beat >= beats
        )

    def end(self, outcome: Outcome) -> None:
        self.heartbeat.outcome = outcome
        self.heartbeat.stop()

    def fall_silent(self) -> None:
        """As SIGKILL: no last word."""
        self.heartbeat._blobs = Deaf()  # type: ignore[assignment]
        self.heartbeat.stop()


def test_without_anybody_there_a_standby_has_the_store_after_a_while(tmp_path: Path) -> None:
    assert Waits(tmp_path, "second").end() == Lease(1, 1)


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.STOPPED])
def test_a_standby_ends_as_the_run_it_stood_by_for(tmp_path: Path, outcome: Outcome) -> None:
    first = Runs(tmp_path, "first")
    second = Waits(tmp_path, "second")
    until(first.is_heard)
    first.end(outcome)
    assert second.end() is outcome
    assert not list(tmp_path.glob(WAITING)), "nobody waits any more"


def test_a_run_that_failed_is_taken_over_at_once(tmp_path: Path) -> None:
    first = Runs(tmp_path, "first")
    second = Waits(tmp_path, "second")
    until(first.is_heard)
    first.end(Outcome.FAILED)
    assert isinstance(second.end(), Lease)
    assert second.notes.events[-1] == StoreTaken("first", standby=True)


def test_of_two_standbys_one_takes_over_and_the_other_watches_it(tmp_path: Path) -> None:
    first = Runs(tmp_path, "first")
    others = {name: Waits(tmp_path, name) for name in ("second", "third")}
    until(first.is_heard)
    first.fall_silent()
    until(lambda: any(one.found for one in others.values()))
    (name,) = [name for name, one in others.items() if one.found]
    (left,) = [one for other, one in others.items() if other != name]
    taken = others[name].end()
    assert isinstance(taken, Lease)
    heir = Runs(tmp_path, name, taken)
    until(lambda: left.found or heir.is_heard(beats=10))
    heir.end(Outcome.FINISHED)
    ended = left.end()
    # On a machine that stands still for a while the heir is silent, too; then it is the next one's turn.
    later = isinstance(ended, Lease) and ended.number > taken.number
    assert ended is Outcome.FINISHED or later, "nobody else has the same lease"


def test_a_driver_that_wakes_up_learns_that_it_was_replaced_and_says_nothing_more(
    tmp_path: Path,
) -> None:
    first = Runs(tmp_path, "first")
    assert first.heartbeat.replaced() is None
    second = Runs(tmp_path, "second")
    until(lambda: first.heartbeat.replaced() is not None)
    assert "'second' has taken over with lease 2" in str(first.heartbeat.replaced())
    first.end(Outcome.STOPPED)
    heartbeat = read_heartbeat(second.store.blobs)
    assert heartbeat is not None and (heartbeat.lease, heartbeat.life) == (2, DriverStatus.RUNNING)
    second.end(Outcome.FINISHED)


def test_a_lease_is_had_only_from_whom_it_was_meant_to_be_taken(tmp_path: Path) -> None:
    store = CheckpointStore.at(str(tmp_path))
    assert store.acquire_lease("first", after=0) == Lease(1, 1)
    assert store.acquire_lease("second", after=1).number == 2
    with pytest.raises(LeaseLost, match="'second' has taken over with lease 2"):
        store.acquire_lease("third", after=1)


def test_nobody_beats_where_nobody_listens(tmp_path: Path) -> None:
    alone = Runs(tmp_path, "alone")
    alone.end(Outcome.FINISHED)
    heartbeat = read_heartbeat(alone.store.blobs)
    assert heartbeat is not None and (heartbeat.beat, heartbeat.life) == (1, DriverStatus.FINISHED)


def test_a_store_that_hangs_does_not_keep_a_run_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everstream.engine.availability.heartbeat.LAST_WORD_S", 0.1)
    run = Runs(tmp_path, "first")
    answers = threading.Event()
    monkeypatch.setattr(run.store.blobs, "read", lambda path: answers.wait())
    run.end(Outcome.FINISHED)
    assert run.heartbeat._thread.is_alive(), "it still waits, and nobody waits for it"
    answers.set()
