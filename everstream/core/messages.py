"""What the coordinator and the shards say to each other.

Commands go from the coordinator to a host or a shard, reports come back. All are plain values:
an engine may carry them over a socket or hand them over in memory.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from everstream.core.ids import NO_EPOCH, Epoch, Generation, HostId, ShardId
from everstream.core.message_log import LogSegment
from everstream.errors import EverstreamError
from everstream.state.store import ObjectRef


@dataclass(frozen=True)
class CheckpointRecord:
    """One durable checkpoint of one shard, as reported and as kept in a manifest."""

    shard: ShardId
    number: Epoch
    operators: tuple[str, ...]
    objects: tuple[ObjectRef, ...] = ()
    """The chain of objects that restores it, the full one first."""
    final: bool = False
    """The shard had ended: this also stands for every later epoch."""
    last_epoch: Epoch = NO_EPOCH
    """The last epoch this shard took part in before; a final record counts only after it."""
    stopped: bool = False
    """The shard was told to stop with this checkpoint."""
    forced: bool = False
    """The protocol demanded it before a delivery; no timer did."""
    loops_ended: bool = False
    """The feedback inputs of the shard's cycle had been declared ended."""
    holds_frames: bool = False
    """Frames that were on their way are part of it, under the names of their channels."""
    log: tuple[LogSegment, ...] = ()
    """What the shard had sent and somebody may still ask for."""
    received: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    """Input channels that have ended."""
    watermarks: dict[str, int] = field(default_factory=dict)
    """Input channel -> its watermark, of those that have one."""
    ordinal: int = 0
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Operator -> records in, records out."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Operator -> records left out because of an error, of those that left any out."""
    variables: dict[str, Any] = field(default_factory=dict)
    """The protocol's own."""
    lost_frames: int = 0
    """Frames sent to this shard that nobody could send again."""
    capture_s: float = 0.0
    upload_s: float = 0.0
    size_bytes: int = 0

    @property
    def all_objects(self) -> tuple[ObjectRef, ...]:
        """Everything in the store that it takes to go back to this checkpoint."""
        return (*self.objects, *(segment.ref for segment in self.log))

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        body["shard"] = str(self.shard)
        return body

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> "CheckpointRecord":
        return cls(
            **{
                **body,
                "shard": ShardId.parse(body["shard"]),
                "operators": tuple(body["operators"]),
                "objects": tuple(ObjectRef(**ref) for ref in body["objects"]),
                "ended": tuple(body["ended"]),
                "log": tuple(LogSegment.from_json(segment) for segment in body["log"]),
                "counts": {name: tuple(pair) for name, pair in body["counts"].items()},
            }
        )


# Commands: from the coordinator.


@dataclass(frozen=True)
class Restore:
    """Go back to this checkpoint (None: to the empty start), under a new generation."""

    generation: Generation
    stable: Epoch
    records: dict[ShardId, tuple[CheckpointRecord, ...]]
    """Per shard the records that hold its operators' state: one, unless the graph was changed."""


@dataclass(frozen=True)
class Halt:
    """These shards wait, and say how far they have come: a shard they receive from has failed."""

    generation: Generation
    shards: frozenset[ShardId]


@dataclass(frozen=True)
class Recover:
    """Some shards go back, each to its own checkpoint; those next to them get ready for that."""

    generation: Generation
    records: dict[ShardId, CheckpointRecord | None]
    """Who goes back, and to what; None is the empty start."""
    stable: dict[ShardId, Epoch]
    """The newest checkpoint of each that can never be rolled back."""
    received: dict[str, int]
    """Channel -> how far its receiver has come, of every channel that starts or ends there."""


@dataclass(frozen=True)
class Resume:
    """Everybody has restored: run."""

    generation: Generation
    addresses: dict[HostId, Any]


@dataclass(frozen=True)
class StartCheckpoint:
    """Sources: take checkpoint `epoch` and send its marker; stop producing then if told so."""

    epoch: Epoch
    stop: bool = False


@dataclass(frozen=True)
class Stable:
    """Everything up to this epoch will never be rolled back.

    Where shards number their checkpoints each by itself, `numbers` says what that is for each,
    and nobody will ask for what was `received` before.
    """

    epoch: Epoch
    numbers: dict[ShardId, Epoch] | None = None
    received: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """Shards on this cycle: is there anything left to do?"""

    cycle: int
    round: int


@dataclass(frozen=True)
class EndLoop:
    """Nothing moves on this cycle any more: its feedback inputs have ended."""

    cycle: int
    generation: Generation


@dataclass(frozen=True)
class Shutdown:
    """The run is over: leave in good order."""


# Reports: from a shard.


@dataclass(frozen=True)
class Restored:
    shard: ShardId
    generation: Generation
    restore_s: float = 0.0


@dataclass(frozen=True)
class Halted:
    """I wait; so far I have come."""

    shard: ShardId
    generation: Generation
    """Of the recovery I wait for."""
    received: dict[str, int]
    sent: dict[str, int]
    loops_ended: bool = False


@dataclass(frozen=True)
class Rewired:
    """I am ready for a neighbour that goes back."""

    shard: ShardId
    generation: Generation


@dataclass(frozen=True)
class Census:
    """The answer to a probe: frames received from and sent to shards of the same cycle."""

    shard: ShardId
    generation: Generation
    round: int
    passive: bool
    """Everything from outside the cycle has ended, and nothing waits here."""
    sent: int
    received: int


@dataclass(frozen=True)
class RestoreFailed:
    """The checkpoint could not be read: torn, missing, corrupt."""

    shard: ShardId
    generation: Generation
    reason: str


@dataclass(frozen=True)
class CheckpointTaken:
    """My checkpoint is durable."""

    generation: Generation
    record: CheckpointRecord


@dataclass(frozen=True)
class CheckpointFailed:
    """My checkpoint could not be written; I go on without it."""

    shard: ShardId
    generation: Generation
    epoch: Epoch
    reason: str
    final: bool = False
    """It was my last: no epoch can be complete until I was asked again and succeeded."""


@dataclass(frozen=True)
class Committed:
    """My sinks show everything up to this epoch."""

    shard: ShardId
    generation: Generation
    epoch: Epoch


@dataclass(frozen=True)
class ShardFailed:
    """I cannot go on: a user's function raised, or a source or sink failed."""

    shard: ShardId
    generation: Generation
    error: EverstreamError


@dataclass(frozen=True)
class LinkCut:
    """The network between two hosts failed: what was on its way from one to the other is lost."""

    sender: HostId
    receiver: HostId
    generation: Generation
    how: str


@dataclass(frozen=True)
class Progress:
    """How far a shard has come: operator -> records in, records out."""

    shard: ShardId
    generation: Generation
    counts: dict[str, tuple[int, int]]
    ended: bool = False
    lost_frames: int = 0
    """Frames sent to it that nobody could send again."""
