"""A shard in a worker process: built once, then given epoch after epoch as long as it stays there.

It is the same runner, with the same aligned protocol, as in long-running tasks: frames come, a
marker ends each channel's part of the epoch, the checkpoint is taken when all have shown theirs.
That is why stores of both engines are alike. Where records come round, those that were sent in the
epoch before are here when an epoch begins, and no more will come: the marker stands behind them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Epoch, Generation, ShardId
from everstream.core.messages import (
    CheckpointFailed,
    CheckpointTaken,
    EndLoop,
    Report,
    Restore,
    RestoreFailed,
    Resume,
    ShardFailed,
    Shutdown,
    Stable,
    StartCheckpoint,
)
from everstream.core.scheme import ALIGNED
from everstream.engine.microbatch.cycles import packed, parted
from everstream.engine.microbatch.engine_api import TaskEngineApi
from everstream.engine.microbatch.layout import Layout
from everstream.engine.microbatch.orders import (
    Failed,
    Order,
    Problem,
    Unreadable,
    Unsaved,
    version_of,
)
from everstream.engine.microbatch.rows import Arrived
from everstream.errors import InternalError
from everstream.pipeline.sink import Committable
from everstream.runtime.channel_state import decoded_alone, encoded_alone
from everstream.runtime.jobs import Upload
from everstream.runtime.pace import UNLIMITED, Pace
from everstream.runtime.runner import ShardRunner
from everstream.state.objects import ObjectRef


class Allowance(Pace):
    """A source may read so many records and no more; all others take what comes."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.left = UNLIMITED

    def take(self) -> int:
        return max(1, self.left)

    def note(self, records: int, took_s: float) -> None:
        if self.left < UNLIMITED:
            self.left -= records


class Resident:
    """One shard, at a known version."""

    def __init__(
        self,
        layout: Layout,
        shard: ShardId,
        order: Order,
        generation: Generation,
        engine: TaskEngineApi,
    ) -> None:
        self.shard = shard
        self.engine = engine
        self.record: CheckpointRecord | None = None
        """Of the epoch it was last given, once its checkpoint is durable."""
        self.carried: ObjectRef | None = None
        """What it has sent back in that epoch."""
        self.carried_to: tuple[ShardId, ...] = ()
        """Whom that is for."""
        self._layout = layout
        self._allowance = Allowance()
        self.runner = ShardRunner(
            layout.plan, shard, ALIGNED, engine, self._allowance, recovers=False
        )
        self.version = order.version(shard)
        self.epoch = order.stable
        """The newest it has been through."""
        self._arrived = dict.fromkeys(layout.plan.inputs[shard], 0)
        self._tuned = 0
        """The version of the settings it knows."""
        self._granted = 0
        """Frames that were sent and paid for with new credit."""
        records = {shard: order.records[shard]}
        self.runner.on_command(Restore(generation, self.epoch, records))
        self.runner.on_command(Resume(generation, {}))
        self._replenish()

    @property
    def is_source(self) -> bool:
        return not self._layout.plan.inputs[self.shard]

    def hear(self, stable: Epoch) -> None:
        """The driver has committed this epoch, and with it what this shard had prepared."""
        if stable:
            self.runner.on_command(Stable(stable))
        while self.engine.commits:
            self.runner.on_commit_done(self.engine.commits.pop(0))

    def receive_carried(self, order: Order) -> None:
        """What came round to it. A shard that was just restored has it already."""
        for record in order.records[self.shard]:
            for data, ref in zip(self.engine.load(record.carried), record.carried, strict=True):
                inputs = self._layout.plan.inputs[self.shard]
                waiting = decoded_alone(data, ref).waiting(inputs, self.runner.shard.generation)
                for channel, frames in waiting.items():
                    for frame in frames:
                        self._arrived[channel] += 1
                        self.runner.on_frame(replace(frame, sequence=self._arrived[channel]))

    def go_through(self, order: Order, frames: Iterable[Arrived]) -> int:
        """One epoch: its input, then its checkpoint. The records it has had."""
        before = self.runner.processed
        if order.tuning.version > self._tuned:
            self._tuned = order.tuning.version
            self.runner.on_tune(order.tuning)
        self._close_loops(order)
        if self.is_source:
            self._read(order.budget)
            self.runner.on_command(StartCheckpoint(order.epoch))
        else:
            for frame in frames:
                self.runner.on_frame(self._numbered(frame))
            self._work()
        self._replenish()
        self._save()
        self.epoch = order.epoch
        return self.runner.processed - before

    def leave(self) -> None:
        """The run is over."""
        self.runner.on_command(Shutdown())

    def take_frames(self) -> list[Frame]:
        """What it has sent since the last call."""
        frames, self.engine.frames, self._granted = self.engine.frames, [], 0
        return frames

    def prepared(self) -> Iterator[tuple[str, Committable]]:
        """The output that waits to be committed, with the stage it belongs to."""
        for name, stage in self.runner.chain.stages.items():
            for transaction in stage.pending:
                yield name, transaction

    def problem(self) -> Problem | None:
        """What has gone wrong, of what it has told since the last call; None if nothing has."""
        told, self.engine.told = self.engine.told, []
        found = [problem for report in told if (problem := _problem(report)) is not None]
        return found[0] if found else None

    # Inside.

    def _close_loops(self, order: Order) -> None:
        """For good, or for this epoch."""
        shard = self.runner.shard
        for cycle in order.ended_cycles:
            self.runner.on_command(EndLoop(cycle, shard.generation))
        for channel in shard.open_loops:
            generation, sequence = shard.generation_of(channel), self._arrived[channel]
            marker = Frame(channel, FrameKind.MARKER, generation, sequence, order.epoch)
            self.runner.on_frame(marker)

    def _carry(self, upload: Upload) -> None:
        """Save what goes round, so that it can come in with the next epoch."""
        self.engine.frames, back = parted(self._layout.plan, self.engine.frames)
        self._granted = len(self.engine.frames)
        self.carried_to = tuple(sorted({frame.channel.receiver for frame in back}))
        self.carried = None
        if back:
            name = upload.name.removesuffix(".ckpt") + ".carried"
            self.carried = self.engine.store.put(name, encoded_alone(packed(back)))

    def _numbered(self, frame: Arrived) -> Frame:
        channel = self._layout.plan.channels[frame.position]
        if frame.kind is not FrameKind.MARKER:
            self._arrived[channel] += 1
        generation = self.runner.shard.generation_of(channel)
        return frame.as_frame(channel, generation, self._arrived[channel])

    def _read(self, budget: int) -> None:
        """Up to so many records, or what there is just now."""
        runner, self._allowance.left = self.runner, budget
        start, idle = runner.processed, 0
        while runner.processed - start < budget and idle < 2:  # one step may be a timer's
            before = runner.processed
            if not runner.can_step(self.engine.clock_s()) or not runner.step():
                return
            idle = idle + 1 if runner.processed == before else 0
            self._replenish()

    def _work(self) -> None:
        while self.runner.can_step(self.engine.clock_s()) and self.runner.step():
            self._replenish()

    def _replenish(self) -> None:
        """Whatever it sends is taken: Spark keeps it until the receivers begin."""
        while self._granted < len(self.engine.frames):
            new = self.engine.frames[self._granted :]
            self._granted = len(self.engine.frames)
            for frame in new:
                if frame.kind is FrameKind.DATA:
                    self._grant(frame.channel)

    def _grant(self, channel: ChannelId) -> None:
        self.runner.on_grant(channel, self.runner.shard.generation_of(channel), 1)

    def _save(self) -> None:
        """Make the checkpoint durable, with the output that waits for it."""
        self.record = None
        while self.runner.saving:  # nothing else is to be done in this epoch
            self.runner.save_slice()
        while self.engine.uploads:
            upload = self.engine.uploads.pop(0)
            began_s = self.engine.clock_s()
            try:
                self._carry(upload)
                ref = upload.perform(self.engine.store.put, self.engine.reached)
            except BaseException as error:  # sinks and libraries of stores raise what they like
                self.runner.on_upload_failed(upload, error)
                continue
            self.runner.on_uploaded(upload, ref, self.engine.clock_s() - began_s)
        taken = [report for report in self.engine.told if isinstance(report, CheckpointTaken)]
        if len(taken) > 1:
            raise InternalError(f"{self.shard} took {len(taken)} checkpoints in one epoch")
        if taken:
            self.record = taken[0].record
            self.version = version_of((self.record,))


def _problem(report: Report) -> Problem | None:
    match report:
        case ShardFailed(error=error):
            return Failed(error)
        case RestoreFailed(reason=reason):
            return Unreadable(reason)
        case CheckpointFailed(reason=reason):
            return Unsaved(reason)
        case _:
            return None
