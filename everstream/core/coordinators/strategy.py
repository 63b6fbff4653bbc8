"""What a coordinator leaves to the strategy of the run's checkpoints.

A strategy knows one way to checkpoint: when a checkpoint becomes stable, and who goes back to what
after a failure. Everything else (workers, restarts, loops, the end of a run) is the coordinator's.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.ids import CheckpointNumber, Epoch, Generation, ShardId, WorkerId
from everstream.core.messages import (
    CheckpointFailed,
    Command,
    Halted,
    Report,
    Restored,
    RestoreFailed,
    Rewired,
)
from everstream.core.orders import Order, Outcome, Phase, Policy
from everstream.core.plan import Plan
from everstream.errors import EverstreamError
from everstream.events import RunEvent

ReturnReport: TypeAlias = Halted | Rewired | Restored | RestoreFailed
"""What a shard says on its way back to a checkpoint."""


RETRY_S = 1.0
"""After a checkpoint failed, the next one waits this long."""
THE_STORE = "the store: it has not answered"
NOT_BEGUN = "what the new shards begin with could not be saved, and is saved again"


@dataclass(frozen=True)
class Wait:
    """Something the run waits for."""

    what: str
    missing: Sequence[ShardId] = field(default_factory=tuple)
    """The shards that have not answered."""
    why: str = ""
    """What holds it up, if that is known."""


class Orders(Protocol):
    """Where orders go."""

    def add(self, order: Order) -> None: ...

    def send(self, worker: WorkerId, command: Command) -> None: ...

    def tell(self, event: RunEvent) -> None: ...


class PresentWorkers(Protocol):
    """Who is here."""

    @property
    def complete(self) -> bool: ...

    def of(self, shards: Collection[ShardId]) -> list[WorkerId]: ...


class ReportedProgress(Protocol):
    """How far the shards have come."""

    @property
    def sources(self) -> frozenset[str]: ...

    def records_read(self) -> int: ...

    def totals(self) -> dict[str, int]: ...

    def holding_up(self, epoch: Epoch, shards: Iterable[ShardId]) -> str: ...


class StrategyRun(Protocol):
    """A run as the strategy of its checkpoints sees it: facts to read, and the moves it may make.

    `RunState` writes all of it; its docstrings say what each means.
    """

    @property
    def plan(self) -> Plan: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def phase(self) -> Phase: ...
    @property
    def generation(self) -> Generation: ...
    @property
    def every_s(self) -> float | None: ...
    @property
    def stop(self) -> str | None: ...
    @property
    def over(self) -> bool: ...
    @property
    def found(self) -> Sequence[EpochManifest]: ...
    @property
    def manifests(self) -> Sequence[EpochManifest]: ...
    @property
    def newest(self) -> EpochManifest | None: ...
    @property
    def unwritten(self) -> EpochManifest | None: ...
    @property
    def writing(self) -> EpochManifest | None: ...
    @property
    def line(self) -> Mapping[ShardId, CheckpointRecord]: ...
    @property
    def stable_epoch(self) -> Epoch: ...
    @property
    def takes_back(self) -> bool: ...
    @property
    def outbox(self) -> Orders: ...
    @property
    def workers(self) -> PresentWorkers: ...
    @property
    def progress(self) -> ReportedProgress: ...

    def tell_all(self, command: Command) -> None: ...
    def write(self, manifest: EpochManifest) -> None: ...
    def write_unwritten(self) -> bool: ...
    def good(self, number: int, owner: object = None) -> None: ...
    def give_up(self, number: int, what: str, cause: str, owner: object = None) -> None: ...
    def logged(self, size_bytes: int) -> None: ...
    def next_generation(self) -> Generation: ...
    def going_back(
        self, shards: Iterable[ShardId], rollback_s: float, checkpoints_back: int
    ) -> None: ...
    def went_back(
        self,
        records: Iterable[tuple[ShardId, CheckpointRecord | None]],
        *,
        everybody: bool = False,
    ) -> None: ...
    def resume(self, generation: Generation, now_s: float) -> None: ...
    def finish(self, waiting_for: Sequence[ShardId], now_s: float) -> None: ...
    def end(self, outcome: Outcome, error: EverstreamError | None = None) -> None: ...


class CheckpointStrategy(Protocol):
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

    def on_begun(self, now_s: float) -> None:
        """What the run begins with is in the store: see `RunState.unwritten`."""

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

    def on_worker_back(self, worker: WorkerId, now_s: float) -> None:
        """A worker that was lost has started again."""

    def go_back(self, failed: Sequence[ShardId], now_s: float) -> None:
        """These shards have lost their state."""

    def resumes_from(self) -> int | None:
        """The epoch that a failure rolls the run back to; None: it must be computed first."""

    def waits_for(self) -> Wait | None:
        """What the run waits for at this moment."""
