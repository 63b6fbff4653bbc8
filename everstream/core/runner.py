"""Performs a shard's instructions: everything that needs no I/O of its own.

The runner binds the deciding `Shard` to the working `ChainStages` and outlets. Sending,
uploading, committing and loading go out through a `Port`, which Spark hosts fill with sockets
and threads and the simulator with virtual time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from everstream.core.chain import ChainStages
from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, Epoch, Generation, ShardId
from everstream.core.instructions import (
    Advance,
    Announce,
    Capture,
    Close,
    Commit,
    Deliver,
    EmitMarkers,
    Finish,
    Instruction,
    LoadState,
    Produce,
    Start,
    Tell,
)
from everstream.core.messages import (
    CheckpointRecord,
    Progress,
    Restore,
    Resume,
    Stable,
    StartCheckpoint,
)
from everstream.core.outlet import make_outlet
from everstream.core.plan import Plan
from everstream.core.points import Point
from everstream.core.protocols.base import ShardProtocol
from everstream.core.shard import Shard, Status
from everstream.errors import CorruptObject, EnvironmentFault
from everstream.pipeline.sink import Permit, Transaction
from everstream.pipeline.source import EndOfStream
from everstream.state.snapshot import Capture as StateCapture
from everstream.state.snapshot import ShardState
from everstream.state.store import ObjectRef


@dataclass
class Upload:
    """A captured checkpoint on its way to the store. Made here, performed in the background."""

    shard: ShardId
    generation: Generation
    record: CheckpointRecord
    capture: StateCapture
    transactions: list[Transaction]

    @property
    def name(self) -> str:
        """Where the object goes: no two generations ever share a name."""
        return (
            f"{self.shard.operator}-{self.shard.number}/"
            f"{self.record.number:08d}-{self.generation:x}.ckpt"
        )

    def prepare(self, reached: Callable[[ShardId, Point], None]) -> bytes:
        """Make the sinks' records durable and encode the state: the bytes to store."""
        return b"".join(self.prepare_in_pieces(reached))

    def prepare_in_pieces(self, reached: Callable[[ShardId, Point], None]) -> tuple[bytes, ...]:
        """The same, without copying large values."""
        for transaction in self.transactions:
            transaction.persist()
        data = self.capture.encode_in_pieces()
        reached(self.shard, Point.IN_SNAPSHOT)
        return data


@dataclass
class CommitJob:
    """Transactions the world may see now."""

    shard: ShardId
    generation: Generation
    permit: Permit
    transactions: list[Transaction]

    def perform(self, reached: Callable[[ShardId, Point], None]) -> None:
        for transaction in self.transactions:
            transaction.commit(self.permit)
            reached(self.shard, Point.IN_COMMIT)


class Port(Protocol):
    """What an engine does for its runners."""

    store_url: str

    def clock_s(self) -> float: ...
    def wall_s(self) -> float:
        """Processing time, as operators see it: seconds since 1970."""

    def send(self, frame: Frame) -> None: ...
    def grant(self, channel: ChannelId, frames: int) -> None: ...
    def tell(self, report: object) -> None: ...
    def upload(self, upload: Upload) -> None: ...
    def commit(self, job: CommitJob) -> None: ...
    def load(self, refs: Sequence[ObjectRef]) -> list[bytes]: ...
    def reached(self, shard: ShardId, point: Point) -> None: ...


class ShardRunner:
    """One shard: decides, works, and talks to the rest of the world through its port."""

    def __init__(self, plan: Plan, id: ShardId, protocol: type[ShardProtocol], port: Port) -> None:
        inputs, outputs = plan.inputs[id], plan.outputs[id]
        operators = plan.chains[id.operator].operators
        ordered = any(plan.graph.nodes[name].ordered for name in operators)
        self.shard = Shard(
            id,
            inputs,
            outputs,
            protocol(inputs, outputs),
            operators=operators,
            ordered=ordered,
            feedback=[c for c in inputs if plan.graph.edges[c.edge].feedback],
        )
        self.sides = {channel: plan.graph.edges[channel.edge].side for channel in inputs}
        self.port = port
        self.state = ShardState()
        order_matters = plan.order_matters()
        self.outlets = {
            number: make_outlet(
                edge.routing,
                self.shard,
                [channel for channel in outputs if channel.edge == number],
                port.send,
                one_frame=edge.receiver in order_matters,
            )
            for number, edge in enumerate(plan.graph.edges)
            if any(channel.edge == number for channel in outputs)
        }
        self.chain = ChainStages(plan, id, self.outlets, self.state, port.wall_s)
        self.ready_at_s = 0.0
        """A source that had nothing to give is not asked again before this time."""
        self.processed = 0
        """Records that reached this shard in this process: what `--kill ...@10000` counts."""
        self.dropped = 0
        """Frames of zombies that were dropped."""

    # Events.

    def on_restore(self, command: Restore) -> None:
        self._perform(self.shard.on_restore(command))

    def on_resume(self, command: Resume) -> None:
        self._perform(self.shard.on_resume(command.generation))

    def on_frame(self, frame: Frame) -> None:
        if not self.shard.on_frame(frame):
            self.dropped += 1

    def on_grant(self, channel: ChannelId, generation: Generation, frames: int) -> None:
        if generation == self.shard.generation:
            outlet = self.outlets[channel.edge]
            outlet.grant(channel, frames)
            self._guarded(outlet.pump)

    def on_start_checkpoint(self, command: StartCheckpoint) -> None:
        self._perform(self.shard.on_start_checkpoint(command))

    def on_stable(self, command: Stable) -> None:
        self._perform(self.shard.on_stable(command.epoch))

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
        record = replace(upload.record, objects=chain, upload_s=upload_s, size_bytes=ref.size_bytes)
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
            and all(outlet.idle for outlet in self.outlets.values())
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
        return Progress(self.shard.id, self.shard.generation, self.chain.counts, ended)

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
                case Capture(record=record):
                    self._guarded(self._capture, record)
                case EmitMarkers(number=number):
                    for outlet in self.outlets.values():
                        self._guarded(outlet.marker, number)
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
        read = self.chain.read()
        if read is None:
            reader = self.chain.head.reader
            assert reader is not None
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
        self._perform(self.shard.on_finished())

    def _flush(self, ordinal: int) -> None:
        """A step is over: its output leaves as frames with this ordinal."""
        for outlet in self.outlets.values():
            outlet.flush(ordinal)

    def _flush_outside_step(self) -> None:
        for outlet in self.outlets.values():
            outlet.flush_outside_step()

    def _capture(self, record: CheckpointRecord) -> None:
        self.port.reached(self.shard.id, Point.BEFORE_SNAPSHOT)
        began_s = self.port.clock_s()
        extras = self.chain.prepare(record.number)
        capture = self.state.capture(extras)
        record = replace(
            record,
            counts=self.chain.counts,
            skipped=self.chain.skipped,
            capture_s=self.port.clock_s() - began_s,
        )
        self.port.upload(
            Upload(self.shard.id, self.shard.generation, record, capture, self.chain.unpersisted())
        )

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
        for outlet in self.outlets.values():
            outlet.reset()
        try:
            extras = self._load_state(order.records)
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
            self._perform(self.shard.on_loaded(order.generation, restore_s))

    def _load_state(self, records: Sequence[CheckpointRecord]) -> dict[str, Any]:
        """Fill the key stores; the extras (offsets, transactions) of this chain's operators.

        Usually one record holds everything. After a change of the graph the operators' state is
        gathered, by their names, from the records they were in.
        """
        operators = self.chain.operators
        if len(records) == 1 and records[0].operators == operators:
            chain = records[0].objects
            return self.state.restore(self.port.load(chain), chain)
        self.state.reset()
        extras: dict[str, Any] = {}
        for record in records:
            other = ShardState()
            found = other.restore(self.port.load(record.objects), record.objects)
            extras |= {name: found[name] for name in self.chain.saved_names() if name in found}
            self.state.adopt(other, operators)
        return extras
