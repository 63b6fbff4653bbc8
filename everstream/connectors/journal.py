"""`Journal`: records are logged durably before they flow, so that any feed can be replayed.

A journal is a folder of segments per shard; a segment is a row of frames, each a batch and what
was rejected with it. Each generation of a reader appends to a segment of its own, named after the
generation and the number of its first frame. A segment counts only up to where the next
generation's begins: what a zombie still appends is never read. A frame whose checksum is wrong at
the end of a segment was torn by a crash; its records never flowed.

What the feed had handed over and was not logged yet when the process died is gone with it: no
journal can bring back what the other side will not send again.
"""

import os
import pickle
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from everstream.connectors.encoding import decode, encode
from everstream.connectors.files import (
    filesystem_of,
    is_local,
    names_in,
    sync_folder,
)
from everstream.connectors.generate import FromGenerator
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.rejects import Rejected
from everstream.pipeline.source import END, EndOfStream, Reader, Source

SEGMENT_BYTES = 64 << 20
HEADER_BYTES = 16
"""Checksum, kind, length of the notes, length of the batch: 4 bytes each."""
BATCH, ENDED = 1, 2


class Journal(Source):
    """Logs what `feed` gives into `folder` before it flows.

    `feed` is a source, such as SocketLines, or a function without arguments that gives an
    iterator. After a failure records are replayed from the journal, then the feed goes on: a
    source from where it was last read, a function by calling it again. A run that starts from
    nothing (--fresh) replays what the journal holds: everything, with keep="all"; by default
    ("needed") what no checkpoint can go back to any more is removed.
    """

    def __init__(
        self,
        feed: Source | Callable[[], Iterable[Any]],
        folder: str | os.PathLike[str],
        *,
        keep: str = "needed",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if keep not in ("needed", "all"):
            raise UserError(f"keep={keep!r}: say 'needed' or 'all'.")
        if isinstance(feed, Iterator):
            raise UserError(
                f"a {type(feed).__name__} cannot travel to the host that reads it. Pass the "
                "function that makes it: Journal(read_sensor, ...), not Journal(read_sensor(), ...)."
            )
        if not isinstance(feed, Source) and not callable(feed):
            raise UserError(
                "Journal logs a source or a function that gives an iterator, "
                f"not {type(feed).__name__}; for a list use FromList, which needs no journal."
            )
        self._feed = feed if isinstance(feed, Source) else FromGenerator(_Feed(feed))
        self._restarts = not isinstance(feed, Source) or not feed.replayable
        self._keeps_all = keep == "all"
        self._fs, self._folder = filesystem_of(folder, storage_options)
        self.max_shards = self._feed.max_shards
        self.on_error = self._feed.on_error

    def open(self, shard: int, shards: int) -> Reader:
        log = _Log(self._fs, f"{self._folder}/shard-{shard}-of-{shards}")

        def begin() -> Reader:
            return self._feed.open(shard, shards)

        if self.max_shards is not None and shards > self.max_shards:
            begin()  # which refuses, and says why
            raise UserError(f"this feed can have at most {self.max_shards} shard(s).")
        return _JournalReader(log, begin, self._restarts, self._keeps_all)

    def check(self) -> None:
        if self._feed.replayable:  # one that is not says in its check that it needs a journal
            self._feed.check()
        try:
            self._fs.makedirs(self._folder, exist_ok=True)
        except OSError as error:
            raise UserError(f"the journal '{self._folder}' cannot be written: {error}.") from error

    def before_run(self, pipeline: str, operator: str, store: str, resuming: bool) -> None:
        self._feed.before_run(pipeline, operator, store, resuming)


class _Feed:
    """A function without arguments as one that takes (and ignores) an offset."""

    def __init__(self, function: Callable[[], Iterable[Any]]) -> None:
        self._function = function

    def __call__(self, offset: int) -> Iterable[Any]:
        return self._function()


@dataclass(frozen=True, order=True)
class _Segment:
    """Whose segment it is, and the number of its first frame."""

    generation: int
    first: int

    def __str__(self) -> str:
        return f"segment-{self.generation:020d}-{self.first:020d}"

    @staticmethod
    def parse(name: str) -> "_Segment | None":
        found = re.fullmatch(r"segment-(\d{20,})-(\d{20,})", name)
        return _Segment(int(found[1]), int(found[2])) if found else None


_KEPT_FROM = re.compile(r"kept-from-(\d{20,})")


@dataclass(frozen=True)
class _Frame:
    """One batch as it was logged; None where the feed ended."""

    number: int
    batch: Batch | None
    feed_offset: Any
    rejected: list[Rejected]
    next_byte: int


class _Log:
    """The segments of one shard."""

    def __init__(self, fs: Any, folder: str) -> None:
        self.fs = fs
        self.folder = folder

    def path_of(self, segment: _Segment) -> str:
        return f"{self.folder}/{segment}"

    def segments(self) -> list[_Segment]:
        found = (_Segment.parse(name) for name in names_in(self.fs, self.folder))
        return sorted(segment for segment in found if segment is not None)

    def kept_from(self) -> int:
        """The number of the first frame that was not removed on purpose."""
        marks = (_KEPT_FROM.fullmatch(name) for name in names_in(self.fs, self.folder))
        return max((int(mark[1]) for mark in marks if mark), default=0)

    def remove_before(self, number: int) -> None:
        """Remove the segments whose frames all come before this one; say so first."""
        segments = self.segments()
        old: list[_Segment] = []
        for position, segment in enumerate(segments[:-1]):
            if min(other.first for other in segments[position + 1 :]) > number:
                break
            old.append(segment)
        if not old:
            return
        before = self.kept_from()
        kept = min(segment.first for segment in segments[len(old) :])
        # It is tried again when the next checkpoint is stable; meanwhile too much is kept.
        with suppress(OSError):
            self.fs.pipe_file(f"{self.folder}/kept-from-{kept:020d}", b"")
            for segment in old:
                self.fs.rm_file(self.path_of(segment))
            if before and before != kept:
                self.fs.rm_file(f"{self.folder}/kept-from-{before:020d}")

    def frames(self, segments: list[_Segment]) -> Iterator[_Frame]:
        """All frames that count, in order."""
        expected = segments[0].first if segments else 0
        for position, segment in enumerate(segments):
            later = [other.first for other in segments[position + 1 :]]
            stop = min(later) if later else None
            if segment.first > expected:
                raise self.damaged(f"frames {expected} to {segment.first - 1} are gone")
            for frame in self._frames_of(segment):
                if stop is not None and frame.number >= stop:
                    break
                yield frame
                expected = frame.number + 1

    def _frames_of(self, segment: _Segment) -> Iterator[_Frame]:
        """The frames of a segment; stops at one that was torn."""
        path = self.path_of(segment)
        try:
            data: bytes = self.fs.cat_file(path)
        except OSError as error:
            raise ConnectorError(f"cannot read the journal '{path}': {error}.") from error
        position, number = 0, segment.first
        while position < len(data):
            frame = _decoded(data, position, number)
            if frame is None:
                return
            yield frame
            position, number = frame.next_byte, number + 1

    def append(self, file: Any, data: bytes) -> None:
        """Durable when this returns, on a local disk; elsewhere when the file is closed."""
        try:
            file.write(data)
            file.flush()
            if is_local(self.fs):
                os.fsync(file.fileno())
        except OSError as error:
            raise ConnectorError(
                f"cannot write to the journal '{self.folder}': {error}. Check that the disk has "
                "room; nothing that was not logged has flowed."
            ) from error

    def begin(self, segment: _Segment) -> Any:
        path = self.path_of(segment)
        try:
            self.fs.makedirs(self.folder, exist_ok=True)
            file = self.fs.open(path, "wb")
            if is_local(self.fs):
                sync_folder(self.fs, self.folder)
        except OSError as error:
            raise ConnectorError(f"cannot write the journal '{path}': {error}.") from error
        return file

    def damaged(self, problem: str) -> ConnectorError:
        return ConnectorError(
            f"the journal '{self.folder}' is damaged: {problem}. Restore the folder, or start "
            "from nothing with --fresh."
        )


def _encoded(batch: Batch | None, feed_offset: Any, rejected: list[Rejected]) -> bytes:
    notes = pickle.dumps((feed_offset, rejected))
    payload = encode(batch) if batch is not None else b""
    numbers = [ENDED if batch is None else BATCH, len(notes), len(payload)]
    body = b"".join(number.to_bytes(4, "little") for number in numbers) + notes + payload
    return zlib.crc32(body).to_bytes(4, "little") + body


def _decoded(data: bytes, position: int, number: int) -> _Frame | None:
    """The frame at this byte; None if it is torn."""
    header = data[position : position + HEADER_BYTES]
    numbers = [int.from_bytes(header[at : at + 4], "little") for at in (0, 4, 8, 12)]
    checksum, kind, notes_bytes, payload_bytes = numbers
    stop = position + HEADER_BYTES + notes_bytes + payload_bytes
    if len(header) < HEADER_BYTES or stop > len(data):
        return None
    if zlib.crc32(data[position + 4 : stop]) != checksum:
        return None
    offset, rejected = pickle.loads(data[position + HEADER_BYTES : stop - payload_bytes])
    batch = decode(data[stop - payload_bytes : stop])[0] if kind == BATCH else None
    return _Frame(number, batch, offset, rejected, stop)


class _JournalReader(Reader):
    """Replays what was logged from its offset on, then reads, logs and gives on.

    The offset is the number of frames given, the one that says the feed has ended included.
    """

    def __init__(
        self, log: _Log, begin: Callable[[], Reader], restarts: bool, keeps_all: bool
    ) -> None:
        self._log = log
        self._keeps_all = keeps_all
        self._sought = False
        self._begin = begin
        self._restarts = restarts
        self._generation: int | None = None
        self._given = 0
        self._replay: Iterator[_Frame] | None = None
        self._feed: Reader | None = None
        self._feed_offset: Any = None
        self._file: Any = None
        self._file_bytes = 0
        self._ended = False
        self._replayed = 0
        self._rejected: list[Rejected] = []

    @property
    def offset(self) -> int:
        return self._given

    def fence(self, generation: int) -> None:
        self._generation = generation

    def seek(self, offset: int) -> None:
        self.close()
        self._given = offset
        self._sought = True

    def forget(self, offset: int) -> None:
        if not self._keeps_all:
            self._log.remove_before(offset)

    def read(self) -> Batch | EndOfStream | None:
        if self._replay is None:
            if not self._sought and not self._given:
                self._given = self._log.kept_from()
            self._replay = self._log.frames(self._known_segments())
            self._replayed = 0
        for frame in self._replay:
            self._feed_offset = frame.feed_offset
            self._replayed = frame.number + 1
            self._ended = frame.batch is None
            if frame.number > self._given:
                raise self._log.damaged(f"frames {self._given} to {frame.number - 1} are gone")
            if frame.number == self._given:
                self._given += 1
                self._rejected += frame.rejected
                if frame.batch is not None and len(frame.batch):
                    return frame.batch
        if self._replayed < self._given:
            raise self._log.damaged(f"frames {self._replayed} to {self._given - 1} are gone")
        return END if self._ended else self._read_on()

    def ready_in_s(self) -> float:
        return self._feed.ready_in_s() if self._feed is not None else 0.0

    def take_rejected(self) -> list[Rejected]:
        rejected, self._rejected = self._rejected, []
        return rejected

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._feed is not None:
            self._feed.close()
        self._file = self._feed = self._replay = None
        self._feed_offset, self._ended = None, False
        self._rejected = []

    def _known_segments(self) -> list[_Segment]:
        segments = self._log.segments()
        newest = max((segment.generation for segment in segments), default=0)
        if self._generation is None:
            self._generation = newest + 1
        if newest > self._generation:
            raise ConnectorError(
                f"generation {newest} has taken over the journal '{self._log.folder}'; "
                f"generation {self._generation} must stop."
            )
        return segments

    def _read_on(self) -> Batch | EndOfStream | None:
        if self._feed is None:
            self._feed = self._begin()
            if self._feed_offset is not None and not self._restarts:
                self._feed.seek(self._feed_offset)
        read = self._feed.read()
        rejected = self._feed.take_rejected()
        if read is None and not rejected:
            return None
        batch = None if isinstance(read, EndOfStream) else read
        self._ended = isinstance(read, EndOfStream)
        feed_offset = None if self._restarts else self._feed.offset
        logged = batch if batch is not None or self._ended else []
        self._append(_encoded(logged, feed_offset, rejected))
        self._given += 1
        self._replayed = self._given
        self._rejected += rejected
        return END if self._ended else batch

    def _append(self, data: bytes) -> None:
        if self._file is None:
            assert self._generation is not None
            self._known_segments()
            self._file = self._log.begin(_Segment(self._generation, self._given))
            self._file_bytes = 0
        try:
            self._log.append(self._file, data)
        except ConnectorError:
            self._file = None  # half a frame may be in it: nothing may follow that
            raise
        self._file_bytes += len(data)
        if self._file_bytes >= SEGMENT_BYTES or not is_local(self._log.fs):
            self._file.close()
            self._file = None
