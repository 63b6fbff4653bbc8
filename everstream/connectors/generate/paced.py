"""`Paced`: another source's records under a load, for measurements and demonstrations.

The load sets when a record is due. The start is when the shard first opened the source, and it is
part of the offset. By default, records that could not be given in time are made up for, also after
a failure, as in a live feed: a measured latency then includes the time the pipeline was down.

Time is read from a clock that does not jump, and continues across processes of one machine. Only
on another machine, or after a reboot, are the wall clocks used instead.

When the number of shards changes, the shards together still owe what they owed before. A batch that
was given in part is completed by one shard, which reads it again as the shard that had begun it
did; the source itself resumes after it.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from everstream.connectors.generate.load import Load, load_of
from everstream.connectors.options import at_least_one
from everstream.connectors.wrapping import Wrapping, WrappingReader
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.operators.batching import WRITTEN
from everstream.pipeline.rejects import Rejected
from everstream.pipeline.source import EndOfStream, LoadSeen, Reader, Source
from everstream.pipeline.times import ForwardClock
from everstream.pipeline.types import T
from everstream.state.saved import Saved


@dataclass(frozen=True)
class Begun(Saved, word="paced-begun"):
    """A batch of which a shard had given `skip` records; `count` more remain."""

    shard: int
    shards: int
    inner: Any
    skip: int
    count: int


@dataclass(frozen=True)
class PacedOffset(Saved, word="paced-offset"):
    """`given` records were given since `start_s`: all before `inner`, and `skip` after it."""

    start_s: float
    given: int
    inner: Any
    skip: int
    steady_s: float | None = None
    """The start by the steady clock `clock`, if that has a name."""
    clock: str = ""
    shift: float = 0.0
    """Records of the load that do not count: positive if forfeited, negative if owed."""
    forfeited: float = 0.0
    load: str | None = None
    """The load if it was changed while running, as text for `Load.parse`."""
    version: int = 0
    """The version of the settings that changed the load."""
    held: int | None = None
    """With `skip`: records of the batch that remain, and `after` is where the next one starts."""
    after: Any = None
    begun: tuple[Begun, ...] = ()
    """First of all: batches that an earlier number of shards had begun."""
    ended: bool = False
    """Whether the source has nothing more for this shard: due records are neither given nor owed."""
    forgets: bool = True
    """False if any shard has a batch to complete: when that is done is not known here."""


def redistribute_paced(
    offsets: Sequence[PacedOffset],
    shards: int,
    written: Load,
    redistribute: Callable[[Sequence[Any], int], Sequence[Any]],
) -> list[PacedOffset]:
    before = len(offsets)
    inner = redistribute([_behind(offset) for offset in offsets], shards)
    begun = [
        piece for number, offset in enumerate(offsets) for piece in _begun(offset, number, before)
    ]
    newest = max(offsets, key=lambda offset: (offset.version, -offset.start_s))
    load = _load_of(newest, written)
    living = [offset for offset in offsets if not offset.ended]
    reached_s = max((_reached_s(offset, before, written) for offset in living), default=0.0)
    reached_s = max(reached_s, newest.start_s)
    owed = sum(_owed(offset, before, written, reached_s) for offset in living)
    given, more = divmod(sum(offset.given for offset in offsets), shards)
    counted = (load.items(reached_s - newest.start_s) - owed) / shards
    forfeited = sum(offset.forfeited for offset in offsets) / shards
    return [
        replace(
            newest,
            given=given + (shard < more),
            shift=counted - given - (shard < more),
            forfeited=forfeited,
            inner=inner[shard],
            skip=0,
            held=None,
            after=None,
            begun=tuple(begun[shard::shards]),
            ended=False,
            forgets=not begun,
        )
        for shard in range(shards)
    ]


def _load_of(offset: PacedOffset, written: Load) -> Load:
    return written if offset.load is None else Load.parse(offset.load)


def _reached_s(offset: PacedOffset, shards: int, written: Load) -> float:
    """When the last record given was due, by the wall clock."""
    number = max(0.0, offset.given + offset.shift) * shards
    due_s = _load_of(offset, written).due_s(number)
    return offset.start_s + (due_s if due_s < float("inf") else 0.0)


def _owed(offset: PacedOffset, shards: int, written: Load, at_s: float) -> float:
    items = _load_of(offset, written).items(max(0.0, at_s - offset.start_s))
    return items / shards - offset.shift - offset.given


def _behind(offset: PacedOffset) -> Any:
    if not offset.skip:
        return offset.inner
    if offset.held is None:
        raise UserError(
            "the checkpoint was written by a version of Everstream that could not change the "
            "number of shards of a paced source. Resume with the number it had until a checkpoint "
            "is complete, then change it."
        )
    return offset.after


def _begun(offset: PacedOffset, shard: int, shards: int) -> list[Begun]:
    if not offset.skip:
        return list(offset.begun)
    return [*offset.begun, Begun(shard, shards, offset.inner, offset.skip, offset.held or 0)]


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def clock_name() -> str:
    """The name of the steady clock: the same in all processes since the machine booted."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


class Timing:
    """A start, and the time that has passed since then.

    The steady clock measures it, also in another process if the clock's name is the same.
    Otherwise the wall clock does, but never less than was known to have passed.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """`clock`: the only clock to use, which may be set; the engine's clocks are ignored."""
        self._fixed = clock is not None
        self._wall_s: Callable[[], float] = time.time
        self._steady_s: Callable[[], float] = time.monotonic
        if clock is not None:
            self._wall_s = self._steady_s = ForwardClock(clock)
        self.name = "" if self._fixed else clock_name()
        self._start_s = 0.0
        self.start()

    def use(self, wall_s: Callable[[], float], steady_s: Callable[[], float]) -> bool:
        """Use these clocks instead; returns whether they are used."""
        if not self._fixed:
            self._wall_s, self._steady_s = wall_s, steady_s
        return not self._fixed

    @property
    def steady_start_s(self) -> float | None:
        """The start by the steady clock, if other processes know that clock, too."""
        return self._start_s if self.name else None

    def start(self) -> float:
        """Start now; returns the start by the wall clock."""
        self._start_s = self._steady_s()
        return self._wall_s()

    def resume(
        self, start_s: float, steady_start_s: float | None, name: str, passed_s: float
    ) -> float:
        """Resume from an earlier start; returns the start by the present wall clock."""
        if steady_start_s is not None and name and name == self.name:
            self._start_s = steady_start_s
            return start_s
        wall_s = self._wall_s()
        if wall_s < start_s + passed_s:
            start_s = wall_s - passed_s
        self._start_s = self._steady_s() - (wall_s - start_s)
        return start_s

    def passed_s(self) -> float:
        return max(0.0, self._steady_s() - self._start_s)


FRAME_EVERY_S = 0.0005
"""At high rates records are given together at this interval, not one by one."""
SHORTEST_WAIT_S = 1e-6
LONGEST_WAIT_S = 1.0
"""How long to wait before asking again a load that gives nothing for long."""
ROUNDING_RECORDS = 1e-6
LATE_S = 0.05
"""Without catching up: a record this late counts as held up."""
ALMOST_NOW_S = 0.05
"""For records due within this time, the rate counts as constant since then."""


class Paced(Wrapping[T]):
    """Gives the records of `source` at `rate` records per second over all shards together.

    `rate` is a number, an `es.Load`, or what one is made of: "wave,10s,100,1000", or a function
    of the seconds since the start. Never gives more than is due, in frames of at most `batch`
    records.

    With `catch_up` (the default) each record has its due time, and late records are given as soon
    as possible: waiting counts as latency. Without it, as in SPBench, a record that was held up
    delays all later ones. The source then offers less load than the pattern defines, and no latency
    shows it; `es.Monitor` and `result.forfeited` do.

    With `due="due_us"` each record has the time it was due in a column of that name, in
    microseconds since 1970: measure latency from it to include waiting.

    >>> slow = es.Paced(es.Range(3), rate=1000)
    >>> es.Pipeline("paced").source(slow).collect().run().collected()
    [0, 1, 2]
    """

    def __init__(
        self,
        source: Source[T],
        rate: float | Load | str | Callable[[float], float],
        *,
        clock: Callable[[], float] | None = None,
        batch: int = 65_536,
        due: str | None = None,
        catch_up: bool = True,
    ) -> None:
        at_least_one(batch=batch)
        super().__init__(source)
        self._load = load_of(rate)
        self._clock = clock
        self._batch = batch
        self._due_column = due
        self._catch_up = catch_up

    @classmethod
    def around(cls, source: Source[T], load: Load, catch_up: bool) -> "Paced[T]":
        """This source under this load; if it is already paced, its other options stay."""
        if not isinstance(source, Paced):
            return Paced(source, load, catch_up=catch_up)
        changed = copy(source)
        changed._load, changed._catch_up = load, catch_up
        return changed

    def tunable(self) -> dict[str, str]:
        return {**self._source.tunable(), "pattern": self._load.text or repr(self._load)}

    def column_names(self) -> list[str] | None:
        names = super().column_names()
        if names is None or self._due_column is None or self._due_column in names:
            return names
        return [*names, self._due_column]

    def column_types(self) -> Mapping[str, Any] | None:
        return None if self._due_column is not None else super().column_types()

    def open(self, shard: int, shards: int) -> Reader:
        inner = self._source.open(shard, shards)
        return _PacedReader(self, inner, _Share(self._load, shards))

    def unread(self, offsets: Sequence[PacedOffset], point: Any) -> str | None:
        if any(offset.skip or offset.begun for offset in offsets):
            return "records of a batch that was given in part"
        return self._source.unread([offset.inner for offset in offsets], point)

    def overlooked(self, offsets: Sequence[PacedOffset], point: Any) -> str | None:
        return self._source.overlooked([offset.inner for offset in offsets], point)

    def redistribute(self, offsets: Sequence[PacedOffset], shards: int) -> Sequence[PacedOffset]:
        return redistribute_paced(offsets, shards, self._load, self._source.redistribute)


@dataclass(frozen=True)
class _Share:
    """One shard's part of a load."""

    load: Load
    shards: int

    def rate(self, at_s: float) -> float:
        return self.load.rate(at_s) / self.shards

    def items(self, at_s: float) -> float:
        return self.load.items(at_s) / self.shards

    def due_s(self, number: float, until_s: float) -> float:
        return self.load.due_s(number * self.shards, until_s)

    def all_due_s(self, numbers: Any) -> Any:
        return self.load.due_s(np.maximum(numbers * self.shards, 0.0))


class _Held:
    """What remains of a batch. To take some of it does not copy the rest."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._start = 0

    def __len__(self) -> int:
        return len(self._batch) - self._start

    def take(self, count: int) -> Batch:
        taken = self._batch[self._start : self._start + count]
        self._start += len(taken)
        if not len(self):
            self._batch, self._start = [], 0
        return taken


class _PacedReader(WrappingReader):
    def __init__(self, paced: Paced[Any], inner: Reader, share: _Share) -> None:
        super().__init__(inner)
        self._written = self._share = share
        self._timing = Timing(paced._clock)
        self._batch = paced._batch
        self._due_column = paced._due_column
        self._catch_up = paced._catch_up
        self._open_as = paced._source.open
        """Opens a reader of the source for another of its shards."""
        self._earlier: Reader | None = None
        """Reads a batch that an earlier shard had begun."""
        self._clocks: tuple[Callable[[], float], Callable[[], float]] | None = None
        self._after: Any = None
        self._offset = PacedOffset(0.0, 0, inner.offset, 0)
        self._begin()
        self._held = _Held([])
        self._to_skip = 0
        self._next_frame_s = float("-inf")
        self._born_s = 0.0
        self._is_new = True
        """No record was requested yet, in this process or an earlier one."""
        self._inner_is_idle = False
        self._catching_up = False
        """It ends for this run, but not for good."""
        self._held_rejected: list[Rejected] = []
        self._rejected: list[Rejected] = []

    def _begin(self) -> None:
        start_s = self._timing.start()
        self._offset = replace(
            self._offset,
            start_s=start_s,
            steady_s=self._timing.steady_start_s,
            clock=self._timing.name,
            given=0,
        )

    @property
    def offset(self) -> PacedOffset:
        return self._offset

    def keep_time(self, wall_s: Callable[[], float], steady_s: Callable[[], float]) -> None:
        super().keep_time(wall_s, steady_s)
        self._clocks = (wall_s, steady_s)
        if self._timing.use(wall_s, steady_s):
            self._begin()

    def stop_at(self, point: Any) -> None:
        super().stop_at(point)
        self._catching_up = True

    def inner_offset(self, offset: PacedOffset) -> Any:
        return offset.inner

    @property
    def holds(self) -> bool:
        return len(self._held) > 0 or self._earlier is not None

    def forget(self, offset: PacedOffset) -> None:
        if offset.forgets:
            super().forget(offset)

    def close(self) -> None:
        self._close_earlier()
        super().close()

    def _close_earlier(self) -> None:
        if self._earlier is not None:
            self._earlier.close()
            self._earlier = None

    def seek(self, offset: PacedOffset) -> None:
        self._close_earlier()
        super().seek(offset)
        tuned = offset.load
        self._share = self._written if tuned is None else self._shared(Load.parse(tuned))
        # The given records had been due.
        passed_s = self._share.due_s(max(0.0, offset.given + offset.shift), math.inf)
        start_s = self._timing.resume(offset.start_s, offset.steady_s, offset.clock, passed_s)
        self._offset = replace(
            offset, start_s=start_s, steady_s=self._timing.steady_start_s, clock=self._timing.name
        )
        self._held = _Held([])
        self._held_rejected, self._rejected = [], []
        self._to_skip = offset.skip
        self._is_new = False
        self._next_frame_s = float("-inf")

    def _shared(self, load: Load) -> _Share:
        return replace(self._written, load=load)

    def read(self) -> Batch | EndOfStream | None:
        at_s = self._timing.passed_s()
        self._inner_is_idle = False
        while not len(self._held):
            if self._offset.begun:
                if not self._read_earlier(self._offset.begun[0]):
                    return None
                continue
            more = self._inner.read()
            self._held_rejected += self._inner.take_rejected()
            if more is None or isinstance(more, EndOfStream):
                if self._held_rejected and not self._to_skip:
                    self._inner_was_given(self._offset.given)
                self._inner_is_idle = more is None
                if not self._inner_is_idle and not self._offset.ended and not self._catching_up:
                    self._offset = replace(self._offset, ended=True)
                return more
            self._after = self._inner.offset
            self._held = _Held(more[self._to_skip :])
            self._to_skip = max(self._to_skip - len(more), 0)
            if not self._to_skip and not len(self._held):
                # The frame was given completely: it counts as read.
                self._inner_was_given(self._offset.given)
        if not self._catch_up:
            if self._is_new:  # time until everything was ready does not count as waiting
                self._begin()
                at_s = 0.0
            self._forfeit(at_s)
        self._is_new = False
        count = min(int(self._owed(at_s) + ROUNDING_RECORDS), self._batch)
        if count < 1 or (count < self._batch and at_s < self._next_frame_s):
            return None
        return self._give(count, at_s)

    def _read_earlier(self, begun: Begun) -> bool:
        """Continue a batch that an earlier shard had begun; returns whether anything came."""
        if self._earlier is None:
            self._earlier = self._open_as(begun.shard, begun.shards)
            if self._clocks is not None:
                self._earlier.keep_time(*self._clocks)
            self._earlier.seek(begun.inner)
            self._to_skip = begun.skip
        more = self._earlier.read()
        self._held_rejected += self._earlier.take_rejected()
        if isinstance(more, EndOfStream):
            raise ConnectorError(
                f"the source does not replay what it gave before: {begun.count} records of a "
                "batch are missing. Restore the data it reads, or start over with --fresh, which "
                "deletes the output."
            )
        self._inner_is_idle = more is None
        if more is not None:
            self._held = _Held(more[self._to_skip :][: begun.count])
            self._to_skip = max(self._to_skip - len(more), 0)
        return more is not None

    def ready_in_s(self) -> float:
        if self._inner_is_idle:
            return (self._earlier or self._inner).ready_in_s()
        at_s = self._timing.passed_s()
        next_frame_s = self._next_frame_s
        if next_frame_s > at_s and self._owed(next_frame_s) >= 1:
            return max(next_frame_s - at_s, SHORTEST_WAIT_S)
        number = self._offset.given + 1 + self._offset.shift
        due_s = self._share.due_s(number, at_s + LONGEST_WAIT_S)
        wait_s = max(due_s, next_frame_s) - at_s
        return min(max(wait_s, SHORTEST_WAIT_S), LONGEST_WAIT_S)

    def drained(self) -> bool:
        return self._owed(self._timing.passed_s()) < 1

    def tune(self, settings: Mapping[str, str], version: int) -> None:
        self._inner.tune(settings, version)
        text = settings.get("pattern")
        if text is None or version <= self._offset.version:
            return
        if text == WRITTEN:
            text = None
        if text != self._offset.load:
            owed = self._owed(self._timing.passed_s())
            self._share = self._written if text is None else self._shared(Load.parse(text))
            self._begin()
            # What was owed before, and the fraction of the next record, are due at once.
            self._offset = replace(self._offset, shift=-owed, load=text)
            self._next_frame_s = float("-inf")
        self._offset = replace(self._offset, version=version)

    def born_s(self) -> float:
        return self._born_s

    def load(self) -> LoadSeen:
        at_s = self._timing.passed_s()
        return LoadSeen(self._share.rate(at_s), max(0.0, self._owed(at_s)), self._offset.forfeited)

    def take_rejected(self) -> list[Rejected]:
        """Only together with the frame they were found with: until then it would be read again."""
        rejected, self._rejected = self._rejected, []
        return rejected

    def _inner_was_given(self, given: int) -> None:
        """Called when everything read from the source has been given."""
        self._offset = replace(
            self._offset, given=given, inner=self._inner.offset, skip=0, held=None, after=None
        )
        self._give_rejected()

    def _earlier_was_given(self, given: int, count: int) -> None:
        """Called when `given` records of a batch that an earlier shard had begun have been given."""
        first, *others = self._offset.begun
        first = replace(first, skip=first.skip + count, count=first.count - count)
        begun = (first, *others) if first.count else tuple(others)
        self._offset = replace(self._offset, given=given, begun=begun)
        if not first.count:
            self._give_rejected()
            self._close_earlier()
            self._to_skip = 0

    def _give_rejected(self) -> None:
        self._rejected += self._held_rejected
        self._held_rejected = []

    def _owed(self, at_s: float) -> float:
        """How many records are due and not yet given, including a fraction of the next."""
        return self._share.items(at_s) - self._offset.shift - self._offset.given

    def _forfeit(self, at_s: float) -> None:
        """If the next record was held up, forfeit all except it and those due recently."""
        owed, overdue = self._owed(at_s), self._owed(max(0.0, at_s - LATE_S))
        if overdue < 1:
            return
        lost = owed - max(1.0, owed - overdue)
        self._offset = replace(
            self._offset, shift=self._offset.shift + lost, forfeited=self._offset.forfeited + lost
        )

    def _give(self, count: int, at_s: float) -> Batch:
        frame = self._held.take(count)
        self._born_s = self._due_on_average_s(len(frame), at_s) if self._catch_up else 0.0
        if self._due_column is not None:
            frame = self._with_due(frame, self._due_column)
        given = self._offset.given + len(frame)
        if self._offset.begun:
            self._earlier_was_given(given, len(frame))
        elif len(self._held):
            skip, held = self._offset.skip + len(frame), len(self._held)
            self._offset = replace(
                self._offset, given=given, skip=skip, held=held, after=self._after
            )
        else:
            self._inner_was_given(given)
        # Not from now: then one late record would make all later ones late.
        self._next_frame_s = at_s - at_s % FRAME_EVERY_S + FRAME_EVERY_S
        return frame

    def _due_on_average_s(self, count: int, at_s: float) -> float:
        """When the middle one of the next records was due, by the wall clock."""
        number = self._offset.given + self._offset.shift + (count + 1) / 2
        rate, late = self._share.rate(at_s), self._share.items(at_s) - number
        if late <= rate * ALMOST_NOW_S and rate > 0:
            due_s = at_s - late / rate
        else:
            due_s = self._share.due_s(max(number, 0.0), at_s)
        return self._offset.start_s + min(due_s, at_s)

    def _with_due(self, frame: Batch, name: str) -> Batch:
        numbers = np.arange(1, len(frame) + 1) + (self._offset.given + self._offset.shift)
        due_us = (self._offset.start_s + self._share.all_due_s(numbers)) * 1e6
        column = pl.Series(name, due_us.astype(np.int64))
        rows = columns_of(frame, "Paced(due=...)")
        # Equivalent, but `with_columns` takes longer than everything else for a small frame.
        return rows.with_columns(column) if name in rows.columns else rows.hstack([column])
