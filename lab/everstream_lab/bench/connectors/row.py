"""A row of `everstream bench connectors`: one connector, and the same work done by hand.

A row for a source says which source it is and how a bare client reads the same; one for a sink,
which sink and how a bare client writes the same as durably: synced and shown once a second, as
checkpoints do. Input is made before any clock runs, and is the same for both sides.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from everstream.connectors.generate.sources import FromFunction
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Sink, SinkShard, Writer
from everstream.pipeline.source import Source
from everstream.pipeline.stream import Pipeline

EVERY_S = 1.0
"""How often ours checkpoints, and how often the bare client makes durable what it wrote."""


@dataclass(frozen=True)
class Place:
    """Where a row keeps its input, and where the servers are that it needs."""

    folder: Path
    servers: Mapping[str, str] = field(default_factory=dict)
    """Kind of server, as in `Row.server` -> its address."""


class Row(ABC):
    """One line of the table; made anew for each measurement of it."""

    name: ClassVar[str]
    """As `--only` says it: "csv-source"."""
    kind: ClassVar[Literal["source", "sink"]]
    bare_client: ClassVar[str]
    """What the other side is, in a few words."""
    records: ClassVar[int]
    """How many make a run of about two seconds."""
    server: ClassVar[str | None] = None
    """The kind of server it needs: "postgres"."""

    slots: ClassVar[int] = 1
    """How many processes of ours work at it."""
    goal_per_s: ClassVar[float | None] = None
    """Our rate to reach, where the ratio to the bare client is not what counts."""

    def __init__(self, records: int, place: Place) -> None:
        self.total = records
        self.place = place

    @property
    def address(self) -> str:
        """Where the server is."""
        return self.place.servers[self.server or ""]

    def make(self) -> None:
        """Make what is needed before any clock runs."""

    @abstractmethod
    def pipeline(self, folder: Path) -> Pipeline:
        """A pipeline, of one shard unless it has `slots`, that moves `total` records; the folder is new and empty."""

    @abstractmethod
    def bare(self, folder: Path) -> int:
        """The same by hand; how many records were moved."""

    def arrived(self, folder: Path) -> int | None:
        """How many records have arrived; None if unknown."""
        return None


class SourceRow(Row):
    """A source into a sink that only takes what comes."""

    kind = "source"

    @abstractmethod
    def source(self) -> Source[Any]:
        """Ours, over the input that was made."""

    @abstractmethod
    def read(self) -> Iterator[Batch]:
        """The same records by hand, in batches of any size and of the same type as ours."""

    def pipeline(self, folder: Path) -> Pipeline:
        pipeline = Pipeline(f"bench-{self.name}")
        pipeline.source(self.source(), name="read").sink(Untouched(), name="take")
        return pipeline

    def bare(self, folder: Path) -> int:
        return sum(map(len, self.read()))


class SinkRow(Row):
    """A source that gives the same batch over and over, into a sink."""

    kind = "sink"

    @abstractmethod
    def batch(self) -> Batch:
        """The batch that is written over and over."""

    @abstractmethod
    def sink(self, folder: Path) -> Sink:
        """Ours, over a new and empty folder."""

    @abstractmethod
    def write(self, folder: Path, batches: Iterator[Batch]) -> None:
        """The same by hand; `per_checkpoint` says when to make durable what was written."""

    @abstractmethod
    def arrived(self, folder: Path) -> int:
        """How many records are there to be seen."""

    def pipeline(self, folder: Path) -> Pipeline:
        batch = self.batch()
        again = FromFunction[Any](Again(batch), self.total, batch=len(batch))
        pipeline = Pipeline(f"bench-{self.name}")
        pipeline.source(again, name="again").sink(self.sink(folder), name="write")
        return pipeline

    def bare(self, folder: Path) -> int:
        batch = self.batch()
        again, size = Again(batch), len(batch)
        starts = range(0, self.total, size)
        self.write(folder, (again(k, min(k + size, self.total)) for k in starts))
        return self.total


@dataclass(frozen=True)
class Again:
    """Gives the same records whichever are asked for."""

    batch: Batch

    def __call__(self, start: int, stop: int) -> Batch:
        count = stop - start
        return self.batch if count == len(self.batch) else self.batch[:count]


class Untouched(Sink):
    """Takes what comes and does nothing with it; the engine counts."""

    def open(self, shard: SinkShard) -> Writer:
        return _UntouchedWriter()


class _UntouchedWriter(Writer):
    def write(self, batch: Batch) -> None:
        pass


def per_checkpoint(batches: Iterable[Batch]) -> Iterator[Iterator[Batch]]:
    """The batches in groups, each of as many as come within the interval of checkpoints."""
    left = iter(batches)
    for first in left:
        yield _until(first, left, time.monotonic() + EVERY_S)


def _until(first: Batch, left: Iterator[Batch], until_s: float) -> Iterator[Batch]:
    yield first
    while time.monotonic() < until_s:
        following = next(left, None)
        if following is None:
            return
        yield following
