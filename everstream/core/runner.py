"""Performs a shard's instructions: everything that needs no I/O of its own.

The runner binds the deciding `Shard` to the working `ChainStages` and outlets. Sending,
uploading, committing and loading go out through a `Port`, which Spark hosts fill with sockets
and threads and the simulator with virtual time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from everstream.core.chain import ChainStages
from everstream.core.channel_state import CHANNELS, ChannelState
from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, Epoch, Generation, ShardId
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
from everstream.core.jobs import CommitJob, Port, Upload
from everstream.core.message_log import LogSegment
from everstream.core.messages import (
    Census,
    CheckpointRecord,
    EndLoop,
    Halt,
    Probe,
    Progress,
    Recover,
    Restore,
    RestoreFailed,
    Resume,
    Stable,
    StartCheckpoint,
)
from everstream.core.outlet import make_outlets
from everstream.core.plan import Plan
from everstream.core.points import Point
from everstream.core.protocols.base import Place, Queues
from everstream.core.resending import Resender
from everstream.core.restoring import load_state
from everstream.core.scheme import Scheme
from everstream.core.shard import Shard
from everstream.core.status import Status
from everstream.errors import CorruptObject, EnvironmentFault
from everstream.pipeline.sink import Permit
from everstream.pipeline.source import EndOfStream
from everstream.state.snapshot import ShardState
from everstream.state.store import ObjectRef


class ShardRunner:
    """One shard: decides, works, and talks to the rest of the world through its port."""

    def __init__(self, plan: Plan, id: ShardId, scheme: Scheme, port: Port) -> None:
        inputs, outputs = plan.inputs[id], plan.outputs[id]
        self.cycle = plan.cycle_of(id)
        self._cycle_number = plan.cycles.index(self.cycle) if self.cycle else None
        operators = plan.chains[id.operator].operators
        ordered = any(plan.graph.nodes[name].ordered for name in operators)
        self.shard = Shard(
            id,
            inputs,
            outputs,
            scheme.protocol(Place(id, tuple(inputs), tuple(outputs), self.cycle)),
            operators=operators,
            ordered=ordered,
            feedback=[channel for channel in inputs if plan.feedback(channel)],
            gaps=scheme.log == "memory",
        )
        self.sent = Resender(plan, id, scheme, port)
        self.sides = {channel: plan.graph.edges[channel.edge].side for channel in inputs}
        self.port = port
        self.state = ShardState()
        self.outlets = make_outlets(plan, self.shard, port.send, self.sent.append)
        for outlet in self.outlets.values():
            outlet.reset()
        self.chain = ChainStages(plan, id, self.outlets, self.state, port.wall_s)
        self.ready_at_s = 0.0
        """A source that had nothing to give is not asked again before this time."""
        self.processed = 0
        """Records that reached this shard in this process: what `--kill ...@10000` counts."""
        self.dropped = 0
        """Frames of zombies that were dropped."""
        self._end_unsaved = False
        """All input has ended, and the last checkpoint has not been taken."""
        self._open: tuple[Upload, ChannelState] | None = None
        """A checkpoint that waits for frames that belong to it."""

    # Events.

    def on_restore(self, command: Restore) -> None:
        self._perform(self.shard.on_restore(command))

    def on_halt(self, command: Halt) -> None:
        if self.shard.id in command.shards:
            self._perform(self.shard.on_halt(command.generation))

    def on_recover(self, command: Recover) -> None:
        if command.generation <= self.shard.generation:
            return
        self.sent.ask(command)
        instructions = self.shard.on_recover(command)
        try:
            if self.shard.id not in command.records:
                self.sent.find()
            self._perform(instructions)
        except CorruptObject as error:
            self.port.tell(RestoreFailed(self.shard.id, command.generation, str(error)))

    def on_resume(self, command: Resume) -> None:
        self._guarded(self._open_again)
        self._perform(self.shard.on_resume(command.generation))
        for frame in self.shard.take_early():
            self._perform(self.shard.on_frame(frame))
        for outlet in self.outlets.values():
            self._guarded(outlet.pump)
        self._save_the_end()

    def on_probe(self, command: Probe) -> None:
        """Is anything left to do here, seen from the other shards of the cycle?"""
        if command.cycle != self._cycle_number:
            return
        shard = self.shard
        inside = set(self.cycle)
        busy = any(shard.inboxes.values()) or not all(o.idle for o in self.outlets.values())
        fed = [c for c in shard.inputs if c.sender not in inside and c not in shard.ended]
        passive = not busy and not fed and shard.status in (Status.RUNNING, Status.ENDED)
        sent = sum(n for channel, n in shard.sent.items() if channel.receiver in inside)
        received = sum(n for channel, n in shard.received.items() if channel.sender in inside)
        self.port.tell(Census(shard.id, shard.generation, command.round, passive, sent, received))

    def on_end_loop(self, command: EndLoop) -> None:
        if command.cycle == self._cycle_number:
            self._perform(self.shard.on_loop_ended())

    def on_tick(self, now_s: float) -> None:
        self._perform(self.shard.on_tick(now_s))

    def on_frame(self, frame: Frame) -> None:
        if self.shard.accepts(frame):
            self._perform(self.shard.on_frame(frame))
        else:
            self.dropped += 1

    def on_grant(self, channel: ChannelId, generation: Generation, frames: int) -> None:
        if generation == self.shard.channel_generation[channel]:
            outlet = self.outlets[channel.edge]
            outlet.grant(channel, frames)
            if self.sent.log is not None and self.shard.status is Status.STOPPED:
                return  # what waits is in the checkpoint it stopped with; sending it is for later
            self._guarded(outlet.pump)
            self._save_the_end()

    def on_start_checkpoint(self, command: StartCheckpoint) -> None:
        self._perform(self.shard.on_start_checkpoint(command))

    def on_stable(self, command: Stable) -> None:
        self.sent.prune(command.received)
        numbers = command.numbers
        self._perform(
            self.shard.on_stable(command.epoch if numbers is None else numbers[self.shard.id])
        )

    def on_shutdown(self) -> None:
        self._perform(self.shard.on_shutdown())

    def on_uploaded(self, upload: Upload, ref: ObjectRef, upload_s: float) -> None:
        """An upload has become durable."""
        if upload.generation != self.shard.generation:
            return
        self.port.reached(self.shard.id, Point.AFTER_SNAPSHOT)
        if upload.transactions:
            self.port.reached(self.shard.id, Point.AFTER_PREPARE)
        chain = self.state.mark_durable(upload.capture, ref)
        self.chain.mark_persisted(upload.transactions)
        record = replace(
            upload.record,
            objects=chain,
            log=tuple(LogSegment(s.ref, s.last) for s in upload.segments if s.ref is not None),
            upload_s=upload_s,
            size_bytes=ref.size_bytes,
        )
        self._perform(self.shard.on_durable(upload.generation, record))

    def on_upload_failed(self, upload: Upload, error: Exception) -> None:
        """An upload failed: without room or connection we go on; anything else is an error."""
        if upload.generation != self.shard.generation:
            return
        if isinstance(error, EnvironmentFault | OSError):
            self.state.mark_failed(upload.capture)
            self._perform(self.shard.on_upload_failed(upload.generation, upload.record, str(error)))
        else:
            self._perform(self.shard.on_failure(self.chain.explain(error)))

    def on_commit_done(self, job: CommitJob) -> None:
        if job.generation == self.shard.generation:
            if job.transactions:
                self.port.reached(self.shard.id, Point.AFTER_COMMIT)
            self.chain.mark_committed(job.permit)
            epoch = Epoch(job.permit.checkpoint)
            self._guarded(self.chain.call_hook, "on_commit", epoch)
            self._perform(self.shard.on_committed(job.generation, epoch))

    def on_commit_failed(self, job: CommitJob, error: Exception) -> None:
        if job.generation == self.shard.generation:
            self._perform(self.shard.on_failure(self.chain.explain(error)))

    # Work.

    def can_step(self, now_s: float) -> bool:
        """There may be work, and room for its output."""
        return (
            self.shard.status is Status.RUNNING
            and (now_s >= self.ready_at_s or self._timer_due())
            and not self.shard.halted
            and all(outlet.idle or outlet.feedback for outlet in self.outlets.values())
        )

    def step(self) -> bool:
        """Do the next piece of work; False if there was none."""
        if self._timer_due():
            self._guarded(self._call_timers)
            return True
        instructions = self.shard.step()
        self._perform(instructions)
        return bool(instructions)

    def timer_in_s(self) -> float:
        """How long until an operator can be called that wants to be; for ever if none does."""
        timer_at_s = self.chain.timer_at_s
        if timer_at_s == math.inf or not self.can_step(math.inf):
            return math.inf
        return timer_at_s - self.port.wall_s()

    def progress(self) -> Progress:
        ended = self.shard.status in (Status.ENDED, Status.CLOSED)
        lost = self.shard.lost_frames
        return Progress(self.shard.id, self.shard.generation, self.chain.counts, ended, lost)

    # Instructions.

    def _perform(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Deliver(frame=frame, watermark=watermark):
                    self._guarded(self._deliver, frame, watermark)
                case Advance(watermark=watermark):
                    self._guarded(self._advance, watermark)
                case Produce():
                    self._guarded(self._produce)
                case Tell(report=report):
                    self.port.tell(report)
                case Capture(record=record, queues=queues):
                    self._guarded(self._capture, record, queues)
                case RecordArrival(frame=frame):
                    assert self._open is not None
                    self._open[1].add(frame)
                case CloseCapture():
                    assert self._open is not None
                    (upload, _), self._open = self._open, None
                    self.port.upload(upload)
                case EmitMarkers(number=number, overtaking=overtaking):
                    for outlet in self.outlets.values():
                        self._guarded(outlet.marker, number, overtaking)
                case Cut(channels=channels):
                    for channel in channels:
                        self.outlets[channel.edge].cut(channel)
                case Commit(permit=permit):
                    self._commit(permit)
                case Announce(number=number):
                    self._guarded(self.chain.call_hook, "on_checkpoint", number)
                case LoadState():
                    self._load(instruction)
                case Start():
                    self._guarded(self._start)
                case Finish():
                    self._guarded(self._finish)
                case Close():
                    self._guarded(self.chain.stop)
            if self.shard.status is Status.FAILED:
                return

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """User code runs in here: what it raises ends this shard, not the host."""
        try:
            work(*arguments)
        except Exception as error:
            self._perform(self.shard.on_failure(self.chain.explain(error)))

    def _deliver(self, frame: Frame, watermark: int | None) -> None:
        self.processed += frame.records
        if frame.payload is not None:
            self.chain.process(frame.payload.batch, self.sides[frame.channel])
        if watermark is not None:
            self.chain.advance(watermark)
        self._flush(frame.number)
        if frame.sequence:
            self.port.grant(frame.channel, 1)

    def _advance(self, watermark: int) -> None:
        self.chain.advance(watermark)
        self._flush_outside_step()

    def _timer_due(self) -> bool:
        timer_at_s = self.chain.timer_at_s
        return timer_at_s != math.inf and timer_at_s <= self.port.wall_s()

    def _call_timers(self) -> None:
        self.chain.call_timers(self.port.wall_s())
        self._flush_outside_step()

    def _produce(self) -> None:
        reader = self.chain.head.reader
        assert reader is not None
        self.sent.before_reading(reader)
        read = self.chain.read()
        if read is None:
            self.ready_at_s = self.port.clock_s() + reader.ready_in_s()
        elif isinstance(read, EndOfStream):
            self._perform(self.shard.on_source_ended())
        else:
            self.processed += read
            self._flush(self.shard.ordinal)
            self.shard.ordinal += 1

    def _start(self) -> None:
        self.chain.start()
        self._flush_outside_step()

    def _finish(self) -> None:
        self.chain.finish()
        for outlet in self.outlets.values():
            outlet.flush_outside_step()
            outlet.end()
        self._end_unsaved = True
        self._save_the_end()

    def _save_the_end(self) -> None:
        """Take the last checkpoint once nothing waits that would be sent after it.

        Nobody else's checkpoint could ever agree with one from before: this shard takes no more.
        Without a log that does not matter, because everybody goes back together.
        """
        waits = self.sent.log is not None and not all(o.idle for o in self.outlets.values())
        if self._end_unsaved and not waits:
            self._end_unsaved = False
            self._perform(self.shard.on_finished())

    def _flush(self, ordinal: int) -> None:
        """A step is over: its output leaves as frames with this ordinal."""
        for outlet in self.outlets.values():
            outlet.flush(ordinal)

    def _flush_outside_step(self) -> None:
        for outlet in self.outlets.values():
            outlet.flush_outside_step()

    def _capture(self, record: CheckpointRecord, queues: Queues) -> None:
        self.port.reached(self.shard.id, Point.BEFORE_SNAPSHOT)
        began_s = self.port.clock_s()
        if self._open is not None:
            # Its epoch was given up, otherwise no other would have begun.
            self.state.mark_failed(self._open[0].capture)
            self._open = None
        extras = self.chain.prepare(record.number)
        channels = ChannelState()
        if queues != "none":
            channels.outputs = {n: o.queued() for n, o in self.outlets.items() if not o.idle}
        if queues == "both":
            for inbox in self.shard.inboxes.values():
                for frame in inbox:
                    channels.add(frame)
        if channels or queues == "both":
            extras[CHANNELS] = channels
        capture = self.state.capture(extras)
        record = replace(
            record,
            counts=self.chain.counts,
            skipped=self.chain.skipped,
            holds_frames=queues != "none",
            capture_s=self.port.clock_s() - began_s,
        )
        upload = Upload(
            self.shard.id,
            self.shard.generation,
            record,
            capture,
            self.chain.unpersisted(),
            self.sent.seal(),
        )
        if queues == "both":
            self._open = (upload, channels)
        else:
            self.port.upload(upload)

    def _open_again(self) -> None:
        """Everybody is back: send those who have gone back what they have not seen."""
        for channel, again in self.sent.asked():
            self.outlets[channel.edge].open(channel, again)

    def _commit(self, permit: Permit) -> None:
        self.port.commit(
            CommitJob(
                self.shard.id,
                self.shard.generation,
                permit,
                self.chain.committable(permit),
            )
        )

    def _load(self, order: LoadState) -> None:
        began_s = self.port.clock_s()
        self.ready_at_s = 0.0
        self._open = None
        self._end_unsaved = False
        for outlet in self.outlets.values():
            outlet.reset()
        try:
            extras = load_state(self.state, self.chain, order.records, self.port.load)
            channels: ChannelState = extras.pop(CHANNELS, ChannelState())
            for number, saved in channels.outputs.items():
                self.outlets[number].requeue(saved)
            record = order.records[0] if order.records else None
            self.sent.restore(order.generation, record, self.outlets)
            self.sent.find()
            counts = {name: pair for r in order.records for name, pair in r.counts.items()}
            self.chain.build(extras, counts, order.generation, self.port.store_url, order.permit)
        except CorruptObject as error:
            self._perform(self.shard.on_load_failed(order.generation, str(error)))
        except Exception as error:
            self._perform(self.shard.on_failure(self.chain.explain(error)))
        else:
            if order.records:
                self.port.reached(self.shard.id, Point.IN_RESTORE)
            restore_s = self.port.clock_s() - began_s
            waiting = channels.waiting(self.shard.inputs, order.generation)
            self._perform(self.shard.on_loaded(order.generation, restore_s, waiting))
