"""The interface between a coordinator and the checkpoint strategy of its run.

A strategy is one way to checkpoint: when a checkpoint becomes stable, and which shards roll back to
what after a failure. Everything else (workers, restarts, cycles, the end of a run) is the
coordinator's.
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
"""What a shard reports while it rolls back to a checkpoint."""


RETRY_S = 1.0
"""After a checkpoint failed, the next one waits this long."""
THE_STORE = "the store: it has not answered"
NOT_BEGUN = "the redistributed checkpoint for the new shards could not be saved; retrying"


@dataclass(frozen=True)
class Wait:
    """Something the run waits for."""

    what: str
    missing: Sequence[ShardId] = field(default_factory=tuple)
    """The shards that have not answered."""
    why: str = ""
    """What holds it up, if that is known."""


class Orders(Protocol):
    """Where orders are sent."""

    def add(self, order: Order) -> None: ...

    def send(self, worker: WorkerId, command: Command) -> None: ...

    def tell(self, event: RunEvent) -> None: ...


class PresentWorkers(Protocol):
    """The workers that have joined."""

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
    """A run as its checkpoint strategy sees it: facts to read, and the moves it may make.

    `RunState` implements all of it; its docstrings explain each member.
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
    def changed_every_s(self) -> float | None: ...
    @property
    def stop(self) -> str | None: ...
    @property
    def over(self) -> bool: ...
    @property
    def stored_manifests(self) -> Sequence[EpochManifest]: ...
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
    def rollback_reason(self) -> str: ...
    @property
    def attempt(self) -> int: ...
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
    names_what_goes: ClassVar[bool]
    """Objects are deleted when an order names them, rather than when no manifest names them."""

    def is_current(self, report: Report) -> bool:
        """False if the report dates from before a rollback."""

    def last_number(self, shard: ShardId) -> CheckpointNumber:
        """The newest checkpoint of a shard that is stable."""

    def on_checkpoint(self, record: CheckpointRecord, now_s: float) -> None:
        """A shard's checkpoint is durable."""

    def on_checkpoint_failed(self, report: CheckpointFailed, now_s: float) -> None:
        """A shard could not save its checkpoint, and continues without it."""

    def on_return(self, report: ReturnReport, now_s: float) -> None:
        """A shard that rolls back, or rewires for one that does, has completed a step."""

    def on_manifest_written(self, manifest: EpochManifest, now_s: float) -> None:
        """The manifest is in the store, and kept: its contents are stable, whatever fails next."""

    def on_begun(self, now_s: float) -> None:
        """What the run begins with is in the store: see `RunState.unwritten`."""

    def on_manifest_failed(
        self, manifest: EpochManifest, error: EverstreamError, now_s: float
    ) -> None:
        """It is known not to be in the store: continue without what it would have made stable."""

    def on_tick(self, now_s: float) -> None:
        """Time has passed."""

    def on_asked(self, now_s: float) -> None:
        """A caller waits for everything done up to now to become stable."""

    @property
    def is_asked(self) -> bool:
        """What was last asked for is not stable yet."""

    def on_worker_back(self, worker: WorkerId, now_s: float) -> None:
        """A worker that was lost has started again."""

    def go_back(self, failed: Sequence[ShardId], now_s: float) -> None:
        """These shards have lost their state."""

    def resumes_from(self) -> int | None:
        """The epoch that a failure rolls the run back to; None: it must be computed first."""

    def waits_for(self) -> Wait | None:
        """What the run waits for at this moment."""
