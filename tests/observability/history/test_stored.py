"""The history in a store: bounded, understood after a restart, and never in the way of a run."""

import gzip
from pathlib import Path

import pytest

from everstream.errors import StoreError
from everstream.events import DriverLost, EpochStable, Note, RunEnded, RunEvent, RunStarted
from everstream.observability.history import stored
from everstream.observability.history.run_view import RunView
from everstream.observability.history.stored import (
    FOLDER,
    KIND_OF,
    StoredHistory,
    blob_name,
    encoded,
    prune,
)
from everstream.observability.history.writer import HistoryWriter
from everstream.state.blobs import FsspecBlobs
from tests.observability.history.telling import START, checkpoint, rescaled, run, sample


def writer(folder: Path, **options: int) -> HistoryWriter:
    def wrong(text: str) -> None:
        raise AssertionError(text)

    return HistoryWriter(FsspecBlobs(str(folder)), wrong, lambda: START, **options)


def kind(event: RunEvent) -> str:
    return KIND_OF[type(event)]


def kinds(folder: Path) -> list[str]:
    return list(map(kind, StoredHistory(FsspecBlobs(str(folder))).new_events()))


def test_what_was_written_is_read_back_and_then_only_what_is_new(tmp_path: Path) -> None:
    writing = writer(tmp_path)
    reading = StoredHistory(FsspecBlobs(str(tmp_path)))
    assert not list(reading.new_events())
    writing.take(Note("input", "before the run is known", at=START))
    writing.take(run())
    writing.flush()
    assert list(map(kind, reading.new_events())) == ["note", "run"]
    writing.take(checkpoint(1, 1))
    writing.flush()
    assert list(reading.new_events()) == [checkpoint(1, 1)]
    assert not list(reading.new_events())


def test_runs_of_one_store_follow_each_other(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        writing = writer(tmp_path)
        writing.take(run(START + number, run=name * 32))
        writing.take(RunEnded("stopped", at=START + number))
        writing.flush()
    assert kinds(tmp_path) == ["run", "end", "run", "end"]


def test_one_writer_outlives_drivers_and_says_nothing_twice(tmp_path: Path) -> None:
    writing = writer(tmp_path)
    for name in ("a", "b"):
        writing.take(run(run=name * 32))
        writing.flush()
        writing.take(DriverLost("SIGKILL", at=START))
        writing.flush()
    assert kinds(tmp_path) == ["run", "driver_lost"] * 2
    assert len(FsspecBlobs(str(tmp_path)).list(FOLDER)) == 1


def test_a_history_is_bounded_and_each_part_of_it_stands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "KEPT_BLOBS", 5)
    monkeypatch.setattr(
        "everstream.observability.history.writer.prune", lambda blobs, now: prune(blobs, now, 5)
    )
    writing = writer(tmp_path, blob_bytes=900)
    writing.take(run())
    for number in range(1, 100):
        writing.take(checkpoint(number, number))
        writing.flush()
    blobs = FsspecBlobs(str(tmp_path))
    names = blobs.list(FOLDER)
    assert 3 <= len(names) <= 6
    assert sum(len(blobs.read(name)) for name in names) < 6 * 1500
    run_view = RunView()
    for event in StoredHistory(blobs).new_events():
        run_view.take(event)
    view = run_view.view(START)
    assert view["pipeline"] == "told", "the event of the run is in every part"
    assert view["checkpoints"][0]["epoch"] == 99


def test_a_part_after_a_change_of_shards_begins_with_the_new_plan(tmp_path: Path) -> None:
    writing = writer(tmp_path, blob_bytes=1)
    writing.take(run(shards=2))
    writing.flush()
    writing.take(rescaled(START + 1, 2, 3))
    writing.flush()
    writing.take(checkpoint(2, 1))
    writing.flush()
    blobs = FsspecBlobs(str(tmp_path))
    for earlier in blobs.list(FOLDER)[:-1]:
        blobs.delete(earlier)
    first, after = StoredHistory(blobs).new_events()
    assert isinstance(first, RunStarted) and after == checkpoint(2, 1)
    assert first == run(shards=3)


def test_what_is_old_goes_but_never_what_the_newest_run_has(tmp_path: Path) -> None:
    blobs = FsspecBlobs(str(tmp_path))
    for name in (blob_name(START, "a" * 8, 0), blob_name(START + 1, "b" * 8, 0)):
        blobs.write(name, encoded([run()]))
    prune(blobs, START + 10 * stored.KEPT_S)
    assert blobs.list(FOLDER) == [blob_name(START + 1, "b" * 8, 0)]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"torn",
        gzip.compress(b"[1]\n"),
        gzip.compress(b"{\xff"),
        gzip.compress(b'{"kind": "note", "at": 1}\n'),
        gzip.compress(b'{"kind": "run", "at": 1, "edges": [1]}\n'),
        gzip.compress(b'{"kind": [], "at": 1}\n'),
    ],
    ids=["empty", "torn", "no-event", "no-text", "no-fields", "no-edges", "no-kind"],
)
def test_a_damaged_part_is_left_out_and_said(tmp_path: Path, damage: bytes) -> None:
    blobs = FsspecBlobs(str(tmp_path))
    blobs.write(blob_name(START, "a" * 8, 0), damage)
    blobs.write(blob_name(START, "a" * 8, 1), encoded([run()]))
    reading = StoredHistory(blobs)
    note, after = reading.new_events()
    assert isinstance(note, Note) and isinstance(after, RunStarted)
    assert (note.topic, note.warning) == ("history", True) and "a" * 8 in note.text
    assert not list(reading.new_events()), "said once"


def test_samples_are_kept_seconds_apart_and_what_matters_always(tmp_path: Path) -> None:
    writing = writer(tmp_path)
    writing.take(run())
    for tenth in range(200):
        writing.take(sample(tenth / 10, 0, 0))
    writing.take(checkpoint(20, 1))
    writing.flush()
    assert kinds(tmp_path) == ["run", *["sample"] * 4, "checkpoint"]


def test_of_a_checkpoint_of_many_shards_the_slowest_are_kept(tmp_path: Path) -> None:
    writing = writer(tmp_path)
    writing.take(run())
    writing.take(checkpoint(1, 1, shards=200))
    writing.flush()
    _, kept = StoredHistory(FsspecBlobs(str(tmp_path))).new_events()
    assert isinstance(kept, EpochStable) and len(kept.shards) == stored.SHARDS_KEPT
    assert kept.slowest in [shard.shard for shard in kept.shards]


class Full(FsspecBlobs):
    def write(self, path: str, data: object) -> None:
        raise StoreError("no room")


def test_a_store_that_takes_nothing_is_said_once_and_nobody_waits(tmp_path: Path) -> None:
    said: list[str] = []
    writing = HistoryWriter(Full(str(tmp_path)), said.append)
    writing.start()
    writing.take(run())
    event = checkpoint(1, 1)
    for _ in range(12_000):
        writing.take(event)
    writing.stop()
    assert len(said) == 1 and "no room" in said[0]
    assert len(writing._waiting) + len(writing._blob) <= 2 * 5_000
