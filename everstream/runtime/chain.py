"""A chain of fused operators at work: batches go in at the head, output goes to outlets.

Stages are built anew for every generation, from the pipeline as the user wrote it, so nothing an
operator kept in plain attributes can leak from before a failure to after it. A sink's transactions
are held here until their permit arrives.
"""

import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

import cloudpickle
import numpy as np

from everstream.core.checkpointing.record import DEAD_LETTERS
from everstream.core.ids import ChannelId, ShardId
from everstream.core.measuring import Meter
from everstream.core.plan import Plan
from everstream.errors import EverstreamError, InternalError, RefusedRecords, UserError
from everstream.pipeline.aggregation.local_parts import LATE
from everstream.pipeline.batch import Batch, taken, without
from everstream.pipeline.calls.services import CallServices
from everstream.pipeline.envelope import Envelope, PlanView
from everstream.pipeline.event_time.lateness import RecordWatermarks
from everstream.pipeline.event_time.timers import TIMERS_STATE, TimeKind, Timers
from everstream.pipeline.graph import ByKey, Kind
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE
from everstream.pipeline.operator import (
    Context,
    Moment,
    Operator,
    bind_state,
    decides,
    process_tolerantly,
    without_key,
)
from everstream.pipeline.operators.builtin import EventTime
from everstream.pipeline.rejects import Rejected
from everstream.pipeline.sink import Committable, Permit, Sink, SinkShard
from everstream.pipeline.source import EndOfStream
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK, ForwardClock
from everstream.pipeline.tuning import Settings, Tuning, merged, tunable_in
from everstream.runtime.channel_state import CHANNELS
from everstream.runtime.engine_api import Persisting
from everstream.runtime.explaining import explained
from everstream.runtime.gathering import ENOUGH, MOST_LATENCIES, Gathered
from everstream.runtime.outlets import Outlet
from everstream.runtime.stage import ChainStage, PendingBatch
from everstream.state.snapshot import ShardState

_log = logging.getLogger("everstream")


Piece: TypeAlias = tuple[ChannelId | None, int]
"""The channel (None: the source) that a batch came from, and how many records it has."""


class WritableNumber(Protocol):
    """A single number that is overwritten in place."""

    def __setitem__(self, index: Literal[0], value: int, /) -> None: ...


class ChainStages:
    """All operators of one shard, and the batch that passes through them."""

    def __init__(
        self,
        plan: Plan,
        shard: ShardId,
        outlets: Mapping[int, Outlet],
        state: ShardState,
        clock_s: Callable[[], float],
        steady_s: Callable[[], float] | None = None,
        *,
        recovers: bool = True,
        times: bool = True,
        services: CallServices | None = None,
        envelope: Callable[[Piece, int | None], Envelope] | None = None,
        latency_s: float = 0.0,
    ) -> None:
        """recovers: sinks recover their output here; otherwise the driver does, before this chain
        is built.

        times: measure how long records take to a sink. envelope: of a record of a piece. latency_s: of
        a chain that may gather input for its operators; 0 for any other.
        """
        self._envelope = envelope
        self._gathers_s = MOST_LATENCIES * latency_s
        self.plan = plan
        self.shard = shard
        self.outlets = outlets
        self.state = state
        self.clock_s = clock_s
        self.steady_s = steady_s if steady_s is not None else clock_s
        self.now_s = ForwardClock(lambda: self.clock_s())
        """Processing time: a new generation does not set it back."""
        self._recovers = recovers
        self._times = times
        self._services = services if services is not None else CallServices()
        self.stages: dict[str, ChainStage] = {}
        self.holding: list[ChainStage] = []
        """Those whose operators wait for answers from outside."""
        self.gathering: list[ChainStage] = []
        """Those whose input may wait, last one first."""
        self.dating: list[ChainStage] = []
        """Those that announce the present while the source is silent."""
        self.moment = Moment()
        self.tuning = Tuning()
        self.settings: Settings = tunable_in(plan.graph)
        """The present values of the settings that can be tuned."""
        self.meter = Meter()
        self.started = False
        self._reason = ""
        """What has failed before these operators were built."""
        self._at = shard.operator
        """The operator at work."""
        self._unfinished = False
        """A part of a batch came in: its watermark applies when the whole batch is through."""
        self.piece: Piece | None = None
        """What is being processed."""
        self.place: WritableNumber = [0]
        """The number of the operator at work; an engine may put it into shared memory."""

    @property
    def operators(self) -> tuple[str, ...]:
        return self.plan.chains[self.shard.operator].operators

    @property
    def catches_up(self) -> bool:
        """Its source ends for this run only."""
        return self.plan.graph.nodes[self.shard.operator].stops_at is not None

    @property
    def head(self) -> ChainStage:
        return self.stages[self.shard.operator]

    def build(
        self,
        extras: Mapping[str, Any],
        counts: Mapping[str, tuple[int, int]],
        generation: int,
        store: str,
        permit: Permit,
        reason: str = "",
    ) -> None:
        """Build the operators anew with restored state; sources seek, sinks recover.

        reason: what has failed, for `on_recover`; empty when a run begins.
        """
        self.abandon()
        self.piece = None
        self._reason = reason
        self.moment.born_s, self.moment.silent_since_s = 0.0, None
        graph = self.plan.graph
        shards = self.plan.chains[self.shard.operator].shards
        for number, name in enumerate(self.operators):
            self._at = name
            self.place[0] = number
            kind = graph.nodes[name].kind
            what: Any = cloudpickle.loads(cloudpickle.dumps(graph.nodes[name].what))
            routing = next((edge.routing for edge in graph.inputs(name)), None)
            keying = routing.keying if isinstance(routing, ByKey) else None
            ctx = Context(
                graph.nodes[name].written_as,
                self.shard.number,
                shards,
                self.state.keystore(name, CONTEXT_STATE),
                keying,
                graph.nodes[name].on_error,
                self.now_s,
                self.moment,
            )
            ctx.model = graph.nodes[name].model
            ctx.services, ctx.generation = self._services, generation
            stage = ChainStage(name, ctx, number=number)
            ctx.ask_envelope = partial(self._envelope_of, stage)
            ctx.ask_plan = partial(self._plan_view, ctx.operator)
            if shards == 1 or ctx.on_error != "fail":
                stage.keyings = {
                    edge.side: edge.routing.keying
                    for edge in graph.inputs(name)
                    if isinstance(edge.routing, ByKey)
                }
            stage.records_in, stage.records_out = counts.get(name, (0, 0))
            self.stages[name] = stage
            extra = extras.get(name, {})
            sink_shard = SinkShard(graph.name, name, self.shard.number, shards, generation, store)
            ctx.skipped = extra.get("skipped", 0)
            self.now_s.not_before(extra.get("now_s", 0.0))
            ctx.watermark, ctx.announced = extra.get("watermark", (NO_WATERMARK, NO_WATERMARK))
            # By its position in the graph: some connectors can be either.
            if kind is Kind.SOURCE:
                stage.reader = what.open(self.shard.number, shards)
                stage.reader.keep_time(self.clock_s, self.steady_s)
                stage.reader.use_store(store)
                stage.reader.fence(generation)
                if graph.nodes[name].stops_at is not None:
                    stage.reader.stop_at(graph.nodes[name].stops_at)
                if "offset" in extra:
                    stage.reader.seek(extra["offset"])
                stage.rest = PendingBatch(extra.get("rest"))
            elif kind is Kind.SINK:
                self._open_sink(stage, what, sink_shard, extra, permit)
            else:
                keystore, has = partial(self.state.keystore, name), partial(self.state.has, name)
                stage.expiring = bind_state(what, keystore, has, ctx)
                stage.operator = what
                ctx.timers = self._timers(name, what, ctx)
            ctx.settings = self.settings
            dead_letters = graph.nodes[name].dead_letters
            if dead_letters is not None:
                hidden = ChainStage(name + DEAD_LETTERS, ctx, number)
                self.stages[hidden.name] = stage.dead_letters = hidden
                saved = extras.get(hidden.name, {})
                self._open_sink(hidden, dead_letters, sink_shard, saved, permit)
        self.holding = [
            stage
            for stage in self.stages.values()
            if stage.operator is not None and stage.operator.holds_records
        ]
        self.dating = [
            stage
            for stage in self.stages.values()
            if isinstance(stage.operator, EventTime) and stage.operator.idle_after_s is not None
        ]
        self._unfinished = bool(self.head.rest)
        self._link()
        if self._gathers_s and self.head.reader is not None:
            self._let_gather()
        for stage in self.stages.values():
            if stage.reader is not None:
                self._tune(stage)

    def _let_gather(self) -> None:
        for stage in reversed(self.stages.values()):
            if stage.operator is not None and stage.operator.gathers:
                stage.gathered = Gathered()
                self.gathering.append(stage)

    def _timers(self, name: str, operator: Operator, ctx: Context) -> Timers:
        saved = self.state.has(name, TIMERS_STATE)
        timers = Timers(ctx, partial(self.state.keystore, name, TIMERS_STATE), saved=saved)
        timers.can_fire = type(operator).on_timer is not Operator.on_timer
        timers.tolerant = ctx.on_error != "fail" or type(operator).on_error is not Operator.on_error
        if not timers.can_fire and (pending := timers.pending()):
            raise UserError(
                f"operator '{ctx.operator}' has {len(pending)} timers in its checkpoint, but no "
                "on_timer any more. Define on_timer(self, key, name, at, ctx), if only to ignore them."
            )
        return timers

    def _open_sink(
        self,
        stage: ChainStage,
        sink: Sink,
        shard: SinkShard,
        saved: Mapping[str, Any],
        permit: Permit,
    ) -> None:
        """Open a writer, and bring the output to what the permit covers unless that is done."""
        # Shards that no longer exist have output, too: recover it on their behalf.
        for inherited in saved.get("inherited", ()) if self._recovers else ():
            earlier = replace(shard, shard=inherited.shard, shards=inherited.shards)
            with closing(sink.open(earlier)) as writer:
                writer.recover(inherited.transactions, permit)
        stage.writer = sink.open(shard)
        stage.writer.keep_moment(self.moment)
        if "writer" in saved:
            stage.writer.restore(saved["writer"])
        if self._recovers:
            stage.hold(stage.writer.recover(saved.get("transactions", ()), permit))

    def _plan_view(self, operator: str) -> PlanView:
        plan, shard = self.plan, self.shard
        shards = {
            name: plan.chains[plan.chain_of[name]].shards
            for name, node in plan.graph.nodes.items()
            if node.part_of is None
        }
        worker, workers = int(plan.worker_of[shard]), len(plan.workers)
        return PlanView(operator, shard.number, worker, workers, MappingProxyType(shards))

    def _envelope_of(self, stage: ChainStage) -> Envelope:
        """Of the record that a stage is reading, if the batch is as it came in."""
        if self.piece is None or self._envelope is None:
            raise UserError(
                f"operator '{stage.ctx.operator}': there is no record whose envelope you could read "
                "here. Use ctx.envelope in process or process_batch."
            )
        first = stage is self.head or (
            self.head.reader is not None and stage.number == self.head.number + 1
        )
        index = stage.ctx.index_in(self.piece[1]) if first else None
        return self._envelope(self.piece, index)

    def _link(self) -> None:
        for number, edge in enumerate(self.plan.graph.edges):
            if edge.sender in self.stages:
                target = self.stages[edge.receiver] if self.plan.fused(edge) else None
                targets = self.stages[edge.sender].targets.setdefault(edge.output, [])
                targets.append(target if target is not None else self.outlets[number])
        for stage in reversed(self.stages.values()):
            behind = [t for targets in stage.targets.values() for t in targets]
            stage.judged_behind = any(
                target.judged_behind
                or (target.operator is not None and target.operator.judges_lateness)
                for target in behind
                if isinstance(target, ChainStage)
            )

    # Work.

    def start(self) -> None:
        self.started = True
        for stage in self.stages.values():
            if stage.operator is not None:
                self._enter(stage)
                stage.operator.on_start(stage.ctx)
                if self._reason:
                    stage.operator.on_recover(self._reason, stage.ctx)
                self._tune(stage)
                self._forward_emitted(stage)
        # Operators downstream may not have received the last watermark before the failure.
        self._pass_watermarks()

    def tune(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self.settings = merged(tunable_in(self.plan.graph), tuning.settings)
        for stage in self.stages.values():
            stage.ctx.settings = self.settings
            if self.started or stage.reader is not None:
                self._tune(stage)
                self._forward_emitted(stage)

    def _tune(self, stage: ChainStage) -> None:
        changed = self.tuning.settings.get(stage.name)
        if not changed or stage.name not in self.operators:
            return
        self._enter(stage)
        if stage.reader is not None:
            stage.reader.tune(changed, self.tuning.version)
        elif stage.operator is not None:
            stage.operator.on_tune(changed, stage.ctx)

    def take_tuning(self) -> list[dict[str, str]]:
        return [wish for stage in self.stages.values() for wish in stage.ctx.take_tuning()]

    def process(self, batch: Batch, side: str = "", *, last: bool = True) -> None:
        """Send a batch of this input through the chain; `last`: no part of it is left."""
        self._unfinished, began = not last, self._unfinished
        if len(batch):
            self.head.ctx.input = side
            self._process(self.head, batch)
        if began and last:
            self._pass_watermarks()

    def advance(self, watermark: int) -> None:
        """The inputs have reached this watermark: pass it to the operators and outlets."""
        self._advance(self.head, watermark)

    @property
    def timer_at_s(self) -> float:
        """When an operator next wants to be called, or must get the input that waits for it."""
        timer_at_s = math.inf
        for stage in self.stages.values():
            if stage.ctx.wanted_at_s < timer_at_s:
                timer_at_s = stage.ctx.wanted_at_s
            if stage.ctx.sweep_at_s < timer_at_s:
                timer_at_s = stage.ctx.sweep_at_s
            if stage.gathered and (due_s := stage.gathered.began_s + self._gathers_s) < timer_at_s:
                timer_at_s = due_s
        return timer_at_s

    @property
    def answers_at_s(self) -> float:
        """When an operator has answers to emit; infinite if that is not known."""
        if not self.holding:
            return math.inf
        return min(-math.inf if s.ctx.poked else s.ctx.answers_at_s for s in self.holding)

    @property
    def answers_in_s(self) -> float:
        """The time until then."""
        at_s = self.answers_at_s
        return at_s if at_s == math.inf else at_s - self._services.now_s()

    @property
    def pending(self) -> int:
        """Records that operators hold, and will emit something for without being given more."""
        return sum(stage.ctx.pending for stage in self.holding) if self.holding else 0

    @property
    def room(self) -> int:
        """How many more records its operators can be given now."""
        return min((stage.ctx.room for stage in self.holding), default=sys.maxsize)

    def take_answers(self) -> None:
        """Let the operators emit what has arrived for them from outside."""
        now_s = self._services.now_s()
        for stage in self.holding:
            if stage.ctx.poked or stage.ctx.answers_at_s <= now_s:
                assert stage.operator is not None
                stage.ctx.poked = False
                self._enter(stage)
                for _ in stage.operator.on_answers(stage.ctx):
                    self._forward_held(stage)
                self._forward_held(stage)

    def _forward_held(self, stage: ChainStage) -> None:
        self._keep_rejected(stage)
        self._forward_emitted(stage)
        self._pass_watermark(stage)

    def call_timers(self, now_s: float) -> None:
        for stage in self.gathering:
            if stage.gathered and stage.gathered.began_s + self._gathers_s <= now_s:
                self._release(stage)
        for stage in self.stages.values():
            if math.inf > stage.ctx.sweep_at_s <= now_s:
                self._enter(stage)
                stage.ctx.sweep_at_s = math.inf
                for state in stage.expiring:
                    state.sweep()
            if stage.operator is not None and math.inf > stage.ctx.wanted_at_s <= now_s:
                self._enter(stage)
                stage.ctx.wanted_at_s = math.inf
                self._fire(stage, "processing", int(now_s * 1e6))
                stage.operator.on_wake(now_s, stage.ctx)
                self._forward_emitted(stage)
                if stage.ctx.announced > stage.passed:
                    self._pass_watermark(stage)

    def _fire(self, stage: ChainStage, time: TimeKind, until: int) -> None:
        """Call `on_timer` for the timers of a stage that are due."""
        assert stage.operator is not None
        for _ in stage.ctx.timers.fire(stage.operator, time, until):
            self._keep_rejected(stage)
            self._forward_emitted(stage)

    def read(self) -> Batch | EndOfStream | None:
        head = self.head
        assert head.reader is not None
        self._enter(head)
        batch = head.reader.read()
        if head.ctx.on_error != "fail":
            for rejected in head.reader.take_rejected():
                head.ctx.leave_out(rejected)
            self._keep_rejected(head)
        if batch is None:
            self.moment.asked_again = head.reader.ready_in_s() < math.inf
            if self.moment.silent_since_s is None:
                self.moment.silent_since_s = self.now_s()
        else:
            self.moment.silent_since_s = None
        if batch is not None and not isinstance(batch, EndOfStream):
            self.moment.born_s = head.reader.born_s() or self.clock_s()
        return batch

    def forward(self, batch: Batch, *, last: bool = True) -> None:
        """Send a batch of the source, or a part of one, through the chain."""
        self._unfinished, began = not last, self._unfinished
        self._enter(self.head)
        self._forward(self.head, "out", batch)
        self.piece = None
        if began and last:
            self._pass_watermarks()
        if last:
            self.advance_source()

    def advance_source(self) -> bool:
        """Pass on the event time of the source, all of whose records are through."""
        reader = self.head.reader
        assert reader is not None
        watermark = reader.watermark()
        advances = watermark > self.head.ctx.watermark
        if advances:
            self._advance(self.head, watermark)
        if self.moment.silent_since_s is not None:
            for stage in self.dating:
                assert isinstance(stage.operator, EventTime)
                stage.operator.on_silence(stage.ctx)
                advances |= stage.ctx.announced > stage.passed
                self._pass_watermark(stage)
        return advances

    def is_ahead(self, least_us: int) -> bool:
        """Whether its event time is too far ahead of the least of all sources."""
        return any(
            isinstance(stage.operator, EventTime)
            and stage.operator.max_drift_us is not None
            and stage.ctx.announced - stage.operator.max_drift_us > least_us
            for stage in self.stages.values()
        )

    def finish(self) -> None:
        """No more input: upstream first, so that last records still pass the operators downstream.

        Event time reaches its end, so all event-time timers fire. Pending timers of processing time
        are dropped: they do not delay the end of a bounded input.
        """
        self.release()
        for stage in self.stages.values():
            if stage.operator is not None:
                if stage.ctx.watermark < END_OF_TIME:
                    self._tell_watermark(stage, END_OF_TIME)
                self._enter(stage)
                stage.operator.on_end(stage.ctx)
                self._forward_emitted(stage)
                stage.ctx.timers.drop_pending()
                stage.ctx.wanted_at_s = stage.ctx.sweep_at_s = math.inf

    def _process(
        self, stage: ChainStage, batch: Batch, judged: RecordWatermarks | None = None
    ) -> None:
        if stage.gathered is not None and self._gathers(stage, batch, judged):
            return
        self._at, self.place[0] = stage.name, stage.number  # `_enter`, without the call
        stage.records_in += len(batch)
        if stage.keyings and (keying := stage.keyings.get(stage.ctx.input)) is not None:
            rows = without_key(batch, keying, stage.ctx)
            if rows:
                self._keep_rejected(stage)
                if judged is not None:
                    judged = judged.of(np.isin(np.arange(len(batch)), rows, invert=True))
                batch = without(batch, set(rows))
                if not len(batch):
                    return
        if stage.writer is not None:
            written = self._write(stage, batch)
            stage.records_out += written
            if self._times:
                self.meter.wrote(stage.name, written, self.moment.born_s, self.clock_s())
            return
        assert stage.operator is not None
        if judged is not None and not stage.operator.keeps_rows:
            if stage.judged_behind and not stage.operator.whole_batches:
                stage.records_in -= len(batch)
                self._process_in_runs(stage, batch, judged)
                return
            judged = None
        stage.ctx.judged = judged
        if stage.ctx.on_error == "fail":
            stage.operator.process_batch(batch, stage.ctx)
        else:
            process_tolerantly(stage.operator, batch, stage.ctx)
            self._keep_rejected(stage)
        self._forward_emitted(stage)
        if stage.ctx.announced > stage.passed:
            self._pass_watermark(stage)

    def _gathers(self, stage: ChainStage, batch: Batch, judged: RecordWatermarks | None) -> bool:
        """Let a batch wait if it may. Otherwise earlier batches that wait are processed before it."""
        assert stage.gathered is not None
        if judged is None or not judged.is_whole:
            self._release(stage)
            return False
        if not stage.gathered.fits(batch, judged):
            self._release(stage)
        stage.gathered.add(batch, judged, self.now_s(), self.moment.born_s)
        if stage.gathered.records >= ENOUGH:
            self._release(stage)
        return True

    def release(self) -> None:
        """Process all input that waits."""
        for stage in reversed(self.gathering):
            self._release(stage)

    def _release(self, stage: ChainStage) -> None:
        if not stage.gathered:
            return
        gathered, stage.gathered = stage.gathered, None
        born_s, self.moment.born_s = self.moment.born_s, gathered.born_s
        piece, self.piece = self.piece, None
        self._process(stage, *gathered.whole())
        self._advance(stage, gathered.watermark)
        self.moment.born_s, self.piece = born_s, piece
        stage.gathered = Gathered()

    def _process_in_runs(self, stage: ChainStage, batch: Batch, judged: RecordWatermarks) -> None:
        """The output for a record is judged like the record: late output is delivered after the
        watermark that it is late for."""
        for rows, watermark in judged.runs():
            self._advance(stage, watermark)
            self._process(stage, batch[rows])

    def _write(self, stage: ChainStage, batch: Batch) -> int:
        """Write what the sink accepts, and apply `on_error` to the rest. Returns how many."""
        assert stage.writer is not None
        while True:
            try:
                stage.writer.write(batch)
                return len(batch)
            except RefusedRecords as refused:
                rows = refused.rows
                records = taken(batch, list(rows))
                if stage.ctx.on_error == "fail":
                    stage.ctx.show(records[0])
                    raise
            for record, reason in zip(records, rows.values(), strict=True):
                stage.ctx.leave_out(Rejected(record, reason))
            self._keep_rejected(stage)
            batch = without(batch, rows)
            if not len(batch):
                return 0

    def _advance(self, stage: ChainStage, watermark: int) -> None:
        if watermark > stage.ctx.watermark:
            if stage.gathered:
                assert stage.operator is not None
                if not stage.operator.is_due(stage.ctx.watermark, watermark):
                    stage.gathered.watermark = watermark
                    return
                self._release(stage)
            self._tell_watermark(stage, watermark)
            self._pass_watermark(stage)

    def _tell_watermark(self, stage: ChainStage, watermark: int) -> None:
        stage.ctx.watermark = watermark
        if stage.operator is not None:
            self._enter(stage)
            self._fire(stage, "event", watermark)
            stage.operator.on_watermark(watermark, stage.ctx)
            self._forward_emitted(stage)
            for state in stage.expiring:
                state.sweep()

    def _pass_watermarks(self) -> None:
        for stage in self.stages.values():
            self._pass_watermark(stage)

    def _pass_watermark(self, stage: ChainStage) -> None:
        """Pass on the watermark that a stage promises, if it has advanced."""
        watermark = stage.ctx.watermark
        if stage.operator is not None and NO_WATERMARK < watermark < END_OF_TIME:
            watermark -= stage.operator.watermark_delay_us
        announces = stage.operator is not None and stage.operator.announces_watermarks
        if announces and (watermark != END_OF_TIME or stage.ctx.pending):
            if self._unfinished:
                return
            watermark = stage.ctx.announced
        if watermark <= stage.passed:
            return
        stage.passed = watermark
        for targets in stage.targets.values():
            for target in targets:
                if isinstance(target, ChainStage):
                    self._advance(target, watermark)
                else:
                    target.advance(watermark)

    def _keep_rejected(self, stage: ChainStage) -> None:
        """Dead letters wait for the checkpoint like the output of any other sink."""
        rejected = stage.ctx.take_rejected()
        if rejected and stage.dead_letters is not None:
            assert stage.dead_letters.writer is not None
            stage.dead_letters.writer.write(list(rejected))
            self.meter.lost(stage.name, dead_letters=sum(one.records for one in rejected))

    def _forward_emitted(self, stage: ChainStage) -> None:
        for output, batch, judged in stage.ctx.take_judged():
            self._forward(stage, output, batch, judged)

    def _forward(
        self, stage: ChainStage, output: str, batch: Batch, judged: RecordWatermarks | None = None
    ) -> None:
        stage.records_out += len(batch)
        if output == LATE:
            self.meter.lost(stage.name, late=len(batch))
        for target in stage.targets.get(output, ()):
            if isinstance(target, ChainStage):
                self._process(target, batch, judged)
            else:
                target.collect(batch)

    def should_checkpoint(self) -> bool | None:
        """What the operators say: one that wants a checkpoint counts before one that does not."""
        wishes: set[bool | None] = set()
        for stage in self.stages.values():
            if stage.operator is not None and decides(stage.operator):
                self._enter(stage)
                wishes.add(stage.operator.should_checkpoint(stage.ctx))
        return True if True in wishes else (False if False in wishes else None)

    # What a checkpoint saves of the operators, and which output is prepared, durable or committed.

    def prepare(self, checkpoint: int) -> dict[str, Any]:
        """Close the sinks' transactions. Returns what must be saved besides the key stores."""
        if any(stage.gathered for stage in self.gathering):
            raise InternalError("input that waits for an operator is not part of a checkpoint")
        extras: dict[str, Any] = {}
        for stage in self.stages.values():
            if stage.operator is not None:
                self._enter(stage)
                stage.ctx.checkpoint = checkpoint
                stage.operator.before_checkpoint(stage.ctx)
                if stage.ctx.take_emitted():
                    raise UserError("before_checkpoint cannot emit; emit while processing records.")
            if stage.reader is not None:
                extras[stage.name] = {"offset": stage.reader.offset}
                if stage.rest:
                    extras[stage.name]["rest"] = stage.rest.saved()
                stage.offsets.append((checkpoint, stage.reader.offset))
            elif stage.writer is not None:
                self._enter(stage)
                transaction = stage.writer.prepare(checkpoint)
                if transaction is not None:
                    stage.pending.append(transaction)
                    stage.unpersisted.append(Persisting(transaction))
                if stage.pending:
                    extras[stage.name] = {"transactions": tuple(stage.pending)}
                saved = stage.writer.saved()
                if saved is not None:
                    extras.setdefault(stage.name, {})["writer"] = saved
            if stage.name not in self.operators:
                continue
            if stage.ctx.skipped:
                extras.setdefault(stage.name, {})["skipped"] = stage.ctx.skipped
            if stage.ctx.asked_time:
                extras.setdefault(stage.name, {})["now_s"] = stage.ctx.now_s
            times = (stage.ctx.watermark, stage.ctx.announced)
            if times != (NO_WATERMARK, NO_WATERMARK):
                extras.setdefault(stage.name, {})["watermark"] = times
        return extras

    def keeping(self, extras: Mapping[str, Any]) -> list[str]:
        """The operators that would lose something without the state and these extras."""
        full = self.state.full()
        for name, extra in extras.items():
            if name != CHANNELS and extra.keys() & {"offset", "transactions"}:
                full.add(name.removesuffix(DEAD_LETTERS))
        return [name for name in self.operators if name in full]

    def unpersisted(self) -> list[Persisting]:
        for stage in self.stages.values():
            stage.unpersisted = [waiting for waiting in stage.unpersisted if not waiting.done]
        return [waiting for stage in self.stages.values() for waiting in stage.unpersisted]

    def committable(self, permit: Permit) -> list[Committable]:
        return [
            transaction
            for stage in self.stages.values()
            for transaction in stage.pending
            if transaction.checkpoint <= permit.checkpoint
        ]

    def sink_of(self, transactions: Sequence[Committable]) -> str | None:
        """The first sink that has one of these transactions."""
        wanted = {id(transaction) for transaction in transactions}
        sinks = (s.name for s in self.stages.values() if wanted & {id(t) for t in s.pending})
        return next(sinks, None)

    def mark_committed(self, permit: Permit) -> None:
        for stage in self.stages.values():
            stage.pending = [t for t in stage.pending if t.checkpoint > permit.checkpoint]
            stage.note_stable(permit.checkpoint)

    def call_hook(self, hook: str, checkpoint: int) -> None:
        """Call on_checkpoint or on_commit of every operator."""
        for stage in self.stages.values():
            if stage.operator is not None:
                self._enter(stage)
                getattr(stage.operator, hook)(checkpoint, stage.ctx)

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        return {
            name: (stage.records_in, stage.records_out)
            for name, stage in self.stages.items()
            if name in self.operators
        }

    @property
    def skipped(self) -> dict[str, int]:
        """Operator -> records skipped, for operators that skipped any."""
        return {
            name: stage.ctx.skipped
            for name, stage in self.stages.items()
            if name in self.operators and stage.ctx.skipped
        }

    def saved_names(self) -> list[str]:
        """The names under which this chain's extras are saved."""
        return [*self.operators, *(name + DEAD_LETTERS for name in self.operators)]

    # Shutdown.

    def stop(self) -> None:
        """Shut down in order: hooks first."""
        for stage in self.stages.values():
            if stage.operator is not None:
                self._enter(stage)
                stage.operator.on_stop(stage.ctx)
        self.close()

    def abandon(self) -> None:
        """Its operators release what they hold, and are gone: it is built anew, or not used again."""
        for stage in self.stages.values() if self.started else ():
            if stage.operator is not None:
                try:
                    stage.operator.on_stop(stage.ctx)
                except Exception:
                    _log.warning(
                        "on_stop of '%s' failed after a failure", stage.name, exc_info=True
                    )
        self.close()

    def close(self) -> None:
        for stage in self.stages.values():
            if stage.reader is not None:
                stage.reader.close()
            if stage.writer is not None:
                stage.writer.close()
        self.stages = {}
        self.holding, self.gathering, self.dating = [], [], []
        self.started = False

    def explain(self, error: BaseException, operator: str | None = None) -> EverstreamError:
        """The error as one that names the operator, the record and the traceback.

        operator: the one that failed, if not the one at work: output is committed in the
        background.
        """
        at_work = self.stages.get(self._at) if operator is None else None
        record = at_work.ctx.record if at_work is not None else None
        name = (operator or self._at).removesuffix(DEAD_LETTERS)
        return explained(error, self.plan.graph.nodes[name].written_as, self.shard.number, record)

    def _enter(self, stage: ChainStage) -> None:
        """This operator is at work: an error, or the end of the process, is attributed to it."""
        self._at = stage.name
        self.place[0] = stage.number
