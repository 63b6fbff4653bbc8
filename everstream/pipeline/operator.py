"""Operators: what a user subclasses, and the context an operator is given.

An operator sees batches (`process_batch`) or single records (`process`), emits through its
context, and keeps what must survive a crash in its context's state. It does not know which engine
runs it, which protocol checkpoints it, or how many shards it has unless it asks.
"""

import math
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from operator import length_hint
from typing import Any, Generic, TypeVar, overload

import polars as pl

from everstream.errors import EverstreamError, UserError
from everstream.pipeline.batch import Batch, joined, records_of
from everstream.pipeline.calls.services import CallServices
from everstream.pipeline.checkpointing import StateKind as StateKind
from everstream.pipeline.envelope import Envelope, PlanView
from everstream.pipeline.event_time.lateness import RecordWatermarks
from everstream.pipeline.event_time.timers import TIMERS_STATE, Timers
from everstream.pipeline.keyed_state.expiry import (
    USES,
    ExpiringState,
    Refresh,
    TimeToLive,
    TtlTime,
)
from everstream.pipeline.keyed_state.spreading import (
    CONTEXT_STATE,
    Entries,
    Place,
    Spread,
    redistribute_entries,
)
from everstream.pipeline.keys import Keying
from everstream.pipeline.rejects import OnError, Rejected, describe
from everstream.pipeline.times import NO_WATERMARK, TimeOf
from everstream.state.backends.memory import MemoryBackend
from everstream.state.backends.protocol import StateBackend
from everstream.state.migrating import FIRST_VERSION, Migration

V = TypeVar("V")
OUT = "out"
"""The name of the main output, which `emit` uses by default."""


class Keyed(Generic[V]):
    """Declares keyed state on an Operator class: one value per key, kept across crashes.

    With state="disk" it may have more keys than fit into memory (docs/guides/keep-large-state-on-disk.md). This choice
    overrides `process(..., state=)` and the option of the run.

    >>> class Total(es.Operator):
    ...     total = es.Keyed(init=int)
    ...     def process(self, record, ctx):
    ...         self.total[ctx.key] += record
    ...         ctx.emit((ctx.key, self.total[ctx.key]))
    >>> keyed = es.Pipeline("totals").source(es.Range(4)).key_by(lambda n: n % 2)
    >>> keyed.process(Total()).collect().run().collected()
    [(0, 0), (1, 1), (0, 2), (1, 4)]

    When the form of the values changes, raise `version` and give `migrate`, which converts a value
    of an earlier version: `es.Keyed(init=dict, version=2, migrate=lambda value, version:
    {"total": value})`, or step by step, `migrate={1: from_1_to_2, 2: from_2_to_3}`. A value from a
    checkpoint is migrated when it is first used, and saved in the new form from then on.

    With `ttl`, values that were not used for that long are gone (docs/guides/time-out-a-key.md):
    `es.Keyed(init=int, ttl="1h")`. ttl_time="processing" (the default) follows the clock, "event" the
    times of the records. refresh="write" (the default) counts from the last write, "read" also from
    reads.
    """

    def __init__(
        self,
        init: Callable[[], V] | None = None,
        *,
        version: int = FIRST_VERSION,
        migrate: Callable[[Any, int], V] | Mapping[int, Callable[[Any], Any]] | None = None,
        spread: Spread = "key",
        state: StateKind | None = None,
        ttl: str | float | timedelta | None = None,
        ttl_time: TtlTime = "processing",
        refresh: Refresh = "write",
    ) -> None:
        """spread: how to redistribute it when the number of shards changes; "key" if its keys are
        the keys of the records, otherwise "split", "union" or "broadcast". state: where it is kept,
        "memory" or "disk"; None: as the operator or the run chooses."""
        if state not in (None, "memory", "disk"):
            raise UserError(f"es.Keyed: state={state!r}: use 'memory' or 'disk'.")
        self.init = init
        self.migration = Migration(version, migrate)
        self.spread: Spread = spread
        self.state = state
        self.life = None if ttl is None else TimeToLive(ttl, ttl_time, refresh)
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def kind(self) -> str:
        """The type of the initial value, as a word if possible."""
        if self.init is None:
            return "as it is put"
        return self.init.__name__ if isinstance(self.init, type) else "a function"

    @property
    def stores(self) -> dict[str, Spread]:
        """The stores it may consist of, and how each is redistributed."""
        return {self.name: self.spread, self.name + USES: self.spread}

    def bind(self, to: "BoundState") -> Any:
        """What the operator gets for it."""
        values = to.keystore(self.name, self.init, self.migration)
        uses = self.name + USES
        if self.life is None:
            if to.has(uses):  # an earlier version of the program had a time to live
                to.keystore(uses).clear()
            return values
        assert to.ctx is not None
        adopts = not to.has(uses)
        return ExpiringState(self.name, values, to.keystore(uses), self.life, to.ctx, adopts=adopts)

    @overload
    def __get__(self, instance: None, owner: type) -> "Keyed[V]": ...
    @overload
    def __get__(self, instance: "Operator", owner: type) -> StateBackend[Hashable, V]: ...
    def __get__(
        self, instance: "Operator | None", owner: type
    ) -> "Keyed[V] | StateBackend[Hashable, V]":
        if instance is None:
            return self
        store: StateBackend[Hashable, V] = instance.__dict__["_keyed"][self.name]
        return store


@dataclass(frozen=True)
class BoundState:
    """What declared state is bound to, in one shard."""

    keystore: Callable[..., StateBackend[Any, Any]]
    """Makes or finds a store by its name, its `init` and its migration."""
    has: Callable[[str], bool]
    """Whether there is one by this name, from a checkpoint."""
    ctx: "Context | None"


@dataclass(slots=True)
class Moment:
    """When the records being processed came in: shared by all operators of a chain."""

    born_s: float = 0.0
    """By the wall clock; 0 if not known. An operator that held records back sets it again."""
    silent_since_s: float | None = None
    """When the source first had nothing, by processing time; None if it had records since."""
    asked_again: bool = True
    """Whether the source is asked for records even if none are announced."""


class Context:
    """What an operator can use while it runs: emit, state, time and timers, rejects."""

    def __init__(
        self,
        operator: str,
        shard: int,
        shards: int,
        state: StateBackend[Any, Any],
        keying: Keying | None = None,
        on_error: OnError = "fail",
        clock_s: Callable[[], float] = time.time,
        moment: Moment | None = None,
    ) -> None:
        self.operator = operator
        self.shard = shard
        self.shards = shards
        self.state = state
        self.keying = keying
        self.key: Hashable = None
        """The key of the record in `process`, if the operator follows a key_by."""
        self.input = ""
        """Which input the batch in `process_batch` came from, if the operator has several."""
        self.watermark = NO_WATERMARK
        """Event time so far, in microseconds: later records are not before it, unless late."""
        self.judged: RecordWatermarks | None = None
        """The watermark that each record of the batch in `process_batch` is judged by, if an
        `event_time` of this chain provides it: for operators with `keeps_rows`."""
        self.announced = NO_WATERMARK
        """The watermark given to `advance_watermark`."""
        self.wanted_at_s = math.inf
        """The time given to `wake_at`."""
        self.sweep_at_s = math.inf
        """When state that has expired is to be removed."""
        self.event_us = NO_WATERMARK
        """The event time of the record or timer at work, for state that expires by it."""
        self.timers = Timers(self, lambda: MemoryBackend(name="timers"))
        """Calls for a key at a time: `on_timer`."""
        self.services = CallServices()
        """For operators that wait for something outside."""
        self.pending = 0
        """Records that the operator will emit something for without being given more: the input does
        not end before that."""
        self.room = sys.maxsize
        """How many more records the operator can be given now."""
        self.answers_at_s = math.inf
        """When `on_answers` is to be called, by the clock of `services`."""
        self.poked = False
        """Whether `on_answers` is to be called now."""
        self.generation = 0
        """Of the shard, when the operator was built."""
        self.checkpoint = 0
        """The number of the checkpoint in `before_checkpoint`."""
        self.on_error = on_error
        self._clock_s = clock_s
        self.moment = moment if moment is not None else Moment()
        self.asked_time = False
        """Whether the operator uses processing time: then a checkpoint records the time reached."""
        self.skipped = 0
        """Records rejected so far, including before the last failure."""
        self.settings: Mapping[str, Mapping[str, str]] = {}
        """Operator -> setting -> value: what can be tuned, with its present value."""
        self.ask_plan: Callable[[], PlanView] | None = None
        self.ask_envelope: Callable[[], Envelope] | None = None
        """For engines."""
        self._tuning: list[dict[str, str]] = []
        self._rejected: list[Rejected] = []
        self._reading: tuple[list[Any], Iterator[Any]] = ([], iter(()))
        self._emitted: list[tuple[str, Batch, RecordWatermarks | None]] = []
        self._records: list[Any] = []
        self._output = OUT

    def emit(self, record: Any, output: str = OUT) -> None:
        """Emit one record."""
        if output != self._output:
            self._flush()
            self._output = output
        self._records.append(record)

    def emit_batch(self, batch: Batch, output: str = OUT) -> None:
        """Emit a whole batch."""
        self._flush()
        if len(batch):
            self._emitted.append((output, batch, None))

    def emit_rows(self, batch: Batch, rows: pl.Series | None = None, output: str = OUT) -> None:
        """Emit one record for each record of the batch in `process_batch`.

        rows: a mask of the records that are kept; None for all. For operators with `keeps_rows`.
        """
        self._flush()
        if len(batch):
            judged = self.judged
            if judged is not None and rows is not None:
                judged = judged.of(rows.to_numpy())
            self._emitted.append((output, batch, judged))

    @property
    def now_s(self) -> float:
        """Processing time: seconds since 1970 by the clock of this machine.

        It never goes back: not when that clock is set back, and not after a failure.
        """
        self.asked_time = True
        return self._clock_s()

    def advance_watermark(self, watermark: int) -> None:
        """Promise that all records emitted from now on have at least this time (microseconds).

        For operators with `announces_watermarks`. A watermark that would go back is ignored.
        """
        self.announced = max(self.announced, watermark)

    def wake_at(self, time_s: float) -> None:
        """Have `on_wake` called at this processing time; the earliest request counts.

        For operators without keys that compute again when they wake what is due: requests are not
        saved. `ctx.timers` are.
        """
        self.asked_time = True
        self.wanted_at_s = min(self.wanted_at_s, time_s)

    def sweep_at(self, time_s: float) -> None:
        """Have expired state removed at this processing time. For state with a time to live."""
        self.sweep_at_s = min(self.sweep_at_s, time_s)

    def poke(self) -> None:
        """Have `on_answers` called soon. Any thread may call this."""
        if not self.poked:
            self.poked = True
            self.services.wake_up()

    def tune(
        self,
        *,
        operator: str | None = None,
        frequency: float | None = None,
        pattern: str | None = None,
        batch: int | None = None,
        interval: str | float | None = None,
    ) -> None:
        """Change how fast sources produce (`frequency`, `pattern`) and how records are batched.

        Applies to all operators that have such a setting, or to the one that is named. It is
        recorded in the store first, and takes effect in all processes a moment later.
        """
        given = {"frequency": frequency, "pattern": pattern, "batch": batch, "interval": interval}
        before = f"{operator}." if operator is not None else ""
        wishes = {
            f"{before}{name}": str(value) for name, value in given.items() if value is not None
        }
        if wishes:
            self._tuning.append(wishes)

    def take_tuning(self) -> list[dict[str, str]]:
        """The requests made with `tune` since the last call. For engines."""
        wishes, self._tuning = self._tuning, []
        return wishes

    def reading(self, batch: Batch) -> Iterator[Any]:
        """Iterate over the records, so that an error report can name the one that failed."""
        records = records_of(batch)
        iterator = iter(records)
        self._reading = (records, iterator)
        return iterator

    @property
    def plan(self) -> PlanView:
        """The plan of the run: the shards of each operator, the workers, and this shard's place.

        >>> class Share(es.Operator):
        ...     def process(self, record, ctx):
        ...         ctx.emit(record / ctx.plan.shards["words"])
        >>> words = es.Pipeline("plan").source(es.FromList([8]), name="words", shards=2)
        >>> words.process(Share(), shards=1).collect().run().collected()
        [4.0]
        """
        if self.ask_plan is None:
            raise UserError(f"operator '{self.operator}': there is no run, and so no plan.")
        return self.ask_plan()

    @property
    def envelope(self) -> Envelope:
        """What is known about the record in `process`: sender, position, epoch, attempt, reprocessed.

        Costs nothing until used. Of the batch in `process_batch`, it is that of the first record.

        >>> class Number(es.Operator):
        ...     def process(self, record, ctx):
        ...         ctx.emit((ctx.envelope.sender, ctx.envelope.position, record))
        >>> words = es.Pipeline("numbered").source(es.FromList(["to", "be"]), name="words")
        >>> words.process(Number()).collect().run().collected()
        [('words:0', 0, 'to'), ('words:0', 1, 'be')]
        """
        if self.ask_envelope is None:
            raise UserError(f"operator '{self.operator}': there is no run, and so no envelope.")
        return self.ask_envelope()

    def index_in(self, records: int) -> int | None:
        """The index of the record being read in a batch of this size; None if it is not of it."""
        read, iterator = self._reading
        position = len(read) - length_hint(iterator) - 1
        return position if len(read) == records and position >= 0 else None

    @property
    def record(self) -> Any:
        """The record being read, while `reading` is in use; costs nothing until used."""
        records, iterator = self._reading
        position = len(records) - length_hint(iterator) - 1
        return records[position] if 0 <= position < len(records) else None

    def show(self, record: Any) -> None:
        """Name the record that an error about to be raised belongs to. For engines."""
        self._reading = ([record], iter(()))

    def reject(self, record: Any, error: Exception) -> None:
        """Reject a record as `on_error` demands: raise the error, count it, or also keep it."""
        if not self.tolerates(error):
            raise error
        self.leave_out(Rejected(record, describe(error)))

    def tolerates(self, error: Exception) -> bool:
        """Whether the record may be blamed: faults of the environment or of Everstream never are."""
        fault = isinstance(error, EverstreamError) and not isinstance(error, UserError)
        return self.on_error != "fail" and not fault

    def leave_out(self, rejected: Rejected) -> None:
        """Count rejected records, and keep them if they become dead letters."""
        self.skipped += rejected.records
        if self.on_error == "dead_letter":
            self._rejected.append(rejected)

    def skip(self, record: Any, error: Exception) -> None:
        """Leave a record out and count it, regardless of `on_error`."""
        self.leave_out(Rejected(record, describe(error)))

    def take_rejected(self) -> list[Rejected]:
        """The dead letters since the last call. For engines."""
        rejected, self._rejected = self._rejected, []
        return rejected

    def mark(self) -> tuple[int, int, str]:
        """The present position in the output, for `forget_since`."""
        return len(self._emitted), len(self._records), self._output

    def forget_since(self, mark: tuple[int, int, str]) -> None:
        """Discard what was emitted since then."""
        batches, records, output = mark
        if len(self._emitted) > batches:
            # Records waiting at the mark were flushed first, together with what came after them.
            flushed = self._emitted[batches][1]
            self._records = list(flushed[:records]) if records else []
            self._output = output
            del self._emitted[batches:]
        else:
            del self._records[records:]
            self._output = output

    def join_since(self, mark: tuple[int, int, str]) -> None:
        """Join the small pieces emitted since then, output by output."""
        self._flush()
        pieces = self._emitted[mark[0] :]
        if any(judged is not None for _, _, judged in pieces):
            return
        outputs = dict.fromkeys(output for output, _, _ in pieces)
        self._emitted[mark[0] :] = [
            (output, batch, None)
            for output in outputs
            for batch in joined([batch for other, batch, _ in pieces if other == output])
        ]

    def take_emitted(self) -> list[tuple[str, Batch]]:
        """What the step that has just ended emitted. For engines."""
        return [(output, batch) for output, batch, _ in self.take_judged()]

    def take_judged(self) -> list[tuple[str, Batch, RecordWatermarks | None]]:
        """The same, with the watermarks that the records are judged by, where known."""
        self._flush()
        self._reading = ([], iter(()))
        emitted, self._emitted = self._emitted, []
        return emitted

    def _flush(self) -> None:
        if self._records:
            self._emitted.append((self._output, self._records, None))
            self._records = []


class Operator:
    """A stage of a pipeline. Override `process` or `process_batch`, and the hooks you need.

    Keep state in `ctx.state` or in a declared `es.Keyed`; plain attributes are lost in a
    crash. Do not change records in place: another branch may hold the same objects.

    >>> class Distinct(es.Operator):
    ...     def process(self, record, ctx):
    ...         if record not in ctx.state:
    ...             ctx.state.put(record, True)
    ...             ctx.emit(record)
    >>> words = es.Pipeline("distinct").source(es.FromList(["to", "be", "to"]))
    >>> words.process(Distinct()).collect().run().collected()
    ['to', 'be']
    """

    max_shards: int | None = None
    """The largest number of shards it can have; None for any number."""
    repeatable = False
    """Whether a failed batch may be processed again, in pieces, because it changes no state."""
    pure = False
    """Whether the same batch always gives the same output: no state, no randomness, no clock."""
    keeps_rows = False
    """Whether it emits the records it is given, or one for each, with `ctx.emit_rows`."""
    judges_lateness = False
    """Whether it uses `ctx.judged`."""
    whole_batches = False
    """Whether it must get batches exactly as the source made them, however long they take."""
    record_by_record = False
    """Whether the output of `process_batch` is independent of where batches begin and end."""
    spread: Spread | None = None
    """How to redistribute `ctx.state` when the number of shards changes. "key": its keys are the
    keys of the records; "split": each entry goes to one shard; "union": all entries go to every shard;
    "broadcast": all shards have the same. None: the number cannot change once there are entries."""
    announces_watermarks = False
    """Whether operators downstream get the watermark of `ctx.advance_watermark`, not the input's."""
    watermark_delay_us = 0
    """How much older than the watermark of its input a record that it emits may be."""
    emits: Mapping[str, Any] | None = None
    """The columns of what it emits and their Polars types, if they are always the same."""
    gathers = False
    """Whether its input may wait until `is_due`: until then, nothing depends on when it comes."""
    holds_records = False
    """Whether it emits records later than it is given them, behind the watermarks that it holds back."""
    time_of_state: TimeOf | None = None
    """How to read the event time of its records, if it declares state that expires by it."""
    why_in_memory: str | None = None
    """Why its state cannot be kept on disk; None if it can."""

    def process(self, record: Any, ctx: Context) -> None:
        """Handle one record."""
        raise TypeError(f"{type(self).__name__} must define process or process_batch")

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        """Handle a batch. Default: calls `process` for each record."""
        process = self.process
        tolerant = ctx.on_error != "fail" or type(self).on_error is not Operator.on_error
        mark = ctx.mark()
        keys = iter(ctx.keying.keys(batch)) if ctx.keying is not None else None
        times = _times(self.time_of_state, batch, ctx) if self.time_of_state is not None else None
        for record in ctx.reading(batch):
            if keys is not None:
                ctx.key = next(keys)
            if times is not None:
                ctx.event_us = next(times)
            if tolerant:
                mark = ctx.mark()
            try:
                process(record, ctx)
            except Exception as error:
                ctx.forget_since(mark)
                self.on_error(error, record, ctx)
                ctx.leave_out(Rejected(record, describe(error)))
        ctx.event_us = NO_WATERMARK

    def is_due(self, before: int, watermark: int) -> bool:
        """If it gathers: whether event time can only move on after the input that waits."""
        return True

    def describe_state(self) -> dict[str, Any] | None:
        """Describes the operator's saved state as plain JSON; None if it never saves any.

        A later run resumes from a checkpoint only if this is unchanged. Default: the class and
        what it declares with `es.Keyed`; None if it is `repeatable` or `pure`.
        """
        if self.repeatable or self.pure:
            return None
        declared = declared_state(type(self))
        about: dict[str, Any] = {"operator": type(self).__name__}
        if declared:
            about["keyed"] = {name: one.kind for name, one in declared.items()}
        versions = {name: one.migration.version for name, one in declared.items()}
        later = {name: number for name, number in versions.items() if number > FIRST_VERSION}
        return {**about, **({"versions": later} if later else {})}

    def goes_on_from(self, before: dict[str, Any] | None) -> None:
        """Receives what `describe_state` returned when the state was saved, if it has changed since.

        Called before each run. It differs only if a rule migrates the state.
        """

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        """This shard's part of the state of the earlier shards, when their number has changed.

        `parts`: for each earlier shard, the entries of every state by its name (`ctx.state` is
        "ctx.state"). Default: as `spread`, of the class and of each `es.Keyed`, says.
        """
        spreads: dict[str, Spread | None] = {
            name: spread
            for declared in declared_state(type(self)).values()
            for name, spread in declared.stores.items()
        }
        spreads[CONTEXT_STATE] = self.spread
        spreads[TIMERS_STATE] = "entry"
        return {
            name: redistribute_entries(
                spreads.get(name), {n: kept.get(name, {}) for n, kept in parts.items()}, place, name
            )
            for name in dict.fromkeys(name for kept in parts.values() for name in kept)
        }

    def on_start(self, ctx: Context) -> None:
        """Called before the first record of each generation, after the state was restored."""

    def on_recover(self, reason: str, ctx: Context) -> None:
        """Called after `on_start`, before the first record, if this shard has rolled back.

        reason: what has failed, here or elsewhere: "worker 2 (killed)". The state is that of the
        checkpoint, and the records since then come again.
        """

    def on_end(self, ctx: Context) -> None:
        """Called when all inputs have ended: the last chance to emit.

        Pending timers of processing time are dropped after this; those of event time have fired.
        """

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        """Event time has reached this watermark: no earlier record will come, unless it is late.

        Called with `es.END_OF_TIME` when all inputs have ended, before `on_end`.
        """

    def on_timer(self, key: Any, name: str, at: int, ctx: Context) -> None:
        """A timer that was set with `ctx.timers` is due; `at` is the time it was set to, in microseconds.

        Called once per timer, in the order of their times. `ctx.key` is its key.
        """

    def on_wake(self, now_s: float, ctx: Context) -> None:
        """Called at the time requested with `ctx.wake_at`; never after `on_end`."""

    def on_answers(self, ctx: Context) -> Iterator[None]:
        """Called after `ctx.poke()`, or at `ctx.answers_at_s`; yields when there is output."""
        return iter(())

    def tunable(self) -> dict[str, str]:
        """What can be changed while running: name -> initial value, as text."""
        return {}

    def on_tune(self, settings: Mapping[str, str], ctx: Context) -> None:
        """Called when these settings have changed, and also before the first record.

        Settings are not saved with the state: after a failure it is called again.
        """

    def on_stop(self, ctx: Context) -> None:
        """This shard ends, or is built anew after a failure: close what you opened.

        Not called if the process was killed. An error that it raises after a failure is logged.
        """

    def on_error(self, error: Exception, record: Any, ctx: Context) -> None:
        """Called when `process` raised. Raise to fail, or return to leave the record out.

        Default: applies the operator's `on_error=` option; without one, it raises.
        """
        if not ctx.tolerates(error):
            raise error

    def should_checkpoint(self, ctx: Context) -> bool | None:
        """Whether this shard should checkpoint now, for example because its state is small.

        True: now, if there were records since the last one. False: not now; a checkpoint that is due
        is postponed, until the interval has passed twice. None (default): when it is due. Asked
        every few milliseconds between two batches, under `es.Uncoordinated` and
        `es.CommunicationInduced`. Forced checkpoints are taken in any case.
        """
        return None

    def before_checkpoint(self, ctx: Context) -> None:
        """Called right before the state is saved: put everything that belongs to it into it.

        You cannot emit here: the checkpoint's position in the stream is already fixed.
        """

    def on_checkpoint(self, checkpoint: int, ctx: Context) -> None:
        """This shard's checkpoint with this number is durable."""

    def on_commit(self, checkpoint: int, ctx: Context) -> None:
        """Everything up to this checkpoint is stable: it will never be rolled back."""


def decides(what: object) -> bool:
    """Whether an operator has its own idea of when to checkpoint."""
    own = isinstance(what, Operator) and type(what).should_checkpoint
    return bool(own) and own is not Operator.should_checkpoint


def without_key(batch: Batch, keying: Keying, ctx: Context) -> list[int]:
    """The rows without a key, after rejecting them as `on_error` demands.

    Also for operators that never look at a key: whether a record passes must depend neither on
    that nor on the number of shards.
    """
    try:
        keying.check(batch)
        return []
    except Exception as error:
        if len(batch) == 1:
            (record,) = records_of(batch)
            if not ctx.tolerates(error):
                ctx.show(record)
                raise
            ctx.leave_out(Rejected(record, describe(error)))
            return [0]
    half = len(batch) // 2
    first = without_key(batch[:half], keying, ctx)
    return [*first, *(half + row for row in without_key(batch[half:], keying, ctx))]


def process_tolerantly(operator: Operator, batch: Batch, ctx: Context) -> None:
    """`process_batch` for an operator whose records may be rejected.

    The whole batch is tried first. If it fails, an operator that changes no state gets the batch
    again in pieces, so that only the records at fault are rejected. The same applies to any
    operator if computing the keys failed, because that comes first. Otherwise there is no retry:
    an error raised for a batch, rather than for a record, rejects the batch.
    """
    mark, judged = ctx.mark(), ctx.judged
    try:
        operator.process_batch(batch, ctx)
    except Exception as error:
        if not ctx.tolerates(error):
            raise
        ctx.forget_since(mark)
        untouched = ctx.keying is not None and ctx.keying.failed_on is batch
        if len(batch) == 1 or not (operator.repeatable or untouched):
            for record in records_of(batch):
                ctx.leave_out(Rejected(record, describe(error)))
            return
        # Slicing rows off a DataFrame one by one is slow, halving it is not. A list is read
        # record by record, so a function sees no record more than twice.
        step = -(-len(batch) // 2) if isinstance(batch, pl.DataFrame) else 1
        for start in range(0, len(batch), step):
            piece = slice(start, start + step)
            ctx.judged = judged.of(piece) if judged is not None else None
            process_tolerantly(operator, batch[piece], ctx)
        ctx.join_since(mark)


def bind_state(
    operator: Operator,
    keystore: Callable[..., StateBackend[Any, Any]],
    has: Callable[[str], bool] = lambda name: False,
    ctx: Context | None = None,
) -> list[ExpiringState[Any]]:
    """Give an operator's declared state its key stores. Returns what expires.

    keystore: makes or finds a store by name. has: whether there is one, from a checkpoint.
    """
    to = BoundState(keystore, has, ctx)
    bound = {name: one.bind(to) for name, one in declared_state(type(operator)).items()}
    operator.__dict__["_keyed"] = bound
    return [state for state in bound.values() if isinstance(state, ExpiringState)]


def _times(time: TimeOf, batch: Batch, ctx: Context) -> Iterator[int]:
    """The event time of each record; that of the watermark where a record has none."""
    times = time.microseconds(time.read(batch, ctx.operator))
    return iter(times.fill_null(NO_WATERMARK).to_list())


def declared_state(kind: type[Operator]) -> dict[str, Keyed[Any]]:
    """What a class and its base classes declare with `Keyed`, by name."""
    fields: dict[str, Keyed[Any]] = {}
    for one in kind.__mro__:
        for name, declared in vars(one).items():
            if isinstance(declared, Keyed):
                fields.setdefault(name, declared)
    return fields


def expires_by_event_time(operator: Operator) -> bool:
    """Whether it declares state that expires by the times of its records."""
    lives = (declared.life for declared in declared_state(type(operator)).values())
    return any(life is not None and life.time == "event" for life in lives)
