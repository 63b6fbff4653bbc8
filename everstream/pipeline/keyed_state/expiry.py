"""State with a time to live: `es.Keyed(init, ttl="1h")`.

The values are in their store as without a time to live. A second store has the time of the last use of
each key, in microseconds: the last write, or with refresh="read" also the last read. An entry has
expired when that time and the time to live have passed. It can no longer be seen from then on, and it is
removed when it is touched, or by a sweep that removes what is due in bounded steps.

Uses are recorded, not deadlines, so a program with another `ttl` applies it to what is there. In event
time, "now" is the time of the record that is being processed: what it finds does not depend on
where batches begin, or on how far the watermark has come.
"""

from collections.abc import Hashable, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar

from everstream.errors import UserError
from everstream.pipeline.event_time.timers import DueTimes
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK, microseconds
from everstream.state.backends.protocol import StateBackend
from everstream.state.freezing import is_steady

if TYPE_CHECKING:
    from everstream.pipeline.operator import Context

V = TypeVar("V")
Refresh: TypeAlias = Literal["write", "read"]
TtlTime: TypeAlias = Literal["event", "processing"]
USES: Final = ".uses"
"""After the name of a state: that of the store of its times."""
SWEPT_AT_ONCE: Final = 1_000
SWEEP_EVERY_S: Final = 0.01
"""While more is due: other work gets its turn in between."""


class TimeToLive:
    """How long entries live, as the user declared it."""

    def __init__(self, ttl: str | float | timedelta, time: TtlTime, refresh: Refresh) -> None:
        self.ttl_us = microseconds(ttl)
        if self.ttl_us <= 0:
            raise UserError(f"es.Keyed(ttl={ttl!r}): give a duration above 0.")
        if time not in ("event", "processing"):
            raise UserError(f"es.Keyed(ttl_time={time!r}): use 'event' or 'processing'.")
        if refresh not in ("write", "read"):
            raise UserError(f"es.Keyed(refresh={refresh!r}): use 'write' or 'read'.")
        self.time: TtlTime = time
        self.refresh: Refresh = refresh


class ExpiringState(Generic[V]):
    """Looks like the store of the values; what has expired is not in it."""

    def __init__(
        self,
        name: str,
        values: StateBackend[Any, V],
        uses: StateBackend[Any, int],
        life: TimeToLive,
        ctx: "Context",
        *,
        adopts: bool,
    ) -> None:
        """adopts: the values come from a program without a time to live; it begins now."""
        self._name = name
        self._values = values
        self._uses = uses
        self._life = life
        self._ctx = ctx
        self._due = DueTimes()
        self._known: set[Hashable] = set()
        """Keys that are in `_due`, once each, perhaps too early."""
        self._swept_us = NO_WATERMARK
        if adopts:
            now_us = self._now_us()
            for key, _ in values.pairs():
                uses.put(key, now_us)
        for key, used_us in uses.pairs():
            self._await(key, used_us)
        self._wake()

    # For operators.

    def put(self, key: Hashable, value: V) -> None:
        self._values.put(key, value)
        self._use(key)

    def get(self, key: Hashable, default: Any = None) -> Any:
        if not self._lives(key):
            return default
        value = self._values.get(key, default)
        self._was_read(key, value)
        return value

    def contains(self, key: Hashable) -> bool:
        return self._lives(key)

    def delete(self, key: Hashable) -> None:
        self._values.delete(key)
        self._uses.delete(key)

    def items(self) -> list[tuple[Any, V]]:
        return list(self.pairs())

    def keys(self) -> list[Any]:
        return [key for key, _ in self.pairs()]

    def clear(self) -> None:
        self._values.clear()
        self._uses.clear()
        self._due, self._known = DueTimes(), set()

    def __getitem__(self, key: Hashable) -> V:
        if not self._lives(key):
            value = self._values[key]  # made by `init`, or a KeyError
            self._use(key)
            return value
        value = self._values[key]
        self._was_read(key, value)
        return value

    __setitem__ = put

    def __delitem__(self, key: Hashable) -> None:
        if not self._lives(key):
            raise KeyError(key)
        self.delete(key)

    def __contains__(self, key: object) -> bool:
        return self._lives(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return sum(1 for _ in self.pairs())

    def pairs(self) -> Iterator[tuple[Any, V]]:
        """What has not expired."""
        now_us = self._now_us()
        for key, value in list(self._values.pairs()):
            if not self._expired(self._uses.get(key), now_us):
                yield key, value

    @property
    def entries(self) -> dict[Any, V]:
        raise UserError(
            f"'{self._name}' has a ttl, so it has no raw dict of its entries. Use get, put and []."
        )

    def changing(self, keys: Iterable[Hashable]) -> dict[Any, V]:
        """A raw dict of these keys, without those that have expired; all of them count as written."""
        wanted = list(keys)
        for key in wanted:
            self._lives(key)
            self._use(key)
        return self._values.changing(wanted)

    def take_out(self, keys: list[Hashable]) -> list[V | None]:
        values = [self._values.get(key) if self._lives(key) else None for key in keys]
        for key in keys:
            self.delete(key)
        return values

    def touch(self, keys: Iterable[Hashable]) -> None:
        self.changing(keys)

    # For the engine.

    def sweep(self) -> None:
        """Remove some of what has expired; asks to be called again if there is more."""
        now_us = self._sweep_us()
        if now_us == NO_WATERMARK:
            return
        for due_us, key in self._due.take(now_us, SWEPT_AT_ONCE):
            self._known.discard(key)
            used_us = self._uses.get(key)
            if used_us is None:
                continue
            if used_us == NO_WATERMARK:  # it was used before event time began
                self._uses.put(key, now_us)
                self._await(key, now_us)
            elif used_us + self._life.ttl_us > due_us and not self._expired(used_us, now_us):
                self._await(key, used_us)
            else:
                self.delete(key)
        self._wake()

    def _wake(self) -> None:
        next_us = self._due.next_at
        if next_us is None:
            return
        if self._life.time == "processing":
            at_s = next_us / 1e6
        elif next_us <= self._sweep_us():
            at_s = 0.0
        else:
            return  # the next watermark sweeps
        self._ctx.sweep_at(max(at_s, self._ctx.now_s + SWEEP_EVERY_S))

    # Inside.

    def _now_us(self) -> int:
        ctx = self._ctx
        if self._life.time == "processing":
            return round(ctx.now_s * 1e6)
        return ctx.event_us if ctx.event_us != NO_WATERMARK else self._sweep_us()

    def _sweep_us(self) -> int:
        """Time does not advance at the end of the input, so state can be read in `on_end`."""
        ctx = self._ctx
        if self._life.time == "processing":
            return round(ctx.now_s * 1e6)
        if ctx.watermark != END_OF_TIME:
            self._swept_us = max(self._swept_us, ctx.watermark)
        return self._swept_us

    def _expired(self, used_us: int | None, now_us: int) -> bool:
        if used_us is None or used_us == NO_WATERMARK:
            return False
        return now_us >= used_us + self._life.ttl_us

    def _lives(self, key: Hashable) -> bool:
        """Whether there is a value that can be seen; removes one that has expired."""
        if not self._values.contains(key):
            return False
        if self._expired(self._uses.get(key), self._now_us()):
            self.delete(key)
            return False
        return True

    def _was_read(self, key: Hashable, value: Any) -> None:
        # A value that can change in place counts as changed when it is read, as for checkpoints.
        if self._life.refresh == "read" or not is_steady(value):
            self._use(key)

    def _use(self, key: Hashable) -> None:
        now_us, before = self._now_us(), self._uses.get(key)
        if before is None or before < now_us:
            self._uses.put(key, now_us)
        if key not in self._known:
            self._await(key, now_us)
            if self._life.time == "processing":
                self._ctx.sweep_at((now_us + self._life.ttl_us) / 1e6)

    def _await(self, key: Hashable, used_us: int) -> None:
        at_us = used_us if used_us == NO_WATERMARK else used_us + self._life.ttl_us
        self._due.add(at_us, key)
        self._known.add(key)
