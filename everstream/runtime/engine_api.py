"""The interface that an engine implements so that runners can work in it.

An engine is whatever gives shards processes, connections and a store: Spark tasks with sockets,
or the simulator's virtual time. To write one:

1. For every shard that a process runs, make a `ShardRunner(plan, shard, scheme, engine)`.
2. Pass it every event, one at a time and from one thread: the coordinator's commands
   (`on_command`), frames and grants from other shards (`on_frame`, `on_grant`), the passing of
   time (`on_tick`), and the outcomes of its requests below.
3. Between those, call `step` whenever `can_step` is true, and `save_slice` while it is `saving`:
   one piece of work each.
4. Implement this interface. Calls come from inside the runner, on that same thread; none of them
   may call the runner back before it returns, and only `load` may block.

What must hold:

- **Order.** Frames on one channel arrive in the order they were sent, or the shard notices. A
  frame may be lost only together with everything sent after it. CreditGrants travel the other way, with
  the generation their receiver has for that channel (`shard.generation_of`).
- **Durability.** `on_uploaded` is called only when the object can be read back after any crash.
- **Death.** A process that dies loses everything but the store. Nothing from it may arrive after
  the coordinator has learned that it is gone, except under an older generation.

`everstream.simulation.workers` is the smallest engine, and the one to read first.
"""

from collections.abc import Sequence
from typing import Protocol

from everstream.core.fault_points import Point
from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, ShardId
from everstream.core.messages import Report
from everstream.runtime.jobs import CommitJob, Upload
from everstream.runtime.message_log import Segment
from everstream.state.objects import ObjectRef


class EngineApi(Protocol):
    """The services of an engine to its runners."""

    store_url: str
    """Where the run's store is, for sinks that keep their output beside the checkpoints."""
    scratch: str
    """A folder of this run on the local disk, for state and records that are kept there."""

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
