"""The messages between the coordinator and the shards.

Commands go from the coordinator to a worker or a shard, reports come back. All are plain values:
an engine may send them over a socket or pass them in memory.
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
from everstream.core.measuring import Meter
from everstream.errors import EverstreamError

# Commands: from the coordinator.


@dataclass(frozen=True)
class Restore:
    """Roll back to this checkpoint (None: to the empty start), under a new generation."""

    generation: Generation
    stable: Epoch
    records: dict[ShardId, tuple[CheckpointRecord, ...]]
    """Per shard the records that hold its operators' state: one, unless the graph was changed."""
    takes_back: bool = True
    """Output of later checkpoints may have been committed: see `Permit`."""
    reason: str = ""
    """What has failed; empty when a run begins."""
    attempt: int = 1
    """One more than the run had failures."""
    perhaps_elsewhere: bool = False
    """Other processes may work on the shard, too, and their work be thrown away."""


@dataclass(frozen=True)
class Halt:
    """These shards halt and report their positions: a shard that they receive from has failed."""

    generation: Generation
    shards: frozenset[ShardId]


@dataclass(frozen=True)
class Recover:
    """Some shards roll back, each to its own checkpoint; their neighbours prepare for that."""

    generation: Generation
    records: dict[ShardId, CheckpointRecord | None]
    """The shards that roll back, and their checkpoints; None is the empty start."""
    stable: dict[ShardId, CheckpointNumber]
    """The newest checkpoint of each that can never be rolled back."""
    received: dict[str, int]
    """Channel -> how far its receiver has come, for every channel that starts or ends there."""
    takes_back: bool = True
    """Output of later checkpoints may have been committed: see `Permit`."""
    reason: str = ""
    """What has failed."""
    attempt: int = 1
    """One more than the run had failures."""


@dataclass(frozen=True)
class Resume:
    """All shards have restored: run."""

    generation: Generation
    addresses: dict[WorkerId, Any]
    """The address of each worker, in the engine's own form."""


@dataclass(frozen=True)
class StartCheckpoint:
    """Sources: take checkpoint `epoch` and send its marker; with `stop`, then stop producing."""

    epoch: Epoch
    stop: bool = False
    wanted: bool = False
    """A caller waits for it: shards that checkpoint on their own timers take one now."""


@dataclass(frozen=True)
class Stable:
    """Everything up to this epoch will never be rolled back.

    Where each shard numbers its own checkpoints, `numbers` holds the number for each, and frames
    `received` before will not be requested again.
    """

    epoch: Epoch
    numbers: dict[ShardId, CheckpointNumber] | None = None
    received: dict[str, int] = field(default_factory=dict)
    every_s: float | None = None
    """The interval of the shards' timers from now on; None: unchanged."""


EVERYBODY = -1
"""In place of the number of a cycle: all shards."""


@dataclass(frozen=True)
class Pause:
    """Read nothing more and pause timers, so that frames arrive. Lasts until a rollback."""


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
"""Every command of a coordinator to a worker and its shards."""


# Reports: from a shard.


@dataclass(frozen=True)
class Restored:
    shard: ShardId
    generation: Generation
    restore_s: float = 0.0


@dataclass(frozen=True)
class Halted:
    """I have halted; these are my positions."""

    shard: ShardId
    generation: Generation
    """The generation of the recovery that I wait for."""
    received: dict[str, int]
    sent: dict[str, int]
    loops_ended: bool = False


@dataclass(frozen=True)
class Rewired:
    """I am ready for a neighbour that rolls back."""

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
    """Everything from outside the cycle has ended, and no frame waits here."""
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
    """My checkpoint could not be written; I continue without it."""

    shard: ShardId
    generation: Generation
    number: CheckpointNumber
    reason: str
    final: bool = False
    """It was my last: no epoch can be complete until I am asked again and succeed."""


@dataclass(frozen=True)
class Committed:
    """My sinks have committed everything up to this checkpoint."""

    shard: ShardId
    generation: Generation
    number: CheckpointNumber


@dataclass(frozen=True)
class ShardFailed:
    """I cannot continue: a user's function raised, or a source or sink failed."""

    shard: ShardId
    generation: Generation
    error: EverstreamError


@dataclass(frozen=True)
class LinkCut:
    """The network between two workers failed: frames in flight from one to the other are lost."""

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
    """Frames sent to it that could not be sent again."""
    meter: Meter | None = None
    """Its measurements in this process."""
    taken: CheckpointNumber = NO_CHECKPOINT
    """The newest checkpoint whose state it has captured."""
    handed_over: CheckpointNumber = NO_CHECKPOINT
    """The newest one that is complete and queued to be written to the store."""
    caught_up: bool = False
    """Its source has emitted all that existed at the start, in a run that ends then."""


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
"""Every report of a shard; each names the shard and its generation."""

Report: TypeAlias = ShardReport | LinkCut
"""Every report of a worker and its shards to a coordinator."""
