"""Performs the instructions of a shard that need no I/O.

The runner binds the deciding `Shard` to the working `ChainStages` and outlets. Sending, uploading,
committing and loading go out through an `EngineApi`, which Spark workers implement with sockets and
threads and the simulator with virtual time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, assert_never

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.fault_points import Point
from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import NO_CHECKPOINT, ChannelId, CheckpointNumber, Generation, ShardId
from everstream.core.instructions import (
    Advance,
    Announce,
    Capture,
    Close,
    CloseCapture,
    Commit,
    Cut,
    Deliver,
    EmitMarkers,
    Finish,
    Instruction,
    LoadState,
    Produce,
    RecordArrival,
    Start,
    Tell,
)
from everstream.core.messages import (
    EVERYBODY,
    Command,
    EndLoop,
    Halt,
    Pause,
    Probe,
    Progress,
    Recover,
    Restore,
    RestoreFailed,
    Resume,
    Shutdown,
    Stable,
    StartCheckpoint,
)
from everstream.core.plan import Plan
from everstream.core.protocols.base import Queues, ShardPosition
from everstream.core.scheme import Scheme
from everstream.core.shard import Shard
from everstream.core.status import ShardStatus
from everstream.errors import CorruptObject, EnvironmentFault, EverstreamError, said
from everstream.pipeline.envelope import Envelope
from everstream.pipeline.keyed_state.backend_choice import key_group, on_disk
from everstream.pipeline.operator import decides
from everstream.pipeline.source import EndOfStream
from everstream.pipeline.times import END_OF_TIME
from everstream.pipeline.tuning import Tuning
from everstream.runtime.chain import ChainStages, Piece
from everstream.runtime.engine_api import CommitJob, EngineApi, Upload
from everstream.runtime.measuring import Alignment, NoUse, TimeUse, read_meter
from everstream.runtime.outlets import make_outlets
from everstream.runtime.pace import UNLIMITED, Pace
from everstream.runtime.sent_frames import SentFrames
from everstream.runtime.snapshots import Snapshots
from everstream.runtime.spilled import SpillSpace
from everstream.state.backends.disk import DiskSpace
from everstream.state.snapshot import ShardState
from everstream.state.store import ObjectRef


class ShardRunner:
    """One shard: decides, works, and reaches everything else through its engine."""

    def __init__(
        self,
        plan: Plan,
        id: ShardId,
        scheme: Scheme,
        engine: EngineApi,
        pace: Pace | None = None,
        *,
        recovers: bool = True,
        measures: bool = True,
        completes: bool = False,
        latency_s: float = 0.0,
    ) -> None:
        """recovers: its sinks recover their output when it restores; otherwise the driver has done
        it.

        measures: it reports its measurements. completes: what operators wait for belongs to the epoch in
        which they were given it. latency_s: how long records may wait at a source for others.
        """
        inputs, outputs = plan.inputs[id], plan.outputs[id]
        self.cycle = plan.cycle_of(id)
        self._cycle_number = plan.cycles.index(self.cycle) if self.cycle else None
        self._everybody = frozenset(plan.shards)
        operators = plan.chains[id.operator].operators
        ordered = any(plan.graph.nodes[name].ordered for name in operators)
        cuts = plan.may_cut(id)
        self.shard = Shard(
            id,
            inputs,
            outputs,
            scheme.protocol(ShardPosition(id, tuple(inputs), tuple(outputs), self.cycle)),
            operators=operators,
            ordered=ordered,
            feedback=[channel for channel in inputs if plan.feedback(channel)],
            gaps=scheme.log == "memory",
            cuts=cuts and not plan.in_order(id),
        )
        self.pace = (pace or Pace()) if cuts else Pace(0.0)
        """How many records a step has."""
        self._wishes = cuts
        self.sent = SentFrames(plan, id, scheme, engine)
        self.sides = {channel: plan.graph.edges[channel.edge].side for channel in inputs}
        self.engine = engine
        self.spill = SpillSpace(engine.scratch, engine.load, f"shard {id}")
        self.outlets = make_outlets(plan, self.shard, engine.send, self.sent.append, self.spill)
        for outlet in self.outlets.values():
            outlet.reset()
        state = ShardState(
            DiskSpace(f"{engine.scratch}/{id.operator}-{id.number}", key_group, on_disk(plan.graph))
        )
        self.chain = ChainStages(
            plan,
            id,
            self.outlets,
            state,
            engine.wall_s,
            engine.clock_s,
            recovers=recovers,
            times=measures,
            services=engine.services,
            envelope=self._envelope,
            latency_s=latency_s if self._may_gather() else 0.0,
        )
        self._completes = completes
        self._latency_s = latency_s
        self._next_read_s = 0.0
        """A source that had no more than it gave is asked again at this time."""
        self._handed_over = NO_CHECKPOINT
        self._snapshots = Snapshots(
            inputs, self.chain, state, self.outlets, self.sent, engine, self.spill
        )
        self.ready_at_s = 0.0
        """A source that had no records is not asked again before this time."""
        self.least_time_us = END_OF_TIME
        """The event time of the slowest of all aligned sources."""
        self._source_over = False
        """Its source has ended, and what operators still wait for has not come."""
        self.caught_up = False
        """Its source has emitted all that existed at the start, in a run that ends then."""
        self.processed = 0
        """Records that reached this shard in this process: the count for `--kill ...@10000`."""
        self.dropped = 0
        """Frames of zombies that were dropped."""
        self.use = TimeUse() if measures else NoUse()
        self._measures = measures
        self._asks_operators = any(decides(plan.graph.nodes[name].what) for name in operators)
        self._wish: bool | None = None
        """What the operators say about a checkpoint."""
        self.took_s = 0.0
        """The last step."""
        self._alignment = Alignment()
        self._untold: Tuning | None = None
        """Settings that have not been passed to the operators."""
        self._end_unsaved = False
        """All input has ended, and the last checkpoint has not been taken."""

    def _may_gather(self) -> bool:
        """Whether input may wait for operators: its output is never made again from a log."""
        return self.sent.log is None and not any(o.one_frame for o in self.outlets.values())

    # Commands of the coordinator.

    def on_command(self, command: Command) -> None:
        """Obey. Commands for the worker as a whole are left to the worker."""
        match command:
            case Restore():
                self._perform(self.shard.on_restore(command))
            case Halt(generation=generation, shards=shards):
                if self.shard.id in shards:
                    self._perform(self.shard.on_halt(generation))
            case Recover():
                self._on_recover(command)
            case Resume():
                self._on_resume(command)
            case Pause():
                self._release()
                self.shard.on_pause()
            case Probe():
                self._release()
                self._on_probe(command)
            case EndLoop(cycle=cycle):
                if cycle == self._cycle_number:
                    self._perform(self.shard.on_loop_ended())
            case StartCheckpoint():
                self._release()
                self._perform(self.shard.on_start_checkpoint(command))
            case Stable():
                self._on_stable(command)
            case Shutdown():
                self._perform(self.shard.on_shutdown())
            case _:
                assert_never(command)

    def _release(self) -> None:
        """Nothing may wait in front of an operator when the shard's position is looked at."""
        if self.chain.gathering and self.shard.works:
            self._guarded(self._outside_step, self.chain.release)

    def _on_recover(self, command: Recover) -> None:
        if command.generation <= self.shard.generation:
            return
        self.sent.ask(command)
        instructions = self.shard.on_recover(command)
        try:
            if self.shard.id not in command.records:
                # Also if its log cannot be read: nothing reaches shards that roll back before they
                # are ready.
                self._perform([one for one in instructions if isinstance(one, Cut)])
                instructions = [one for one in instructions if not isinstance(one, Cut)]
                self.sent.find()
            self._perform(instructions)
        except CorruptObject as error:
            self.engine.tell(RestoreFailed(self.shard.id, command.generation, str(error)))
        except BaseException as error:  # see `_guarded`
            self._perform(self.shard.on_failure(self.chain.explain(error)))

    def _on_resume(self, command: Resume) -> None:
        if self.shard.status is ShardStatus.NEW:
            return  # it was meant for the process before this one
        self._guarded(self._open_again)
        self._perform(self.shard.on_resume(command.generation))
        for frame in self.shard.take_early():
            self._perform(self.shard.on_frame(frame))
        for outlet in self.outlets.values():
            self._guarded(outlet.pump)
        self._save_the_end()

    def _on_probe(self, command: Probe) -> None:
        """Report whether anything is left to do here, to the other shards of the cycle."""
        cycle = self._everybody if command.cycle == EVERYBODY else self.cycle
        if command.cycle in (EVERYBODY, self._cycle_number):
            waits = not all(outlet.idle for outlet in self.outlets.values())
            waits |= self.chain.pending > 0
            if command.cycle != EVERYBODY:  # then it is paused, and emits nothing
                waits |= self.chain.started and bool(self.chain.head.rest)
            self.engine.tell(self.shard.census(command, cycle, waits))

    def _on_stable(self, command: Stable) -> None:
        self.sent.prune(command.received)
        if command.every_s is not None:
            self.shard.on_interval(command.every_s)
        numbers = command.numbers
        number = numbers[self.shard.id] if numbers else CheckpointNumber(command.epoch)
        self._perform(self.shard.on_stable(number))

    # Everything else that happens to a shard.

    def on_tick(self, now_s: float) -> None:
        # A shard's timer waits for its last capture: another would hold all of the state again.
        if not self._snapshots.saving:
            if self._asks_operators and self.shard.works:
                self._guarded(self._ask_operators)
            wish, self._wish = self._wish, None
            self._perform(self.shard.on_tick(now_s, wish))

    def _ask_operators(self) -> None:
        self._wish = self.chain.should_checkpoint()

    def on_frame(self, frame: Frame) -> None:
        if not self.shard.accepts(frame):
            self.dropped += 1
            self.chain.meter.suppressed += frame.records
            return
        self._perform(self.shard.on_frame(frame))
        if frame.kind is FrameKind.MARKER:
            self._alignment.came = True
            if self.shard.awaits_markers:
                self._alignment.look(True, self.engine.clock_s())

    def on_grant(
        self, channel: ChannelId, generation: Generation, frames: int, most: int = 0
    ) -> None:
        if generation == self.shard.generation_of(channel):
            outlet = self.outlets[channel.edge]
            outlet.grant(channel, frames)
            outlet.wish(channel, most)
            if self.sent.log is not None and self.shard.status is ShardStatus.STOPPED:
                return  # the queue is in its last checkpoint, and is sent after a restore
            self._guarded(outlet.pump)
            self._save_the_end()

    def on_uploaded(self, upload: Upload, ref: ObjectRef, upload_s: float) -> None:
        if upload.generation != self.shard.generation:
            return
        self.engine.reached(self.shard.id, Point.AFTER_SNAPSHOT)
        if upload.transactions:
            self.engine.reached(self.shard.id, Point.AFTER_PREPARE)
        record = self._snapshots.saved(upload, ref, upload_s)
        self._perform(self.shard.on_durable(upload.generation, record))

    def on_upload_failed(self, upload: Upload, error: BaseException) -> None:
        """An upload failed. Without room or connection we continue; anything else is an error."""
        if upload.generation != self.shard.generation:
            return
        if isinstance(error, EnvironmentFault | OSError):
            self._snapshots.lost(upload)
            self._perform(
                self.shard.on_upload_failed(upload.generation, upload.record, said(error))
            )
        else:
            sink = self.chain.sink_of([waiting.transaction for waiting in upload.transactions])
            self._perform(self.shard.on_failure(self.chain.explain(error, sink)))

    def on_commit_done(self, job: CommitJob) -> None:
        if job.generation == self.shard.generation:
            self.chain.meter.commits += len(job.transactions)
            if job.transactions:
                self.engine.reached(self.shard.id, Point.AFTER_COMMIT)
            self.chain.mark_committed(job.permit)
            number = CheckpointNumber(job.permit.checkpoint)
            self._guarded(self.chain.call_hook, "on_commit", number)
            self._perform(self.shard.on_committed(job.generation, number))

    def on_commit_failed(self, job: CommitJob, error: BaseException) -> None:
        if job.generation == self.shard.generation:
            sink = self.chain.sink_of(job.transactions)
            self._perform(self.shard.on_failure(self.chain.explain(error, sink)))

    def fail(self, error: EverstreamError) -> None:
        """The engine cannot continue with this shard; a retry would fail in the same way."""
        error.will_recur = True
        self._perform(self.shard.on_failure(error))

    # Work.

    def step(self) -> bool:
        """Do the next piece of work; False if there was none."""
        began_s = self.engine.clock_s()
        stepped = self._step()
        ended_s = self.engine.clock_s()
        self.took_s = ended_s - began_s
        if stepped:
            self.use.stepped(began_s, ended_s)
        else:
            self.use.rests(began_s, blocked=False)
        if self._alignment.came:
            self._alignment.look(self.shard.awaits_markers, ended_s)
        return stepped

    def _step(self) -> bool:
        if self._untold is not None:
            tuning, self._untold = self._untold, None
            self._guarded(self._outside_step, self.chain.tune, tuning)
            return True
        if self.chain.answers_in_s <= 0:
            self._guarded(self._outside_step, self.chain.take_answers)
            return True
        if self._timer_due():
            self._guarded(self._outside_step, self.chain.call_timers, self.chain.now_s())
            return True
        if self.chain.holding:
            instructions = self._next_while_holding()
        else:
            instructions = self.shard.step(self._most())
        self._perform(instructions)
        return bool(instructions)

    def _next_while_holding(self) -> list[Instruction]:
        """As much as there is room for; the input does not end before all answers are there."""
        pending, room = self.chain.pending > 0, self.chain.room
        if self._source_over:
            return [] if pending else self.shard.on_source_ended()
        most = self._most() if room > 0 else 0
        if self._wishes:
            most = min(most, room)
        return self.shard.step(most, markers=not (pending and self._completes), ends=not pending)

    @property
    def waits_for_answers(self) -> bool:
        """Whether operators wait for something outside, and nothing has failed."""
        return self.shard.works and self.chain.pending > 0

    @property
    def saving(self) -> bool:
        """Whether a large capture is incomplete: call `save_slice` between steps or while idle."""
        return self._snapshots.saving and self.shard.status is not ShardStatus.FAILED

    def save_slice(self) -> None:
        """Save some more of the captured state, for some milliseconds."""
        self._guarded(self._snapshots.save_slice)
        self._upload()

    def on_tune(self, tuning: Tuning) -> None:
        """Settings have changed: they apply from the next step, also for a source that waits."""
        self._untold = tuning
        self.ready_at_s = 0.0

    def on_least_time(self, least_us: int) -> None:
        """The slowest of all aligned sources has reached this event time: read on, if that is enough."""
        self.least_time_us = least_us
        if not self.caught_up:
            self.ready_at_s = 0.0

    def progress(self) -> Progress:
        ended = self.shard.status in (ShardStatus.ENDED, ShardStatus.CLOSED)
        return Progress(
            self.shard.id,
            self.shard.generation,
            self.chain.counts,
            ended,
            self.shard.lost_frames,
            read_meter(self) if self._measures else None,
            self.shard.last_number,
            self._handed_over,
            self.caught_up,
        )

    # Instructions.

    def _perform(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Deliver(frame=frame, records=records, watermark=watermark):
                    self._guarded(self._deliver, frame, records, watermark)
                case Advance(watermark=watermark):
                    self._guarded(self._outside_step, self.chain.advance, watermark)
                case Produce(most=most):
                    self._guarded(self._produce, most)
                case Tell(report=report):
                    self.engine.tell(report)
                case Capture(record=record, queues=queues):
                    self._guarded(self._capture, record, queues)
                case RecordArrival(frame=frame):
                    self._guarded(self._snapshots.add, frame)
                case CloseCapture():
                    self._snapshots.close(self._alignment.over(self.engine.clock_s()))
                    self._upload()
                case EmitMarkers(epoch=epoch, overtaking=overtaking):
                    for outlet in self.outlets.values():
                        self._guarded(outlet.marker, epoch, overtaking)
                case Cut(channels=channels):
                    for channel in channels:
                        self.outlets[channel.edge].cut(channel)
                case Commit(permit=permit):
                    waiting = self.chain.committable(permit)
                    job = CommitJob(self.shard.id, self.shard.generation, permit, waiting)
                    self.engine.commit(job)
                case Announce(number=number):
                    self._guarded(self.chain.call_hook, "on_checkpoint", number)
                case LoadState():
                    self._load(instruction)
                case Start():
                    self._guarded(self._outside_step, self.chain.start)
                case Finish():
                    self._guarded(self._finish)
                case Close():
                    self._guarded(self._close)
                case _:
                    assert_never(instruction)
            if self.shard.status is ShardStatus.FAILED:
                return

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """User code runs in here: an error ends this shard, not the worker."""
        try:
            work(*arguments)
        except BaseException as error:  # it may even exit, or cancel itself
            self._perform(self.shard.on_failure(self.chain.explain(error)))

    def _finish(self) -> None:
        self.chain.finish()
        self.shard.born_s = self.chain.moment.born_s
        for outlet in self.outlets.values():
            outlet.flush_outside_step()
            outlet.end()
        self._end_unsaved = True
        self._save_the_end()

    def _close(self) -> None:
        for outlet in self.outlets.values():
            outlet.reset()
        self.chain.stop()

    def _save_the_end(self) -> None:
        """Take the last checkpoint once nothing waits that would be sent after it.

        No other checkpoint could ever agree with an earlier one, because this shard takes no more.
        Without a log that does not matter, because all shards roll back together.
        """
        waits = self.sent.log is not None and not all(o.idle for o in self.outlets.values())
        if self._end_unsaved and not waits:
            self._end_unsaved = False
            self._perform(self.shard.on_finished())

    def _capture(self, record: CheckpointRecord, queues: Queues) -> None:
        self.engine.reached(self.shard.id, Point.BEFORE_SNAPSHOT)
        aligned_s = self._alignment.over(self.engine.clock_s())
        if queues != "both":  # that one stays open until the last marker
            record = replace(record, aligned_s=aligned_s)
        self._snapshots.take(record, queues, self.shard.generation, self.shard.waiting())
        self._upload()

    def _upload(self) -> None:
        for upload in self._snapshots.ready():
            self._handed_over = upload.record.number
            self.engine.upload(upload)

    def _open_again(self) -> None:
        """All shards are ready: send those that rolled back the frames they have not received."""
        for channel, again in self.sent.asked():
            self.chain.meter.replayed += sum(frame.records for frame in again)
            self.outlets[channel.edge].open(channel, again)

    def _load(self, order: LoadState) -> None:
        began_s = self.engine.clock_s()
        self.ready_at_s, self.caught_up = 0.0, False
        self._source_over = self._end_unsaved = False
        self._alignment = Alignment()
        try:
            waiting = self._snapshots.restore(order)
        except CorruptObject as error:
            self._perform(self.shard.on_load_failed(order.generation, str(error)))
        except BaseException as error:  # see `_guarded`
            self._perform(self.shard.on_failure(self.chain.explain(error)))
        else:
            if order.records:
                self.engine.reached(self.shard.id, Point.IN_RESTORE)
            restore_s = self.engine.clock_s() - began_s
            self._perform(self.shard.on_loaded(order.generation, restore_s, waiting))

    # Steps: a frame or a part of one, a batch of a source, a timer. Each goes through the chain, and its
    # output leaves through the outlets with the ordinal of the step.

    def can_step(self, now_s: float) -> bool:
        """There may be work, and room for its output."""
        return self._is_ready(now_s) and self._has_room()

    def may_step(self, now_s: float) -> bool:
        """The same; if it cannot step, the reason is recorded."""
        if not self._is_ready(now_s):
            self.use.rests(now_s, blocked=False)
        elif not self._has_room():
            self.use.rests(now_s, blocked=True)
        else:
            return True
        return False

    def _is_ready(self, now_s: float) -> bool:
        if not self.shard.works:
            return False
        if self.shard.paused and self.chain.head.reader is not None:
            # Records that it has read and not emitted are part of its checkpoint.
            return self.chain.answers_in_s <= 0
        return now_s >= self.ready_at_s or self._timer_due() or self.chain.answers_in_s <= 0

    def _has_room(self) -> bool:
        return all(outlet.idle or outlet.feedback for outlet in self.outlets.values())

    def timer_in_s(self) -> float:
        """The time until the next operator wants to be called; infinite if none does."""
        timer_at_s, answers_in_s = self.chain.timer_at_s, self.chain.answers_in_s
        if timer_at_s == math.inf == answers_in_s or not (self.shard.works and self._has_room()):
            return math.inf
        if timer_at_s == math.inf or self.shard.paused:
            return answers_in_s
        return min(timer_at_s - self.chain.now_s(), answers_in_s)

    # Sizes.

    def _most(self) -> int:
        """Records the next step may have: for its own sake, and for downstream shards."""
        if not self._wishes:
            return UNLIMITED
        return self._for_those_behind(self.pace.take())

    def _wished(self) -> int:
        """The size of frames this shard wants; 0 for any size."""
        if not self._wishes:
            return 0
        wished = self._for_those_behind(self.pace.fits)
        return wished if wished < UNLIMITED else 0

    def _for_those_behind(self, most: int) -> int:
        """This many records, or fewer if a downstream shard wants fewer."""
        for outlet in self.outlets.values():
            if outlet.most < most:
                most = outlet.most
        return most

    def _deliver(self, frame: Frame, records: int, watermark: int | None) -> None:
        began_s = self.engine.clock_s()
        self.processed += records
        last = frame.start + records == frame.records
        self.chain.moment.born_s = frame.born_s
        if frame.payload is not None:
            batch = frame.payload.batch
            if records < frame.records:
                batch = batch[frame.start : frame.start + records]
            self.chain.piece = (frame.channel, records)
            self.chain.process(batch, self.sides[frame.channel], last=last)
            self.chain.piece = None
            self.shard.deliveries.done()
        if watermark is not None:
            # Windows that end here cost the same, however few records come with the watermark.
            advancing_s = self.engine.clock_s()
            self.chain.advance(watermark)
            began_s += self.engine.clock_s() - advancing_s
        self._flush(frame.number, records)
        self.pace.note(records, self.engine.clock_s() - began_s)
        if not last:
            self.shard.on_cut(frame, records)
        elif frame.sequence:
            self.engine.grant(frame.channel, 1, self._wished())

    def _envelope(self, piece: Piece, index: int | None) -> Envelope:
        """Of a record of the piece that the chain is processing; index None: of the whole piece."""
        (channel, records), deliveries = piece, self.shard.deliveries
        first = deliveries.given(channel) - records
        position = first + (index or 0)
        reprocessed = deliveries.once_given(channel, position)
        if index is None and deliveries.once_given(channel, first + records - 1) != reprocessed:
            reprocessed = None
        sender = self.shard.id if channel is None else channel.sender
        epoch = int(self.shard.last_number)
        return Envelope(str(sender), position, epoch, deliveries.attempt, reprocessed)

    def _timer_due(self) -> bool:
        timer_at_s = self.chain.timer_at_s
        due = timer_at_s != math.inf and timer_at_s <= self.chain.now_s()
        return due and not self.shard.paused

    def _produce(self, most: int) -> None:
        rest = self.chain.head.rest
        if rest or self._read():
            began_s = self.engine.clock_s()
            start = rest.start
            part = rest.take(most)
            self.sent.before_forwarding(start, len(part))
            self.shard.deliveries.emit(len(part))
            self.chain.piece = (None, len(part))
            self.chain.forward(part, last=not rest)
            self.shard.deliveries.done()
            self.processed += len(part)
            self._flush(self.shard.next_ordinal(), len(part))
            self.pace.note(len(part), self.engine.clock_s() - began_s)
            if not rest:
                self.ready_at_s = self._next_read_s

    def _read(self) -> bool:
        """Whether the source had a batch."""
        head = self.chain.head
        assert head.reader is not None
        if self.least_time_us < END_OF_TIME and self.chain.is_ahead(self.least_time_us):
            self.ready_at_s = math.inf
            return False
        self.sent.before_reading(head.reader)
        batch = self.chain.read()
        if batch is None:
            self.ready_at_s = self.engine.clock_s() + head.reader.ready_in_s()
            if self.chain.advance_source():
                self._flush_outside_step()
        elif isinstance(batch, EndOfStream) and self.chain.catches_up:
            self.caught_up, self.ready_at_s = True, math.inf
            if self.chain.advance_source():
                self._flush_outside_step()
        elif isinstance(batch, EndOfStream) and self.chain.pending:
            self._source_over = True
        elif isinstance(batch, EndOfStream):
            self._perform(self.shard.on_source_ended())
        else:
            head.rest.fill(batch)
            if self._latency_s and head.reader.drained():
                self._next_read_s = self.engine.clock_s() + self._latency_s
            return True
        return False

    def _outside_step(self, work: Callable[..., None], *arguments: Any) -> None:
        work(*arguments)
        self._flush_outside_step()

    # Output.

    def _flush(self, ordinal: int, records: int) -> None:
        """A step of `records` records is over: its output leaves as frames with this ordinal."""
        self.shard.born_s = self.chain.moment.born_s
        for outlet in self.outlets.values():
            outlet.flush(ordinal, records)

    def _flush_outside_step(self) -> None:
        self.shard.born_s = self.chain.moment.born_s
        for outlet in self.outlets.values():
            outlet.flush_outside_step()
