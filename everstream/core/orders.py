"""The vocabulary of the coordinator: its phases, its policy and its orders. Values only."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.ids import TaskNumber, WorkerId
from everstream.core.messages import Command
from everstream.errors import EverstreamError
from everstream.events import RunEvent
from everstream.state.objects import ObjectRef


class Phase(Enum):
    GATHERING = "waiting for workers"
    RESTORING = "restoring"
    RUNNING = "running"
    FINISHING = "committing the last results"
    DONE = "done"


PHASE_MOVES: dict[Phase, set[Phase]] = {
    Phase.GATHERING: {Phase.RESTORING, Phase.DONE},
    Phase.RESTORING: {Phase.RESTORING, Phase.RUNNING, Phase.DONE},
    Phase.RUNNING: {Phase.RESTORING, Phase.FINISHING, Phase.DONE},
    Phase.FINISHING: {Phase.RESTORING, Phase.FINISHING, Phase.DONE},
    Phase.DONE: set(),
}
"""Which phase may follow which, whatever the protocol."""


class Outcome(Enum):
    FINISHED = "finished"
    STOPPED = "stopped"
    CAUGHT_UP = "caught up"
    """Everything that existed at the start is processed; the next run resumes from there."""
    FAILED = "failed"


TOLERABLE_FAILURES = 100
"""The default."""


@dataclass(frozen=True)
class Policy:
    """The user's settings."""

    checkpoints: bool = True
    every_s: float | None = 30.0
    every_records: int | None = None
    max_restarts: int = 3
    restart_window_s: float = 600.0
    slow_after_s: float = 10.0
    """A checkpoint or a restore that takes longer than this is reported."""
    tolerable_failures: int = TOLERABLE_FAILURES
    """The number of checkpoints in a row that may fail; one more failure ends the run."""
    until_caught_up: bool = False
    """The run ends when its sources have emitted everything that existed when it started."""
    checkpoint_timeout_s: float = 600.0
    """An epoch that is not complete by then is aborted, and the next one starts."""
    stop_grace_s: float = 30.0
    """How long a stop waits for its checkpoint (or three times as long as the newest one took, but
    never longer than a checkpoint may take); then the run stops without one."""


@dataclass(frozen=True)
class SendTo:
    worker: WorkerId
    command: Command


@dataclass(frozen=True)
class AssignWorker:
    """This process becomes this worker: messages to the worker go there from now on."""

    process: TaskNumber
    worker: WorkerId


@dataclass(frozen=True)
class Dismiss:
    """This process is no worker, and will not be needed: it may exit."""

    process: TaskNumber


@dataclass(frozen=True)
class WriteManifest:
    manifest: EpochManifest


@dataclass(frozen=True)
class Discard:
    """No rollback needs these objects any more; they may be deleted at any time."""

    objects: tuple[ObjectRef, ...]


@dataclass(frozen=True)
class EndRun:
    outcome: Outcome
    error: EverstreamError | None = None


@dataclass(frozen=True)
class Quiesced:
    """This coordinator has stopped with nothing in flight: the same workers get another plan."""


@dataclass(frozen=True)
class Refused:
    """A new shard cannot load its share: the same workers get the former plan again."""

    error: EverstreamError


@dataclass(frozen=True)
class Publish:
    """Send this event to the listeners of the run."""

    event: RunEvent


Order: TypeAlias = (
    SendTo
    | AssignWorker
    | Dismiss
    | WriteManifest
    | Discard
    | EndRun
    | Quiesced
    | Refused
    | Publish
)
"""Everything a coordinator can order; an engine carries out every one."""
