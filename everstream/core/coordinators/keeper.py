"""What a coordinator leaves to the keeper of the run's checkpoints.

A keeper knows one way to checkpoint: when a checkpoint becomes stable, and who goes back to what
after a failure. Everything else (hosts, restarts, loops, the end of a run) is the coordinator's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias

from everstream.core.checkpoint_record import CheckpointRecord
from everstream.core.ids import CheckpointNumber, HostId, ShardId
from everstream.core.manifest import EpochManifest
from everstream.core.messages import (
    CheckpointFailed,
    Halted,
    Report,
    Restored,
    RestoreFailed,
    Rewired,
)
from everstream.errors import EverstreamError

ReturnReport: TypeAlias = Halted | Rewired | Restored | RestoreFailed
"""What a shard says on its way back to a checkpoint."""


THE_STORE = "the store: it has not answered"


@dataclass(frozen=True)
class Wait:
    """Something the run waits for."""

    what: str
    missing: Sequence[ShardId] = field(default_factory=tuple)
    """The shards that have not answered."""
    why: str = ""
    """What holds it up, if that is known."""


class Keeper(Protocol):
    """One way to checkpoint, for the whole run."""

    names_what_goes: ClassVar[bool]
    """Objects are deleted when an order names them, and not when no manifest does any more."""

    def is_current(self, report: Report) -> bool:
        """False if it comes from before somebody went back."""

    def last_number(self, shard: ShardId) -> CheckpointNumber:
        """The newest checkpoint of a shard that is stable."""

    def on_checkpoint(self, record: CheckpointRecord, now_s: float) -> None:
        """A shard's checkpoint is durable."""

    def on_checkpoint_failed(self, report: CheckpointFailed, now_s: float) -> None:
        """A shard could not save its checkpoint, and goes on without it."""

    def on_return(self, report: ReturnReport, now_s: float) -> None:
        """A shard that goes back, or makes room for one that does, has come a step further."""

    def on_manifest_written(self, manifest: EpochManifest, now_s: float) -> None:
        """The manifest is in the store, and kept: what it says is stable, whatever fails next."""

    def on_manifest_failed(
        self, manifest: EpochManifest, error: EverstreamError, now_s: float
    ) -> None:
        """It is known not to be there: go on without what it would have made stable."""

    def on_tick(self, now_s: float) -> None:
        """Time has passed."""

    def on_asked(self, now_s: float) -> None:
        """Somebody wants all that was done up to now to be stable, and waits for it."""

    @property
    def is_asked(self) -> bool:
        """What was asked for last is not stable yet."""

    def on_host_back(self, host: HostId, now_s: float) -> None:
        """A host that was lost has started again."""

    def go_back(self, failed: Sequence[ShardId], now_s: float) -> None:
        """These shards have lost their state."""

    def plan_of_return(self) -> str:
        """What follows a failure, in words."""

    def waits_for(self) -> Wait | None:
        """What the run waits for at this moment."""
