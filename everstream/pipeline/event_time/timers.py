"""Timers: `ctx.timers` calls `on_timer` for a key at a time, exactly once, whatever fails.

A timer is an entry of the operator's state: (key, time, name) -> when it is due, in microseconds. So it is
saved with every checkpoint, follows its key to another shard, and can be kept on disk. `DueTimes` orders
the entries in memory. It is built from them after a restore, and never saved. An entry is the truth: a
timer that was cancelled or set again leaves its old place in the order behind, which is skipped.

Timers of event time fire when the watermark reaches them, in the order of their times, before the watermark
is passed on. Timers of processing time fire when the clock of the worker reaches them. When all input has
ended, event time is over: what is pending in event time fires, once per key and name, and what
is pending in processing time is dropped.
"""

import heapq
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from everstream.errors import UserError
from everstream.pipeline.rejects import Rejected, describe
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK, microseconds
from everstream.state.backends.protocol import StateBackend

if TYPE_CHECKING:
    from everstream.pipeline.operator import Context, Operator

TimeKind: TypeAlias = Literal["event", "processing"]
TIMERS_STATE: Final = "ctx.timers"
"""The name of the state; with a dot, so that no declared `Keyed` can have it."""
_KINDS: Final[tuple[TimeKind, ...]] = ("event", "processing")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AT_ONCE: Final = 8_192
"""Timers that fire before their output is passed on."""


DueEntry: TypeAlias = tuple[int, int, Any]
"""When it is due, a number that orders those due at the same time, and the item."""


class Timer(NamedTuple):
    """A timer that fires, as an error report or a dead letter shows it."""

    key: Hashable
    name: str
    at: int


class DueTimes:
    """Items by the time at which they are due, to be taken out in order.

    Times are grouped into spans of about a second. A span is sorted when its turn comes, so adding
    an item and taking one out cost the same however many wait.

    >>> due = DueTimes()
    >>> for at in (30, 10, 20): due.add(at, f"at {at}")
    >>> due.next_at, due.take(20, most=10)
    (10, [(10, 'at 10'), (20, 'at 20')])
    """

    SPAN_BITS: Final = 20

    def __init__(self) -> None:
        self._order = count()
        self._spans: dict[int, list[DueEntry]] = {}
        self._starts: list[int] = []
        """A heap of the spans that are not open yet."""
        self._open = -(2**63)
        self._front: list[DueEntry] = []
        """The open span, sorted, up to `_taken` of which is gone."""
        self._taken = 0
        self.added: list[DueEntry] = []
        """A heap of what was added to the open span, or before it."""

    def add(self, at: int, item: Any) -> None:
        entry, span = (at, next(self._order), item), at >> self.SPAN_BITS
        if span <= self._open:
            heapq.heappush(self.added, entry)
        elif span in self._spans:
            self._spans[span].append(entry)
        else:
            self._spans[span] = [entry]
            heapq.heappush(self._starts, span)

    @property
    def next_at(self) -> int | None:
        """The earliest time of all; None if nothing waits."""
        if not self._ready():
            return None
        fronts = [self._front[self._taken]] if self._taken < len(self._front) else []
        return min([*fronts, *self.added[:1]])[0]

    def take(self, until: int, most: int) -> list[tuple[int, Any]]:
        """The next items that are due at this time, in order, at most so many."""
        return [(at, item) for at, _, item in self.take_entries(until, most)]

    def take_entries(self, until: int, most: int) -> list[DueEntry]:
        """The same, as they can be put back."""
        taken: list[DueEntry] = []
        while len(taken) < most and self._ready():
            if self.added:
                if not self._take_merged(until, most, taken):
                    break
                continue
            stop = min(len(self._front), self._taken + most - len(taken))
            end = bisect_right(self._front, until, self._taken, stop, key=lambda entry: entry[0])
            if end == self._taken:
                break
            taken += self._front[self._taken : end]
            self._taken = end
        return taken

    def _take_merged(self, until: int, most: int, taken: list[DueEntry]) -> bool:
        """Take from the open span and what was added to it, whichever is earlier; False if none is due."""
        front, added = self._front, self.added
        while added and len(taken) < most:
            if self._taken < len(front) and front[self._taken] < added[0]:
                if front[self._taken][0] > until:
                    return False
                taken.append(front[self._taken])
                self._taken += 1
            elif added[0][0] > until:
                return False
            else:
                taken.append(heapq.heappop(added))
        return True

    def put_back(self, taken: Iterable[DueEntry]) -> None:
        """Entries of the open span."""
        for entry in taken:
            heapq.heappush(self.added, entry)

    def _ready(self) -> bool:
        """Open the next span if the open one is used up. Whether anything waits."""
        if self._taken == len(self._front) and not self.added:
            if not self._starts:
                return False
            self._open = heapq.heappop(self._starts)
            self._front, self._taken = sorted(self._spans.pop(self._open)), 0
        return True


class Timers:
    """The timers of an operator, each for a key: `ctx.timers`.

    A key can have many, each with its name. Setting one again moves it. Times are microseconds since
    1970, as `ctx.watermark` is, or datetimes; a datetime without a time zone is in UTC.

    >>> class Unpaid(es.Operator):
    ...     def process(self, order, ctx):
    ...         if order["kind"] == "payment":
    ...             ctx.timers.cancel("unpaid")
    ...         else:
    ...             ctx.timers.set(order["at"] + 600_000_000, name="unpaid")
    ...     def on_timer(self, key, name, at, ctx):
    ...         ctx.emit((key, name))
    >>> orders = [{"id": 1, "kind": "order", "at": 0}, {"id": 2, "kind": "order", "at": 5},
    ...           {"id": 1, "kind": "payment", "at": 9}]
    >>> stream = es.Pipeline("unpaid").source(es.FromList(orders)).event_time("at", unit="us")
    >>> stream.key_by("id").process(Unpaid()).collect().run().collected()
    [(2, 'unpaid')]
    """

    def __init__(
        self, ctx: "Context", store: Callable[[], StateBackend[Any, int]], *, saved: bool = False
    ) -> None:
        """store: makes or finds the state of the timers. saved: whether a checkpoint had any."""
        self._ctx = ctx
        self._make_store = store
        self._store: StateBackend[Any, int] | None = None
        self._due: dict[str, DueTimes] = {kind: DueTimes() for kind in _KINDS}
        self._over: set[tuple[Hashable, str, str]] | None = None
        """Those that have fired since all input has ended."""
        self._firing: tuple[list[DueEntry], list[int | None]] | None = None
        """Timers that were taken out together, with their times; one after the other they fire."""
        self._position = 0
        """Which of them fires."""
        self._interrupts = False
        """Whether a timer that fired has set or cancelled others: from then on each is taken out in its
        turn."""
        self.can_fire = True
        """Whether the operator has an `on_timer`."""
        if saved:
            self._restore()

    def set(
        self,
        at: int | datetime | None = None,
        name: str = "",
        *,
        after: str | float | timedelta | None = None,
        time: TimeKind = "event",
        key: Hashable = None,
    ) -> None:
        """Call `on_timer` at this time, once; a timer of this key with this name is moved.

        after: instead of `at`, a duration from now, in processing time. time: "event" follows the
        watermark, "processing" the clock. key: default: the key of the record in `process`.
        A time that has passed already is due at the next watermark, or at once.
        """
        due_us = self._time(at, after, time)
        entry = (self._key(key), time, name)
        if self._over is not None and (time == "processing" or entry in self._over):
            return
        if not self.can_fire:
            raise UserError(
                f"operator '{self._ctx.operator}' sets a timer but has no on_timer: define "
                "on_timer(self, key, name, at, ctx)."
            )
        self._entries.put(entry, due_us)
        self._due[time].add(due_us, entry)
        if time == "processing":
            self._wake()

    def cancel(self, name: str = "", *, time: TimeKind = "event", key: Hashable = None) -> bool:
        """Cancel a timer. Returns whether it was set."""
        entry = (self._key(key), _checked(time), name)
        if entry not in self._entries:
            return False
        self._entries.delete(entry)
        return True

    def get(self, name: str = "", *, time: TimeKind = "event", key: Hashable = None) -> int | None:
        """When a timer is due, in microseconds since 1970; None if it is not set."""
        return self._entries.get((self._key(key), _checked(time), name))

    def fire(self, operator: "Operator", time: TimeKind, until: int) -> Iterator[None]:
        """Call `on_timer` for all that are due, in order; yields when there is output. For engines."""
        if self._store is None:
            return
        if until == END_OF_TIME and self._over is None:
            self._over = set()
        ctx, due, call, over = self._ctx, self._due[time], operator.on_timer, self._over
        added, in_event_time = due.added, time == "event" and operator.time_of_state is not None
        while taken := due.take_entries(until, _AT_ONCE):
            values = entries = None
            moved: dict[Any, None] = {}
            if self._interrupts:
                entries = self._store.changing([one[2] for one in taken])
            else:
                values = self._store.take_out([one[2] for one in taken])
                self._firing = (taken, values)
            for number, (at, _, entry) in enumerate(taken):
                if values is not None:
                    if values[number] != at and not self._is_due(entry, at, values[number], moved):
                        continue
                    self._position = number
                elif added and added[0][0] < at:  # an earlier one was set meanwhile
                    due.put_back(taken[number:])
                    break
                else:
                    assert entries is not None
                    if entries.get(entry) != at:
                        continue
                    del entries[entry]
                if over is not None:
                    over.add(entry)
                key, _, name = entry
                ctx.key = key
                if in_event_time:
                    ctx.event_us = at
                mark = ctx.mark()
                try:
                    call(key, name, at, ctx)
                except Exception as error:
                    self._fail(operator, Timer(key, name, at), mark, error)
                if values is not None and self._firing is None:
                    values, entries = None, self._store.changing([one[2] for one in taken[number:]])
            self._firing = None
            ctx.event_us = NO_WATERMARK
            yield
        if time == "processing":
            self._wake()

    def _is_due(self, entry: Any, at: int, set_to: int | None, moved: dict[Any, None]) -> bool:
        """Whether a timer that was moved, and taken out at an earlier place in the order, is due here."""
        assert self._store is not None
        if set_to is not None:
            self._store.put(entry, set_to)
            moved[entry] = None
            return False
        if entry not in moved or self._store.get(entry) != at:
            return False
        self._store.delete(entry)
        return True

    def _fail(self, operator: "Operator", timer: Timer, mark: Any, error: Exception) -> None:
        """`on_timer` raised: its output is discarded, and the operator decides."""
        self._ctx.forget_since(mark)
        self._ctx.show(timer)
        operator.on_error(error, timer, self._ctx)
        self._ctx.leave_out(Rejected(timer, describe(error)))

    def drop_pending(self) -> None:
        """All input has ended: nothing more is due in processing time. For engines."""
        for entry in self._entries.keys() if self._store is not None else ():
            if entry[1] == "processing":
                self._entries.delete(entry)
        self._due["processing"] = DueTimes()

    def pending(self) -> list[Timer]:
        """All that are set, in the order in which they are due. For tests and inspection."""
        entries = self._store.items() if self._store is not None else []
        return sorted((Timer(key, name, at) for (key, _, name), at in entries), key=lambda t: t.at)

    @property
    def _entries(self) -> StateBackend[Any, int]:
        if self._firing is not None:  # a timer that fires looks at others, or changes them
            (taken, values), self._firing, self._interrupts = self._firing, None, True
            assert self._store is not None
            for (_, _, entry), at in islice(
                zip(taken, values, strict=True), self._position + 1, None
            ):
                if at is not None:
                    self._store.put(entry, at)
        if self._store is None:
            self._store = self._make_store()
        return self._store

    def _restore(self) -> None:
        for entry, at in self._entries.pairs():
            self._due[entry[1]].add(at, entry)
        self._wake()

    def _wake(self) -> None:
        next_at = self._due["processing"].next_at
        if next_at is not None:
            self._ctx.wake_at(next_at / 1e6)

    def _key(self, key: Hashable) -> Hashable:
        if self._ctx.keying is None:
            raise UserError(
                f"operator '{self._ctx.operator}' uses ctx.timers, but a timer belongs to a key: put "
                ".key_by(...) in front of it."
            )
        return self._ctx.key if key is None else key

    def _time(
        self, at: int | datetime | None, after: str | float | timedelta | None, time: TimeKind
    ) -> int:
        _checked(time)
        if (at is None) == (after is None):
            raise UserError("ctx.timers.set takes either `at` or `after`.")
        if after is not None:
            if time == "event":
                raise UserError(
                    f"ctx.timers.set(after={after!r}) counts from now, which event time does not have: "
                    "add the duration to the time of the record, or use time='processing'."
                )
            return round(self._ctx.now_s * 1e6) + microseconds(after)
        if isinstance(at, datetime):
            utc = at.replace(tzinfo=UTC) if at.tzinfo is None else at
            return (utc - _EPOCH) // timedelta(microseconds=1)
        if isinstance(at, bool) or not hasattr(at, "__index__"):
            raise UserError(
                f"ctx.timers.set({at!r}): give a datetime, or whole microseconds since 1970 as "
                "ctx.watermark has them."
            )
        return at.__index__()  # type: ignore[union-attr]


def _checked(time: TimeKind) -> TimeKind:
    if time not in _KINDS:
        raise UserError(f"time={time!r}: use 'event' or 'processing'.")
    return time
