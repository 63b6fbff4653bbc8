"""The interface of an engine: read this first if you want to write one.

A run has three layers. `engine/run.py` does what is the same for every engine: it plans, opens the
store under a lease, waits as a standby, finds slots, serves the page and keeps the history. Then it
hands an `EngineJob` to an `Engine`, which moves records until the run ends and returns an
`EngineEnd`. In each process that runs shards, the engine gives the shard's runner an `EngineApi`
(`runtime/engine_api.py`): how to send a frame, write a snapshot, and ask for the time.

An engine decides nothing about checkpoints. `core` decides: the engine passes on what it sees (a
worker joined, a report arrived, time passed) and performs the orders it gets back. The simulator
performs the same orders in virtual time, so a protocol that is exact there is exact in your engine,
as long as

- every order is performed, in the order in which it came, or the run fails;
- messages from a zombie of an earlier attempt are dropped, by attempt and by generation;
- a manifest is written with the lease of `EngineJob.opened`, and no output becomes visible outside
  before it is stable.

Engines are looked up by name in `ENGINES` and imported only when a run needs one, so that no engine
imports another.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.newest import Newest
from everstream.core.coordinators.progress import CheckpointStats
from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.core.orders import Outcome
from everstream.core.plan import Plan
from everstream.engine.settings.options import RunConfig
from everstream.engine.slot_sharing import Share, SlotGrant
from everstream.engine.store_session import OpenStore
from everstream.errors import LeaseLost
from everstream.pipeline.checkpointing import EngineName
from everstream.state.blobs import Blobs

ENGINES: Final[dict[EngineName, str]] = {
    "tasks": "everstream.engine.tasks.engine:TasksEngine",
    "microbatch": "everstream.engine.microbatch.run:MicroBatchEngine",
    "local": "everstream.engine.local.engine:LocalEngine",
}
COMPLETE: Final = (Outcome.FINISHED, Outcome.CAUGHT_UP)
"""Outcomes of a run that has processed all of its input."""


class RunControl(Protocol):
    """What you can ask of a run while it is active. Each method may be called from any thread."""

    def request_stop(self, reason: str) -> None: ...

    def tune(self, settings: Mapping[str, str]) -> None: ...

    def ask_checkpoint(self) -> Future[int]: ...

    def set_interval(self, every_s: float) -> Future[str]: ...

    def kill_worker(self, worker: int) -> Future[str]: ...

    def scale(self, shards: Mapping[str, int]) -> Future[str]: ...

    @property
    def blobs(self) -> Blobs:
        """Where the checkpoints are stored."""
        ...


@dataclass(frozen=True)
class EngineJob:
    """A run that is ready to begin: its plan fits the slots, and its store is open."""

    config: RunConfig
    plan: Plan
    place: SlotGrant
    opened: OpenStore
    replaced: Callable[[], LeaseLost | None]
    """The error to stop with if another driver has taken over the store; None until then."""
    begin: Callable[[RunControl], None]
    """Call this as soon as the run can be controlled, before the first record moves."""


@dataclass(frozen=True)
class EngineEnd:
    """How a run ended: the part that only its engine knows."""

    outcome: Outcome
    plan: Plan
    """The last plan: the number of shards may have changed."""
    newest: EpochManifest | None
    started_s: float
    """When the first shard started, on the clock of time.monotonic."""
    ended_s: float
    written: Newest[EpochManifest]
    recoveries: Newest[RecoveryReport]
    checkpoint_stats: CheckpointStats
    lost_frames: int = 0
    forfeited: float = 0.0


class Engine(Protocol):
    """Moves the records of a run."""

    def check(self, config: RunConfig, plan: Plan) -> None:
        """Raise a UserError, with the fix, for anything this engine does not support."""
        ...

    def reserve(self, config: RunConfig, plan: Plan, others: tuple[Share, ...]) -> SlotGrant:
        """Where the run will execute, beside other runs of this process that use its Spark."""
        ...

    def warm(self, config: RunConfig, plan: Plan) -> None:
        """Start beforehand what the run will need; a standby does this before it waits."""
        ...

    def drive(self, job: EngineJob) -> EngineEnd:
        """Run until the sources end, the run is stopped, or it fails with an error."""
        ...


def engine_named(name: EngineName) -> Engine:
    module, _, attribute = ENGINES[name].partition(":")
    engine: Engine = getattr(import_module(module), attribute)()
    return engine
