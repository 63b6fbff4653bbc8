"""Journals: what flowed can be replayed, what a zombie logs is never read, torn ends are cut."""

import errno
import os
import pickle
import socket
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from everstream.connectors import FromFunction, FromList, Journal, JsonLines, Paced, SocketLines
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import records_of
from everstream.pipeline.operator import Context
from everstream.pipeline.source import EndOfStream, Reader
from everstream.runtime.stage import ChainStage
from everstream.state.backends.memory import MemoryBackend
from everstream.testing.sources import check_source

FEED: list[Any] = []


def feed() -> Iterator[Any]:
    """Gives each record to one caller only, as a socket does; ends with None."""
    while FEED:
        record = FEED.pop(0)
        if record is None:
            return
        yield record


def read_all(reader: Reader) -> list[Any]:
    records: list[Any] = []
    while not isinstance(batch := reader.read(), EndOfStream):
        records += records_of(batch) if batch is not None else []
    return records


def one_by_one(folder: Path, generation: int | None = None) -> Reader:
    """A reader of the journal of FEED that reads a record at a time."""
    reader = Journal(FromFeed(), folder).open(0, 1)
    if generation is not None:
        reader.fence(generation)
    return reader


class FromFeed(FromList):
    """FEED as a source that cannot go back."""

    replayable = False
    max_shards = 1

    def __init__(self) -> None:
        super().__init__([])

    def open(self, shard: int, shards: int) -> Reader:
        return FeedReader()


class FeedReader(Reader):
    offset = None

    def seek(self, offset: Any) -> None:
        raise AssertionError("a live feed cannot go back")

    def read(self) -> Any:
        if not FEED:
            return None
        record = FEED.pop(0)
        from everstream.pipeline.source import END

        return END if record is None else [record]


def test_a_function_in_a_journal_keeps_the_promises_of_a_source(tmp_path: Path) -> None:
    FEED[:] = range(20)
    check_source(partial(Journal, feed, tmp_path), expected=range(20))
    assert FEED == []


@pytest.mark.parametrize("root", ["", "memory://"])
def test_a_source_in_a_journal_keeps_the_promises_of_a_source(tmp_path: Path, root: str) -> None:
    folder = f"{root}{tmp_path}/{uuid.uuid4().hex}"
    check_source(
        lambda: Journal(FromList(range(20), batch=3), folder),
        expected=range(20),
        redistributes=False,
    )


def test_dataframes_are_journaled_too(tmp_path: Path) -> None:
    def make(start: int, stop: int) -> pl.DataFrame:
        return pl.DataFrame({"n": range(start, stop)})

    source = Journal(FromFunction(make, total=7, batch=3), tmp_path)
    for _ in range(2):
        batch = source.open(0, 1).read()
        assert isinstance(batch, pl.DataFrame)
        assert batch["n"].to_list() == [0, 1, 2]


def test_what_flowed_is_replayed_and_the_feed_goes_on(tmp_path: Path) -> None:
    FEED[:] = [1, 2, 3]
    first = one_by_one(tmp_path)
    assert [first.read() for _ in range(3)] == [[1], [2], [3]]
    saved = pickle.dumps(first.offset)
    FEED[:] = [4, 5]
    assert [first.read(), first.read()] == [[4], [5]]
    for generation in (2, 3):
        again = one_by_one(tmp_path, generation)
        again.seek(pickle.loads(saved))
        assert [again.read(), again.read(), again.read()] == [[4], [5], None]
    FEED[:] = [6, None]
    assert again.read() == [6]
    assert isinstance(again.read(), EndOfStream)
    assert read_all(one_by_one(tmp_path)) == [1, 2, 3, 4, 5, 6]


def test_a_record_is_on_disk_before_it_flows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), fsync(file)))
    FEED[:] = [1, 2]
    reader = one_by_one(tmp_path)
    for _ in range(2):
        synced.clear()
        reader.read()
        assert synced


def test_what_a_zombie_logs_after_its_successor_began_is_never_read(tmp_path: Path) -> None:
    FEED[:] = [1, 2]
    zombie = one_by_one(tmp_path, 1)
    assert [zombie.read(), zombie.read()] == [[1], [2]]
    heir = one_by_one(tmp_path, 2)
    assert [heir.read(), heir.read(), heir.read()] == [[1], [2], None]
    FEED[:] = ["stolen by the zombie"]
    zombie.read()
    FEED[:] = [3]
    assert heir.read() == [3]
    FEED[:] = ["stolen again", None]
    zombie.read()
    zombie.read()
    FEED[:] = [4, None]
    assert heir.read() == [4]
    assert isinstance(heir.read(), EndOfStream)
    assert read_all(one_by_one(tmp_path, 3)) == [1, 2, 3, 4]


def test_a_zombie_that_starts_late_must_stop(tmp_path: Path) -> None:
    late = one_by_one(tmp_path, 1)
    FEED[:] = [1]
    one_by_one(tmp_path, 2).read()
    with pytest.raises(ConnectorError, match="generation 2 has taken over"):
        late.read()


def logged(folder: Path, *records: Any) -> tuple[Path, list[int]]:
    """A journal's one segment with a frame per record, and where each frame ends."""
    FEED[:] = list(records)
    reader = one_by_one(folder, 1)
    ends = []
    for _ in records:
        reader.read()
        (segment,) = folder.glob("shard-0-of-1/segment-*")
        ends.append(segment.stat().st_size)
    return segment, ends


def mark_of(segment: Path) -> Path:
    return segment.with_name(f"synced-{segment.name}")


def test_a_torn_end_is_cut_wherever_it_was_torn(tmp_path: Path) -> None:
    segment, ends = logged(tmp_path, 1, 2, 3)
    data, mark = segment.read_bytes(), mark_of(segment).read_bytes()
    logged(tmp_path / "two", 1, 2)
    before_three = mark_of(next(tmp_path.glob("two/shard-0-of-1/segment-*"))).read_bytes()
    for cut in range(ends[1], ends[2]):
        segment.write_bytes(data[:cut])
        mark_of(segment).write_bytes(before_three)  # the third frame was never synced
        FEED[:] = [4]
        reader = one_by_one(tmp_path, 2)
        assert [reader.read() for _ in range(3)] == [[1], [2], [4]]
        for later in tmp_path.glob("shard-0-of-1/*-00000000000000000002-*"):
            later.unlink()
    segment.write_bytes(data)
    mark_of(segment).write_bytes(mark)
    assert [one_by_one(tmp_path, 2).read()] == [[1]]


def test_every_flipped_byte_of_a_journal_is_refused_with_its_place(tmp_path: Path) -> None:
    segment, ends = logged(tmp_path, 1, 2, 3)
    data = segment.read_bytes()
    for position in range(len(data)):
        segment.write_bytes(data[:position] + bytes([data[position] ^ 128]) + data[position + 1 :])
        frame = sum(end <= position for end in ends)
        start = [0, *ends][frame]
        reader = one_by_one(tmp_path, 2)
        assert [reader.read() for _ in range(frame)] == [[1], [2], [3]][:frame]
        with pytest.raises(ConnectorError, match=rf"{segment.name}'.*byte {start}.*Restore") as no:
            reader.read()
        assert "--fresh, which deletes" in str(no.value)


def test_a_journal_that_lost_synced_frames_is_refused(tmp_path: Path) -> None:
    segment, ends = logged(tmp_path, 1, 2, 3)
    data = segment.read_bytes()
    for cut in (0, 5, ends[0], ends[1], ends[1] + 20, ends[2] - 1):
        segment.write_bytes(data[:cut])
        with pytest.raises(ConnectorError, match="no complete frame at byte"):
            read_all(one_by_one(tmp_path, 2))
    segment.unlink()
    with pytest.raises(ConnectorError, match=r"its last segment.* is missing"):
        one_by_one(tmp_path, 2).read()


@pytest.mark.parametrize("left", [b"", b"not a mark"])
def test_a_journal_whose_mark_is_lost_is_read_all_the_same(tmp_path: Path, left: bytes) -> None:
    segment, _ = logged(tmp_path, 1, 2, None)
    mark_of(segment).write_bytes(left)
    assert read_all(one_by_one(tmp_path, 2)) == [1, 2]
    mark_of(segment).unlink()
    assert read_all(one_by_one(tmp_path, 2)) == [1, 2]


def test_damage_in_the_middle_of_a_journal_is_named(tmp_path: Path) -> None:
    FEED[:] = [1, 2, 3]
    reader = one_by_one(tmp_path, 1)
    offsets = [reader.offset for _ in range(3) if reader.read()]
    (segment,) = tmp_path.glob("shard-0-of-1/segment-*")
    heir = one_by_one(tmp_path, 2)
    FEED[:] = [4, None]
    assert read_all(heir) == [1, 2, 3, 4]
    segment.unlink()
    with pytest.raises(ConnectorError, match=r"damaged: frames 0 to 2 are missing.*--fresh"):
        one_by_one(tmp_path, 3).read()
    for file in tmp_path.glob("shard-0-of-1/*"):
        file.unlink()
    gone = one_by_one(tmp_path, 3)
    gone.seek(offsets[1])
    with pytest.raises(ConnectorError, match="frames 0 to 1 are missing"):
        gone.read()


def test_old_segments_may_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everstream.connectors.journal.source.SEGMENT_BYTES", 1)
    FEED[:] = [1, 2, 3]
    reader = one_by_one(tmp_path, 1)
    assert [reader.read() for _ in range(2)] == [[1], [2]]
    saved = reader.offset
    reader.read()
    segments = sorted(tmp_path.glob("shard-0-of-1/segment-*"))
    assert len(segments) == 3
    segments[0].unlink()
    again = one_by_one(tmp_path, 2)
    again.seek(saved)
    assert again.read() == [3]
    with pytest.raises(ConnectorError, match="frames 0 to 0 are missing"):
        one_by_one(tmp_path, 3).read()


def test_what_no_checkpoint_needs_is_removed_and_a_fresh_start_begins_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everstream.connectors.journal.source.SEGMENT_BYTES", 1)
    FEED[:] = [1, 2, 3, 4]
    reader = one_by_one(tmp_path, 1)
    offsets = [reader.offset for _ in range(4) if reader.read()]
    reader.forget(offsets[1])
    again = one_by_one(tmp_path, 2)
    again.seek(offsets[1])
    assert [again.read(), again.read()] == [[3], [4]]
    again.forget(offsets[2])
    assert len(list(tmp_path.glob("shard-0-of-1/segment-*"))) == 1
    (mark,) = tmp_path.glob("shard-0-of-1/kept-from-*")
    assert not mark.stat().st_mode & 0o077, "closed to others, as all of a journal is"
    FEED[:] = [5, None]
    assert read_all(one_by_one(tmp_path, 3)) == [4, 5]
    late = one_by_one(tmp_path, 4)
    late.seek(offsets[0])
    with pytest.raises(ConnectorError, match="frames 1 to 2 are missing"):
        late.read()


def test_the_newest_segment_is_never_removed_nor_any_that_is_asked_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everstream.connectors.journal.source.SEGMENT_BYTES", 1)
    FEED[:] = [1, 2]
    reader = one_by_one(tmp_path, 1)
    assert [reader.read(), reader.read()] == [[1], [2]]
    reader.forget(reader.offset)
    assert len(list(tmp_path.glob("shard-0-of-1/segment-*"))) == 1
    FEED[:] = [1, 2, 3]
    strategy = Journal(FromFeed(), tmp_path / "all", keep="all").open(0, 1)
    for _ in range(3):
        strategy.read()
    strategy.forget(strategy.offset)
    assert len(list(tmp_path.glob("all/shard-0-of-1/segment-*"))) == 3
    with pytest.raises(UserError, match="keep='some': use 'needed' or 'all'"):
        Journal(FromFeed(), tmp_path, keep="some")


def test_a_source_is_told_what_the_kept_checkpoints_do_not_need() -> None:
    told: list[int] = []

    class Telling(FeedReader):
        def forget(self, offset: int) -> None:
            told.append(offset)

    stage = ChainStage("source", Context("source", 0, 1, MemoryBackend()), reader=Telling())
    for checkpoint in range(1, 8):
        stage.offsets.append((checkpoint, checkpoint * 10))
        if checkpoint != 5:  # its manifest could not be written
            stage.note_stable(checkpoint)
    assert told == [20, 30, 40], "three are kept"


def test_what_a_source_rejected_is_journaled_with_its_records(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("1\nbroken\n2\n")
    source = Journal(JsonLines(tmp_path / "a.jsonl", on_error="skip"), tmp_path / "journal")
    assert source.on_error == "skip"
    for _ in range(2):
        reader = source.open(0, 1)
        assert read_all(reader) == [1, 2]
        assert [one.record for one in reader.take_rejected()] == ["broken"]
    (tmp_path / "b.jsonl").write_text("broken\n")
    source = Journal(JsonLines(tmp_path / "b.jsonl", on_error="skip"), tmp_path / "journal-b")
    for _ in range(2):
        reader = source.open(0, 1)
        assert read_all(reader) == []
        assert len(reader.take_rejected()) == 1
        again = source.open(0, 1)
        again.seek(reader.offset)
        assert read_all(again) == []
        assert again.take_rejected() == []


def test_a_full_disk_is_named_and_the_record_does_not_flow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FEED[:] = [1]

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    reader = one_by_one(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConnectorError, match=r"journal '.*No space left"):
        reader.read()
    monkeypatch.undo()
    FEED[:] = [2, None]
    assert read_all(reader) == [2]
    assert read_all(one_by_one(tmp_path)) == [2]


def test_wrong_feeds_are_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Pass the function"):
        Journal(feed(), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="FromList"):
        Journal([1, 2], tmp_path)  # type: ignore[arg-type]
    with pytest.raises(UserError):
        Journal(feed, tmp_path).open(0, 2)
    with pytest.raises(UserError, match=r"Journal\(SocketLines\('localhost', 99\), 'journal/'\)"):
        SocketLines("localhost", 99).check()


class Server:
    """Sends to whoever connects: one connection after the other."""

    def __init__(self, *pieces: bytes) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.pieces = pieces
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        for piece in self.pieces:
            connection, _ = self.listening.accept()
            with connection:
                connection.sendall(piece)


def test_lines_from_a_socket_can_be_replayed_from_the_journal(tmp_path: Path) -> None:
    server = Server("one\r\ntwo é\nthree".encode() + b"\xff")
    source = Journal(SocketLines("127.0.0.1", server.port), tmp_path)
    source.check()
    expected = ["one", "two é", "three\ufffd"]
    assert read_all(source.open(0, 1)) == expected
    server.listening.close()
    check_source(
        lambda: Journal(SocketLines("127.0.0.1", server.port), tmp_path), expected=expected
    )


def test_a_socket_can_be_connected_again(tmp_path: Path) -> None:
    server = Server(b"one\n", b"two\n")
    reader = Journal(SocketLines("127.0.0.1", server.port, reconnect=True), tmp_path).open(0, 1)
    found: list[Any] = []
    while len(found) < 2:
        if lines := reader.read():
            found += lines
            assert reader.drained()
    assert found == ["one", "two"]
    server.listening.close()


def test_a_socket_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    reader = Journal(SocketLines("127.0.0.1", 1), tmp_path).open(0, 1)
    with pytest.raises(ConnectorError, match=r"cannot connect to 127\.0\.0\.1:1"):
        reader.read()


def test_a_paced_source_gives_its_rejects_with_the_last_record_of_their_batch(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jsonl").write_text("1\nbroken\n2\n3\n")
    now = [0.0]
    source = Paced(JsonLines(tmp_path / "a.jsonl", on_error="skip"), 1, clock=lambda: now[0])
    reader = source.open(0, 1)
    now[0] = 2.0
    assert reader.read() == [1, 2]
    assert reader.take_rejected() == []
    saved = pickle.dumps(reader.offset)
    again = source.open(0, 1)
    again.seek(pickle.loads(saved))
    now[0] = 3.0
    assert again.read() == [3]
    assert len(again.take_rejected()) == 1
    assert isinstance(again.read(), EndOfStream)
    assert again.take_rejected() == []
