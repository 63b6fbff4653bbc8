"""The jobs that a runner leaves to its engine: saving a checkpoint and committing output.

An `Upload` and a `CommitJob` are made on the shard's thread and performed in the background. They
share nothing with the shard that it still changes. `EngineApi` is a runner's only access to I/O.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.fault_points import Point
from everstream.core.ids import Generation, ShardId
from everstream.pipeline.sink import Committable, Permit
from everstream.runtime.channel_state import ChannelState
from everstream.runtime.message_log import Segment
from everstream.state.snapshot import CapturedState as StateCapture
from everstream.state.store import ObjectRef


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
        self,
        put: Callable[[str, Any], ObjectRef],
        reached: Callable[[ShardId, Point], None],
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
