"""What the coordinator and the shards say to each other.

Commands go from the coordinator to a worker or a shard, reports come back. All are plain values:
an engine may carry them over a socket or hand them over in memory.
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.ids import (
    NO_CHECKPOINT,
    CheckpointNumber,
    Epoch,
    Generation,
    ShardId,
    WorkerId,
)
from everstream.core.measuring.meter import Meter
from everstream.errors import EverstreamError

# Commands: from the coordinator.


@dataclass(frozen=True)
class Restore:
    """Go back to this checkpoint (None: to the empty start), under a new generation."""

    generation: Generation
    stable: Epoch
    records: dict[ShardId, tuple[CheckpointRecord, ...]]
    """Per shard the records that hold its operators' state: one, unless the graph was changed."""
    takes_back: bool = True
    """Later checkpoints may have been shown: see `Permit`."""


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
    stable: dict[ShardId, CheckpointNumber]
    """The newest checkpoint of each that can never be rolled back."""
    received: dict[str, int]
    """Channel -> how far its receiver has come, of every channel that starts or ends there."""
    takes_back: bool = True
    """Later checkpoints may have been shown: see `Permit`."""


@dataclass(frozen=True)
class Resume:
    """Everybody has restored: run."""

    generation: Generation
    addresses: dict[WorkerId, Any]
    """Where each worker is reached, in the engine's own words."""


@dataclass(frozen=True)
class StartCheckpoint:
    """Sources: take checkpoint `epoch` and send its marker; stop producing then if told so."""

    epoch: Epoch
    stop: bool = False
    wanted: bool = False
    """Somebody waits for it: shards that checkpoint when they like do it now."""


@dataclass(frozen=True)
class Stable:
    """Everything up to this epoch will never be rolled back.

    Where shards number their checkpoints each by itself, `numbers` says what that is for each,
    and nobody will ask for what was `received` before.
    """

    epoch: Epoch
    numbers: dict[ShardId, CheckpointNumber] | None = None
    received: dict[str, int] = field(default_factory=dict)


EVERYBODY = -1
"""Not the shards of one cycle, but all there are."""


@dataclass(frozen=True)
class Pause:
    """Read nothing more, and let timers rest: what is on its way is to arrive. Until going back."""


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


Command: TypeAlias = (
    Restore
    | Halt
    | Recover
    | Resume
    | StartCheckpoint
    | Stable
    | Pause
    | Probe
    | EndLoop
    | Shutdown
)
"""Everything a coordinator can tell a worker and its shards."""


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
    cycle: int
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

    @property
    def shard(self) -> ShardId:
        return self.record.shard


@dataclass(frozen=True)
class CheckpointFailed:
    """My checkpoint could not be written; I go on without it."""

    shard: ShardId
    generation: Generation
    number: CheckpointNumber
    reason: str
    final: bool = False
    """It was my last: no epoch can be complete until I was asked again and succeeded."""


@dataclass(frozen=True)
class Committed:
    """My sinks show everything up to this checkpoint."""

    shard: ShardId
    generation: Generation
    number: CheckpointNumber


@dataclass(frozen=True)
class ShardFailed:
    """I cannot go on: a user's function raised, or a source or sink failed."""

    shard: ShardId
    generation: Generation
    error: EverstreamError


@dataclass(frozen=True)
class LinkCut:
    """The network between two workers failed: what was on its way from one to the other is lost."""

    sender: WorkerId
    receiver: WorkerId
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
    meter: Meter | None = None
    """What it has measured of itself in this process."""
    taken: CheckpointNumber = NO_CHECKPOINT
    """The newest checkpoint whose state it has captured."""
    handed_over: CheckpointNumber = NO_CHECKPOINT
    """The newest one that is all there, and left to be written to the store."""
    caught_up: bool = False
    """Its source has given all there was when the run started, in a run that ends then."""


ShardReport: TypeAlias = (
    Restored
    | Halted
    | Rewired
    | Census
    | RestoreFailed
    | CheckpointTaken
    | CheckpointFailed
    | Committed
    | ShardFailed
    | Progress
)
"""Everything a shard can say of itself; each names it and its generation."""

Report: TypeAlias = ShardReport | LinkCut
"""Everything a coordinator can be told by a worker and its shards."""
