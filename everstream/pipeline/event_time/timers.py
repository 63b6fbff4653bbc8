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
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

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


class Timer(NamedTuple):
    """A timer that fires, as an error report or a dead letter shows it."""

    key: Hashable
    name: str
    at: int


class DueTimes:
    """Items by the time at which they are due, to be taken out in order.

    Times are grouped into spans of about a second. A span is sorted when its turn comes, so adding
    an item and taking one out cost the same however many wait. Of those that are due at the same time, the
    one that was added first comes first.

    >>> due = DueTimes()
    >>> for at in (30, 10, 20): due.add(at, f"at {at}")
    >>> due.next_at, due.take(20, most=10)
    (10, [(10, 'at 10'), (20, 'at 20')])
    """

    SPAN_BITS: Final = 20

    def __init__(self) -> None:
        self._spans: dict[int, tuple[array[int], list[Any]]] = {}
        self._starts: list[int] = []
        """A heap of the spans that are not open yet."""
        self._open = -(2**63)
        self._front: tuple[list[int], list[Any]] = ([], [])
        """The times and items of the open span, in order, up to `_taken` of which is gone."""
        self._taken = 0
        self.added: list[tuple[int, int, Any]] = []
        """A heap of what was added to the open span, or before it: time, a number, and the item."""
        self._order = count()
        self._put_back = 0
        """The least number of what was put back."""

    def add(self, at: int, item: Any) -> None:
        span = at >> self.SPAN_BITS
        if span <= self._open:
            heapq.heappush(self.added, (at, next(self._order), item))
            return
        waiting = self._spans.get(span)
        if waiting is None:
            waiting = self._spans[span] = (array("q"), [])
            heapq.heappush(self._starts, span)
        waiting[0].append(at)
        waiting[1].append(item)

    @property
    def next_at(self) -> int | None:
        """The earliest time of all; None if nothing waits."""
        if not self._ready():
            return None
        times = self._front[0][self._taken : self._taken + 1]
        return min([*times, *(entry[0] for entry in self.added[:1])])

    def take(self, until: int, most: int) -> list[tuple[int, Any]]:
        """The next items that are due at this time, in order, at most so many."""
        return list(zip(*self.take_together(until, most), strict=True))

    def take_together(self, until: int, most: int) -> tuple[list[int], list[Any]]:
        """The same, as their times and the items."""
        times: list[int] = []
        items: list[Any] = []
        while len(times) < most and self._ready():
            if self.added:
                if not self._take_merged(until, most, times, items):
                    break
                continue
            stop = min(len(self._front[0]), self._taken + most - len(times))
            end = bisect_right(self._front[0], until, self._taken, stop)
            if end == self._taken:
                break
            times += self._front[0][self._taken : end]
            items += self._front[1][self._taken : end]
            self._taken = end
        return times, items

    def _take_merged(self, until: int, most: int, times: list[int], items: list[Any]) -> bool:
        """Take from the open span and what was added to it, whichever is earlier; False if none is due."""
        front, added = self._front, self.added
        while added and len(times) < most:
            # A negative number: it was taken before, and put back.
            at, number, item = added[0]
            if self._taken < len(front[0]) and (front[0][self._taken], 0) <= (at, number):
                if front[0][self._taken] > until:
                    return False
                times.append(front[0][self._taken])
                items.append(front[1][self._taken])
                self._taken += 1
            elif at > until:
                return False
            else:
                heapq.heappop(added)
                times.append(at)
                items.append(item)
        return True

    def put_back(self, times: list[int], items: list[Any]) -> None:
        """What was taken last, to be taken again before anything else that is due at the same times."""
        self._put_back -= len(times)
        for number, (at, item) in enumerate(zip(times, items, strict=True), self._put_back):
            heapq.heappush(self.added, (at, number, item))

    def _ready(self) -> bool:
        """Open the next span if the open one is used up. Whether anything waits."""
        if self._taken == len(self._front[0]) and not self.added:
            if not self._starts:
                return False
            self._open = heapq.heappop(self._starts)
            times, items = self._spans.pop(self._open)
            order = np.argsort(np.frombuffer(times, np.int64), kind="stable")
            self._front = (
                np.frombuffer(times, np.int64)[order].tolist(),
                list(map(items.__getitem__, order.tolist())),
            )
            self._taken = 0
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
        self._firing: tuple[list[Any], list[int], Iterator[Any]] | None = None
        """Timers that were taken out together, with their times; one after the other they fire. What the
        iterator has not given yet has not fired."""
        self._fired = 0
        """How many of them had fired when one of them looked at timers."""
        self._interrupts = False
        """Whether a timer that fired has set or cancelled others: from then on each is taken out in its
        turn."""
        self.can_fire = True
        """Whether the operator has an `on_timer`."""
        self.tolerant = False
        """Whether an operator whose `on_timer` raises may continue."""
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
        ctx, due = self._ctx, self._due[time]
        while (taken := due.take_together(until, _AT_ONCE))[0]:
            if self._interrupts:
                self._fire_one_by_one(operator, time, *taken)
            else:
                self._fire_together(operator, time, *taken)
            ctx.event_us = NO_WATERMARK
            yield
        if time == "processing":
            self._wake()

    def _fire_together(
        self, operator: "Operator", time: TimeKind, times: list[int], entries: list[Any]
    ) -> None:
        """Take them all out, and call `on_timer` for each, until one of these calls looks at timers."""
        assert self._store is not None
        ctx, call, over = self._ctx, operator.on_timer, self._over
        # An entry that is there twice was moved: it is due at its last place.
        moved: dict[Any, None] = {}
        values = self._store.take_out(entries)
        if values != times:
            checked = [
                (at, entry)
                for at, entry, value in zip(times, entries, values, strict=True)
                if value == at or self._is_due(entry, at, value, moved)
            ]
            times, entries = [at for at, _ in checked], [entry for _, entry in checked]
        in_event_time = time == "event" and operator.time_of_state is not None
        careful = self.tolerant or in_event_time or over is not None
        rest = iter(entries)
        self._firing = (entries, times, rest)
        mark = ctx.mark()
        for at, (key, _, name) in zip(times, rest):  # noqa: B905 - it may be cut short
            ctx.key = key
            if careful:
                mark = ctx.mark()
                if over is not None:
                    over.add((key, time, name))
                if in_event_time:
                    ctx.event_us = at
            try:
                call(key, name, at, ctx)
            except Exception as error:
                self._fail(operator, Timer(key, name, at), mark, error)
        if self._firing is None:
            left = slice(self._fired, None)
            self._fire_one_by_one(operator, time, times[left], entries[left])
        self._firing = None

    def _fire_one_by_one(
        self, operator: "Operator", time: TimeKind, times: list[int], entries: list[Any]
    ) -> None:
        """Take each out in its turn: one that fires may set and cancel others."""
        assert self._store is not None
        ctx, due, over = self._ctx, self._due[time], self._over
        kept, added = self._store.changing(entries), due.added
        in_event_time = time == "event" and operator.time_of_state is not None
        for number, (at, entry) in enumerate(zip(times, entries, strict=True)):
            if added and added[0][0] < at:  # an earlier one was set meanwhile
                due.put_back(times[number:], entries[number:])
                return
            if kept.get(entry) != at:
                continue
            del kept[entry]
            if over is not None:
                over.add(entry)
            key, _, name = entry
            ctx.key = key
            if in_event_time:
                ctx.event_us = at
            mark = ctx.mark()
            try:
                operator.on_timer(key, name, at, ctx)
            except Exception as error:
                self._fail(operator, Timer(key, name, at), mark, error)

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
            (entries, times, rest), self._firing, self._interrupts = self._firing, None, True
            assert self._store is not None
            self._fired = len(entries) - length_hint(rest)
            for entry, at in islice(zip(entries, times, strict=True), self._fired, None):
                self._store.put(entry, at)
            deque(rest, 0)  # the rest fires one by one
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
