"""`Journal`: records are logged durably before they are emitted, so any feed can be replayed.

`journal/log.py` explains what is in its folder, and what counts after a crash.

Records that the feed delivered but that were not logged when the process died are lost: no journal
can recover what the other side does not send again.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from everstream.connectors.files.filesystem import filesystem_of, is_local, make_folders, place_of
from everstream.connectors.generate.sources import FromGenerator
from everstream.connectors.journal.log import Appending, JournalEntry, JournalSegment, Log
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.rejects import Rejected
from everstream.pipeline.source import END, NO_LOAD, EndOfStream, LoadSeen, Reader, Source
from everstream.pipeline.types import T
from everstream.state.signing import key_of

SEGMENT_BYTES = 64 << 20


class Journal(Source[T]):
    """Logs what `feed` gives into `folder` before emitting it.

    `feed` is a source, such as SocketLines, or a function without arguments that returns an
    iterator. After a failure, records are replayed from the journal, then the feed resumes: a
    source from where it was last read, a function by calling it again. A run that starts over
    (--fresh) replays what the journal holds: everything, with keep="all"; by default ("needed"),
    records that no checkpoint can roll back to any more are removed.

    A run whose store is signed signs its journals with the same key, and refuses to replay what is
    not signed. With `trust_unsigned=True` it replays what was logged before that (by a version of
    Everstream that did not sign journals). Use it only if no one else can write to the folder,
    because what is replayed can run code.

    >>> def sensor():
    ...     yield from [20.5, 21.0]
    >>> feed = es.Journal(sensor, "journal/")
    >>> es.Pipeline("readings").source(feed).collect().run().collected()
    [20.5, 21.0]
    """

    def __init__(
        self,
        feed: Source[T] | Callable[[], Iterable[T]],
        folder: str | os.PathLike[str],
        *,
        keep: str = "needed",
        trust_unsigned: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if keep not in ("needed", "all"):
            raise UserError(f"keep={keep!r}: use 'needed' or 'all'.")
        if isinstance(feed, Iterator):
            raise UserError(
                f"a {type(feed).__name__} cannot be sent to the worker that reads it. Pass the "
                "function that makes it: Journal(read_sensor, ...), not Journal(read_sensor(), ...)."
            )
        if not isinstance(feed, Source) and not callable(feed):
            raise UserError(
                "Journal logs a source or a function that returns an iterator, "
                f"not {type(feed).__name__}; for a list use FromList, which needs no journal."
            )
        self._feed = feed if isinstance(feed, Source) else FromGenerator(_Feed(feed))
        self._restarts = not isinstance(feed, Source) or not feed.replayable
        self._keeps_all = keep == "all"
        self._trusts_unsigned = trust_unsigned
        self._fs, self._folder = filesystem_of(folder, storage_options)
        self.max_shards = self._feed.max_shards
        self.on_error = self._feed.on_error
        self.own_slots = self._feed.own_slots
        self.needs_spark = self._feed.needs_spark

    def describe_offsets(self) -> dict[str, Any]:
        return {**super().describe_offsets(), "folder": place_of(self._fs, self._folder)}

    def open(self, shard: int, shards: int) -> Reader:
        name = f"shard-{shard}-of-{shards}"
        log = Log(self._fs, self._folder, name, trust_unsigned=self._trusts_unsigned)

        def begin() -> Reader:
            return self._feed.open(shard, shards)

        if self.max_shards is not None and shards > self.max_shards:
            begin()  # raises an error that explains why
            raise UserError(f"this feed can have at most {self.max_shards} shard(s).")
        return _JournalReader(log, begin, self._restarts, self._keeps_all)

    def redistribute(self, offsets: Sequence[int], shards: int) -> Sequence[int]:
        if shards == len(offsets):
            return offsets
        raise UserError(
            f"a Journal cannot change from {len(offsets)} shard(s) to {shards}: each of them has "
            f"logged into its own folder in '{self._folder}', and only a shard of that number "
            "resumes its part of the feed. Keep the number of shards of this source; operators "
            "after it can have another."
        )

    def stopping_point(self) -> Any:
        """What the journal holds, and what the feed has now."""
        return self._feed.stopping_point()

    def check(self) -> None:
        if self._feed.replayable:  # a feed that is not would refuse to run without a journal
            self._feed.check()
        try:
            make_folders(self._fs, self._folder, self._folder)
        except OSError as error:
            raise UserError(f"the journal '{self._folder}' cannot be written: {error}.") from error

    def before_run(self, pipeline: str, operator: str, store: str, resuming: bool) -> None:
        self._feed.before_run(pipeline, operator, store, resuming)

    def after_run(self) -> None:
        self._feed.after_run()


class _Feed:
    """A function without arguments as one that takes (and ignores) an offset."""

    def __init__(self, function: Callable[[], Iterable[Any]]) -> None:
        self._function = function

    def __call__(self, offset: int) -> Iterable[Any]:
        return self._function()


class _JournalReader(Reader):
    """Replays what was logged from its offset on, then reads, logs and emits.

    The offset is the number of frames emitted, including the one that marks the end of the feed.
    """

    def __init__(
        self, log: Log, begin: Callable[[], Reader], restarts: bool, keeps_all: bool
    ) -> None:
        self._log = log
        self._keeps_all = keeps_all
        self._sought = False
        self._begin = begin
        self._restarts = restarts
        self._generation: int | None = None
        self._given = 0
        self._replay: Iterator[JournalEntry] | None = None
        self._feed: Reader | None = None
        self._feed_offset: Any = None
        self._file: Appending | None = None
        self._segment: JournalSegment | None = None
        self._file_bytes = 0
        self._ended = False
        self._replayed = 0
        self._clocks: tuple[Callable[[], float], Callable[[], float]] | None = None
        self._rejected: list[Rejected] = []
        self._store: str | None = None
        self._stops_at: Any = None

    @property
    def offset(self) -> int:
        return self._given

    def stop_at(self, point: Any) -> None:
        self._stops_at = point

    def fence(self, generation: int) -> None:
        self._generation = generation

    def use_store(self, store: str) -> None:
        self._store = store
        self._log.key = key_of(store)

    def keep_time(self, wall_s: Callable[[], float], steady_s: Callable[[], float]) -> None:
        self._clocks = (wall_s, steady_s)

    def load(self) -> LoadSeen:
        return self._feed.load() if self._feed is not None else NO_LOAD

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
                raise self._log.damaged(f"frames {self._given} to {frame.number - 1} are missing")
            if frame.number == self._given:
                self._given += 1
                self._rejected += frame.rejected
                if frame.batch is not None and len(frame.batch):
                    return frame.batch
        if self._replayed < self._given:
            raise self._log.damaged(f"frames {self._replayed} to {self._given - 1} are missing")
        return END if self._ended else self._read_on()

    def ready_in_s(self) -> float:
        return self._feed.ready_in_s() if self._feed is not None else 0.0

    def drained(self) -> bool:
        return self._feed is not None and self._feed.drained()

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

    def _known_segments(self) -> list[JournalSegment]:
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
            if self._clocks is not None:
                self._feed.keep_time(*self._clocks)
            if self._store is not None:
                self._feed.use_store(self._store)
            if self._stops_at is not None:
                self._feed.stop_at(self._stops_at)
            if self._feed_offset is not None and not self._restarts:
                self._feed.seek(self._feed_offset)
        read = self._feed.read()
        rejected = self._feed.take_rejected()
        if isinstance(read, EndOfStream) and self._stops_at is not None:
            if not rejected:
                return END  # for this run only: the end of the feed is not recorded
            read = None
        if read is None and not rejected:
            return None
        batch = None if isinstance(read, EndOfStream) else read
        self._ended = isinstance(read, EndOfStream)
        feed_offset = None if self._restarts else self._feed.offset
        logged = batch if batch is not None or self._ended else []
        self._append(logged, feed_offset, rejected)
        self._given += 1
        self._replayed = self._given
        self._rejected += rejected
        return END if self._ended else batch

    def _append(self, batch: Batch | None, feed_offset: Any, rejected: list[Rejected]) -> None:
        if self._file is None or self._segment is None:
            assert self._generation is not None
            self._known_segments()
            self._segment = JournalSegment(self._generation, self._given)
            self._file = self._log.begin(self._segment)
            self._file_bytes = 0
        data = self._log.encoded(self._segment, self._given, batch, feed_offset, rejected)
        try:
            self._log.append(self._file, data)
        except ConnectorError:
            self._file = None  # it may end in half a frame: nothing may follow that
            raise
        self._file_bytes += len(data)
        if self._file_bytes >= SEGMENT_BYTES or not is_local(self._log.fs):
            self._file.close()
            self._file = None
