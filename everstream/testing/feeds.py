"""Sources that a test feeds: records and watermarks go in one by one, and can be read again.

A feed has one part for each shard of its source, as a topic has partitions. What was pushed stays, so
a shard that rolls back reads the same batches again. It is encoded as on the way to another
shard: an operator that changes a record in place does not change what is read the next time.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, TypeAlias
from weakref import WeakValueDictionary

import polars as pl

from everstream.pipeline.batch import Batch
from everstream.pipeline.source import END, EndOfStream, Reader, Source
from everstream.pipeline.times import NO_WATERMARK
from everstream.runtime.payload import BatchPayload

Pushed: TypeAlias = bytes | int
"""A batch, encoded, or a watermark in microseconds."""
FeedOffset: TypeAlias = tuple[tuple[int, int], ...]
"""For each part that a shard reads: its number, and how many entries were read."""


def as_batch(records: Iterable[Any]) -> Batch:
    """What a test pushes, as a batch: a DataFrame, or the records of any iterable."""
    return records if isinstance(records, pl.DataFrame) else list(records)


class Feed:
    """Everything that was pushed into one source."""

    def __init__(self, shards: int) -> None:
        self.parts: list[list[Pushed]] = [[] for _ in range(shards)]
        self.ended = False
        self._pushed = 0

    def grow(self, shards: int) -> None:
        """The source has this many shards now: each gets a share of what is pushed next."""
        self.parts += [[] for _ in range(shards - len(self.parts))]

    def push(self, records: Batch) -> None:
        """The records go to the parts in turn."""
        for number, part in enumerate(self.parts):
            first = (number - self._pushed) % len(self.parts)
            share: Batch
            if isinstance(records, pl.DataFrame):
                share = records.gather_every(len(self.parts), first) if first < len(records) else []
            else:
                share = records[first :: len(self.parts)]
            if len(share):
                part.append(bytes(BatchPayload(share).encoded))
        self._pushed += len(records)

    def advance(self, watermark: int) -> None:
        for part in self.parts:
            part.append(watermark)


class Feeds:
    """The feeds of one run by the name of the source, found by a number because sources are pickled."""

    runs: ClassVar[WeakValueDictionary[int, "Feeds"]] = WeakValueDictionary()

    def __init__(self, number: int) -> None:
        self.by_source: dict[str, Feed] = {}
        self.runs[number] = self


class FedSource(Source[Any]):
    """Stands in for a source of the pipeline, with the same options and the same description."""

    exact_batches = True

    def __init__(self, run: int, name: str, original: Source[Any]) -> None:
        self._run = run
        self._name = name
        self._about = original.describe_offsets()
        self.max_shards = original.max_shards
        self.on_error = original.on_error
        self.event_time = original.event_time

    def open(self, shard: int, shards: int) -> Reader:
        return FedReader(Feeds.runs[self._run].by_source[self._name], shard, shards)

    def describe_offsets(self) -> dict[str, Any]:
        return self._about

    def redistribute(self, offsets: Sequence[FeedOffset], shards: int) -> Sequence[FeedOffset]:
        read = [place for offset in offsets for place in offset]
        return [
            tuple((part, count) for part, count in read if part % shards == shard)
            for shard in range(shards)
        ]


class FedReader(Reader):
    """Reads every part whose number modulo the number of shards is its own."""

    def __init__(self, feed: Feed, shard: int, shards: int) -> None:
        self._feed = feed
        self._parts = dict(list(enumerate(feed.parts))[shard::shards])
        self._read = dict.fromkeys(self._parts, 0)

    @property
    def offset(self) -> FeedOffset:
        return tuple(self._read.items())

    def seek(self, offset: FeedOffset) -> None:
        self._read.update(offset)

    def read(self) -> Batch | EndOfStream | None:
        unread = self._unread()
        if unread is not None:
            return self._next(unread)
        return END if self._feed.ended else None

    def _unread(self) -> int | None:
        """The first part with entries that were not read."""
        return next((n for n, part in self._parts.items() if self._read[n] < len(part)), None)

    def _next(self, number: int) -> Batch | None:
        """The next batch of a part, with the watermarks behind it; None for watermarks alone."""
        part, place = self._parts[number], self._read[number]
        first = part[place]
        if isinstance(first, bytes):
            place += 1
        while place < len(part) and isinstance(part[place], int):
            place += 1
        self._read[number] = place
        return BatchPayload(encoded=first).batch if isinstance(first, bytes) else None

    def ready_in_s(self) -> float:
        return math.inf if self._unread() is None and not self._feed.ended else 0.0

    def watermark(self) -> int:
        """The least of its parts, each with the greatest watermark read so far."""
        return min(map(self._reached, self._parts), default=NO_WATERMARK)

    def _reached(self, number: int) -> int:
        read = self._parts[number][: self._read[number]]
        return max((entry for entry in read if isinstance(entry, int)), default=NO_WATERMARK)
