"""The interface that an engine implements so that runners can work in it, and the jobs it performs.

An engine is whatever gives shards processes, connections and a store: Spark tasks with sockets,
or the simulator's virtual time. To write one:

1. For every shard that a process runs, make a `ShardRunner(plan, shard, scheme, engine)`.
2. Pass it every event, one at a time and from one thread: the coordinator's commands
   (`on_command`), frames and grants from other shards (`on_frame`, `on_grant`), the passing of
   time (`on_tick`), and the outcomes of its requests below.
3. Between those, call `step` whenever `can_step` is true, and `save_slice` while it is `saving`:
   one piece of work each.
4. Implement `EngineApi`. Calls come from inside the runner, on that same thread; none of them
   may call the runner back before it returns, and only `load` may block. An `Upload` and a
   `CommitJob` are performed in the background: they share nothing with the shard that it still
   changes.

What must hold:

- **Order.** Frames on one channel arrive in the order they were sent, or the shard notices. A
  frame may be lost only together with everything sent after it. CreditGrants travel the other way, with
  the generation their receiver has for that channel (`shard.generation_of`).
- **Durability.** `on_uploaded` is called only when the object can be read back after any crash.
- **Death.** A process that dies loses everything but the store. Nothing from it may arrive after
  the coordinator has learned that it is gone, except under an older generation.

`everstream.simulation.workers` is the smallest engine, and the one to read first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.fault_points import Point
from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, Generation, ShardId
from everstream.core.messages import Report
from everstream.pipeline.calls.services import CallServices
from everstream.pipeline.sink import Committable, Permit
from everstream.runtime.channel_state import ChannelState
from everstream.runtime.message_log import Segment
from everstream.state.objects import ObjectRef
from everstream.state.snapshot import CapturedState as StateCapture


@dataclass
class Persisting:
    """A transaction that the first upload that reaches it makes durable, exactly once.

    The next checkpoint may be taken before the last one is known to be saved. By the time it is
    uploaded, the transactions of the last one may be committed and removed.
    """

    transaction: Committable
    done: bool = False

    def perform(self) -> None:
        if not self.done:
            self.transaction.persist()
            self.done = True


@dataclass
class Upload:
    """A captured checkpoint on its way to the store. Made here, performed in the background."""

    shard: ShardId
    generation: Generation
    record: CheckpointRecord
    capture: StateCapture
    transactions: list[Persisting]
    segments: Sequence[Segment] = ()
    """Frames sent up to this checkpoint: they must be durable before it counts."""
    channels: ChannelState = field(default_factory=ChannelState)
    """Frames that belong to it; those on the local disk are stored before the capture, too."""
    spilled_bytes: int = 0
    """How much of them was not in the store before."""

    @property
    def name(self) -> str:
        """The name of the object: no two generations ever share a name."""
        return (
            f"{self.shard.operator}-{self.shard.number}/"
            f"{self.record.number:08d}-{self.generation:x}.ckpt"
        )

    def perform(
        self, put: Callable[[str, Any], ObjectRef], reached: Callable[[ShardId, Point], None]
    ) -> ObjectRef:
        """Store everything that makes up this checkpoint; the object of the state comes last."""
        for segment in self.segments:
            segment.save(put)
        prefix = self.name.removesuffix(".ckpt")
        self.spilled_bytes = self.channels.save(put, prefix)
        self.capture.save_files(put, prefix)
        return put(self.name, self.prepare_in_pieces(reached))

    def prepare(self, reached: Callable[[ShardId, Point], None]) -> bytes:
        """Make the sinks' records durable and encode the state. Returns the bytes to store."""
        return b"".join(self.prepare_in_pieces(reached))

    def prepare_in_pieces(self, reached: Callable[[ShardId, Point], None]) -> tuple[bytes, ...]:
        """The same, without copying large values."""
        for transaction in self.transactions:
            transaction.perform()
        data = self.capture.encode_in_pieces()
        reached(self.shard, Point.IN_SNAPSHOT)
        return data


@dataclass
class CommitJob:
    """Transactions that may be committed now."""

    shard: ShardId
    generation: Generation
    permit: Permit
    transactions: list[Committable]

    def perform(self, reached: Callable[[ShardId, Point], None]) -> None:
        for transaction in self.transactions:
            transaction.commit(self.permit)
            reached(self.shard, Point.IN_COMMIT)


class EngineApi(Protocol):
    """The services of an engine to its runners."""

    store_url: str
    """Where the run's store is, for sinks that keep their output beside the checkpoints."""
    scratch: str
    """A folder of this run on the local disk, for state and records that are kept there."""

    services: CallServices
    """For operators that wait for something outside."""

    def clock_s(self) -> float:
        """A clock that never runs backwards, for durations and timers."""

    def wall_s(self) -> float:
        """The clock of this machine, in seconds since 1970; it may be set while the run lasts."""

    def send(self, frame: Frame) -> None:
        """Carry a frame to its channel's receiver, behind those sent there before."""

    def grant(self, channel: ChannelId, frames: int, most: int) -> None:
        """Tell the channel's sender (`on_grant`) that its receiver accepts this many more frames.

        And that they should have `most` records each; 0 if the receiver accepts any size.
        """

    def tell(self, report: Report) -> None:
        """Carry a report to the coordinator, behind those told before."""

    def upload(self, upload: Upload) -> None:
        """Perform it in the background, then call `on_uploaded` or `on_upload_failed`."""

    def save_segment(self, segment: Segment) -> None:
        """Save it in the background. If that fails, the next checkpoint retries it."""

    def commit(self, job: CommitJob) -> None:
        """Perform it in the background, then call `on_commit_done` or `on_commit_failed`."""

    def load(self, refs: Sequence[ObjectRef]) -> list[bytes]:
        """Read these objects from the store; raises CorruptObject if one is damaged."""

    def reached(self, shard: ShardId, point: Point) -> None:
        """A shard has reached a named point of a checkpoint's life: the place to kill it at."""
