"""The progress of a paced source: in its load, in its source, and in the batch it was giving.

When the number of shards changes, the shards together still owe what they owed before. A batch that
was given in part is completed by one shard, which reads it again as the shard that had begun it
did; the source itself resumes after it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from everstream.connectors.generate.load import Load
from everstream.errors import UserError
from everstream.pipeline.times import ForwardClock
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
    """Offsets for this many shards; `redistribute` is the source's own."""
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
    """Where the source resumes after a batch that was begun."""
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
        """Seconds since the start."""
        return max(0.0, self._steady_s() - self._start_s)
