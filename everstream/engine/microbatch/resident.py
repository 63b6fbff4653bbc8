"""A shard in a worker process: built once, then given one epoch after another while it stays there.

It is the same runner with the same aligned protocol as in long-running tasks: frames arrive, a
marker ends each channel's part of the epoch, and the checkpoint is taken when every channel has
shown its marker. That is why the stores of both engines are alike. In a cycle, the frames sent in
the previous epoch are here when an epoch starts, and no more will come: the marker follows them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Final

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.fault_points import Point
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
from everstream.pipeline.calls.services import CallServices
from everstream.pipeline.sink import Committable
from everstream.runtime.channel_state import decoded_alone, encoded_alone
from everstream.runtime.engine_api import CommitJob, Upload
from everstream.runtime.message_log import Segment
from everstream.runtime.pace import UNLIMITED, Pace
from everstream.runtime.runner import ShardRunner
from everstream.state.objects import ObjectRef
from everstream.state.retention import DEFAULT, Retention
from everstream.state.store import CheckpointStore

MOST_WAIT_S: Final = 1.0
"""An answer ends the wait at once."""


@dataclass
class TaskEngineApi:
    """The requests of a shard's runner: nothing is sent or saved while it works.

    The task turns the frames into rows, saves the checkpoint and answers, before it ends.
    """

    store: CheckpointStore
    store_url: str
    clock_s: Callable[[], float]
    wall_s: Callable[[], float]
    reached: Callable[[ShardId, Point], None]
    retention: Retention = DEFAULT
    scratch: str = ""
    frames: list[Frame] = field(default_factory=list)
    uploads: list[Upload] = field(default_factory=list)
    commits: list[CommitJob] = field(default_factory=list)
    told: list[Report] = field(default_factory=list)
    woken: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        self.services = CallServices(self.store.blobs, self.woken.set, retention=self.retention)

    def send(self, frame: Frame) -> None:
        self.frames.append(frame)

    def grant(self, channel: ChannelId, frames: int, most: int) -> None:
        """Not needed: the senders of an epoch have finished before its receivers start."""

    def tell(self, report: Report) -> None:
        self.told.append(report)

    def upload(self, upload: Upload) -> None:
        self.uploads.append(upload)

    def save_segment(self, segment: Segment) -> None:
        raise InternalError("there are no message logs in an epoch that is one job")

    def commit(self, job: CommitJob) -> None:
        self.commits.append(job)

    def load(self, refs: Sequence[ObjectRef]) -> list[bytes]:
        return [self.store.get(ref) for ref in refs]


class Allowance(Pace):
    """A source may read this many records; all other operators take what comes."""

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
        reason: str = "",
        attempt: int = 1,
    ) -> None:
        """reason: what has failed, if the shard rolls back; empty if it only continues here."""
        self.shard = shard
        self.engine = engine
        self.record: CheckpointRecord | None = None
        """The record of its last epoch, once its checkpoint is durable."""
        self.carried: ObjectRef | None = None
        """The frames it sent back in that epoch."""
        self.carried_to: tuple[ShardId, ...] = ()
        """The receivers of those frames."""
        self._layout = layout
        self._allowance = Allowance()
        self.runner = ShardRunner(
            layout.plan, shard, ALIGNED, engine, self._allowance, recovers=False, completes=True
        )
        self.version = order.version(shard)
        self.epoch = order.stable
        """The newest epoch it has completed."""
        self._arrived = dict.fromkeys(layout.plan.inputs[shard], 0)
        self._tuned = 0
        """The version of the settings it has."""
        self._granted = 0
        """Sent frames whose credit has been renewed."""
        records = {shard: order.records[shard]}
        self.runner.on_command(
            Restore(
                generation,
                self.epoch,
                records,
                reason=reason,
                attempt=attempt,
                perhaps_elsewhere=True,  # Spark may repeat a task without a notice
            )
        )
        self.runner.on_command(Resume(generation, {}))
        self._replenish()

    @property
    def is_source(self) -> bool:
        return not self._layout.plan.inputs[self.shard]

    def hear(self, stable: Epoch) -> None:
        """The driver has committed this epoch, and with it the output that this shard had prepared."""
        if stable:
            self.runner.on_command(Stable(stable))
        while self.engine.commits:
            self.runner.on_commit_done(self.engine.commits.pop(0))

    def receive_carried(self, order: Order) -> None:
        """Take the frames that came round to it. A restored shard has them already."""
        for record in order.records[self.shard]:
            for data, ref in zip(self.engine.load(record.carried), record.carried, strict=True):
                inputs = self._layout.plan.inputs[self.shard]
                waiting = decoded_alone(data, ref).waiting(inputs, self.runner.shard.generation)
                for channel, frames in waiting.items():
                    for frame in frames:
                        self._arrived[channel] += 1
                        self.runner.on_frame(replace(frame, sequence=self._arrived[channel]))

    def go_through(self, order: Order, frames: Iterable[Arrived]) -> int:
        """One epoch: its input, then its checkpoint. Returns the number of records processed."""
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
        self.runner.on_command(Shutdown())

    def abandon(self) -> None:
        """It is not used again: its operators release what they hold."""
        self.runner.chain.abandon()

    def take_frames(self) -> list[Frame]:
        frames, self.engine.frames, self._granted = self.engine.frames, [], 0
        return frames

    def prepared(self) -> Iterator[tuple[str, Committable]]:
        """The output that is ready to be committed, with its stage."""
        for name, stage in self.runner.chain.stages.items():
            for transaction in stage.pending:
                yield name, transaction

    def problem(self) -> Problem | None:
        """The first problem reported since the last call; None if there is none."""
        told, self.engine.told = self.engine.told, []
        found = [problem for report in told if (problem := _problem(report)) is not None]
        return found[0] if found else None

    # Internals.

    def _close_loops(self, order: Order) -> None:
        """Permanently, or for this epoch."""
        shard = self.runner.shard
        for cycle in order.ended_cycles:
            self.runner.on_command(EndLoop(cycle, shard.generation))
        for channel in shard.open_loops:
            generation, sequence = shard.generation_of(channel), self._arrived[channel]
            marker = Frame(channel, FrameKind.MARKER, generation, sequence, order.epoch)
            self.runner.on_frame(marker)

    def _carry(self, upload: Upload) -> None:
        """Save the frames of a cycle, so that they can enter with the next epoch."""
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
        """Up to this many records, or all that are available now."""
        runner, self._allowance.left = self.runner, budget
        start, idle = runner.processed, 0
        while runner.processed - start < budget and idle < 2:  # one step may be a timer's
            before = runner.processed
            if not runner.can_step(self.engine.clock_s()) or not runner.step():
                if not runner.waits_for_answers:
                    return
                self._wait()
            idle = idle + 1 if runner.processed == before else 0
            self._replenish()
        while runner.waits_for_answers:  # they belong to this epoch
            if runner.chain.answers_in_s <= 0:
                runner.step()
                self._replenish()
            else:
                self._wait()

    def _work(self) -> None:
        while True:
            while self.runner.can_step(self.engine.clock_s()) and self.runner.step():
                self._replenish()
            if not self.runner.waits_for_answers:
                return
            self._wait()

    def _wait(self) -> None:
        """Until an answer comes, or a timer is due."""
        self.engine.woken.wait(max(0.0, min(MOST_WAIT_S, self.runner.timer_in_s())))
        self.engine.woken.clear()

    def _replenish(self) -> None:
        """Everything it sends is accepted: Spark keeps it until the receivers start."""
        while self._granted < len(self.engine.frames):
            new = self.engine.frames[self._granted :]
            self._granted = len(self.engine.frames)
            for frame in new:
                if frame.kind is FrameKind.DATA:
                    generation = self.runner.shard.generation_of(frame.channel)
                    self.runner.on_grant(frame.channel, generation, 1)

    def _save(self) -> None:
        """Make the checkpoint durable, with the output that depends on it."""
        self.record = None
        while self.runner.saving:  # nothing else is left to do in this epoch
            self.runner.save_slice()
        while self.engine.uploads:
            upload = self.engine.uploads.pop(0)
            began_s = self.engine.clock_s()
            try:
                self._carry(upload)
                ref = upload.perform(self.engine.store.put, self.engine.reached)
            except BaseException as error:  # sinks and store libraries may raise anything
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


class Cache:
    """The shards that one process keeps between two epochs, of one run and era.

    A task takes its shard out and puts it back only if it succeeds: an abandoned task leaves
    nothing behind that a later one could continue from.
    """

    def __init__(self) -> None:
        self._owner: tuple[str, int] | None = None
        self._residents: dict[ShardId, Resident] = {}

    def is_ahead(self, order: Order, shard: ShardId) -> bool:
        """Whether the shard is here in a version after the manifest's: then it rolls back."""
        resident = self._residents.get(shard)
        same_owner = self._owner == (order.run, order.era)
        return same_owner and resident is not None and resident.epoch > order.stable

    def take(self, order: Order, shard: ShardId) -> Resident | None:
        """The shard, if it is here in the manifest's version. Removes it from the cache in any case."""
        if self._owner != (order.run, order.era):
            self.clear()
            self._owner = (order.run, order.era)
        # A shard that missed an epoch continued elsewhere: it would only take up memory.
        for behind in [s for s, kept in self._residents.items() if kept.epoch < order.stable]:
            self._residents.pop(behind).abandon()
        resident = self._residents.pop(shard, None)
        if resident is None or self._is_current(resident, order):
            return resident
        resident.abandon()
        return None

    def keep(self, order: Order, resident: Resident) -> None:
        if self._owner != (order.run, order.era):
            resident.abandon()
            return
        replaced = self._residents.get(resident.shard)
        if replaced is not None and replaced is not resident:
            replaced.abandon()
        self._residents[resident.shard] = resident

    def clear(self) -> None:
        while self._residents:
            self._residents.popitem()[1].abandon()

    def _is_current(self, resident: Resident, order: Order) -> bool:
        return resident.version == order.version(resident.shard)
