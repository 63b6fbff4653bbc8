"""What the coordinator goes through, is asked for and orders: its vocabulary. Values only."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from everstream.core.ids import HostId
from everstream.core.manifest import EpochManifest
from everstream.errors import EverstreamError
from everstream.state.objects import ObjectRef


class Phase(Enum):
    GATHERING = "waiting for hosts"
    RESTORING = "restoring"
    RUNNING = "running"
    FINISHING = "committing the last results"
    DONE = "done"


class Outcome(Enum):
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class Policy:
    """What the user chose."""

    checkpoints: bool = True
    every_s: float | None = 30.0
    every_records: int | None = None
    max_restarts: int = 3
    restart_window_s: float = 600.0
    slow_after_s: float = 10.0
    """A checkpoint or a restore that takes longer than this is spoken of."""


@dataclass(frozen=True)
class SendTo:
    host: HostId
    command: Any


@dataclass(frozen=True)
class WriteManifest:
    manifest: EpochManifest


@dataclass(frozen=True)
class Discard:
    """Nobody will go back to what these objects hold; they may be deleted at any time."""

    objects: tuple[ObjectRef, ...]


@dataclass(frozen=True)
class EndRun:
    outcome: Outcome
    error: EverstreamError | None = None


@dataclass(frozen=True)
class Note:
    """Something the user should see."""

    text: str
    warning: bool = False


Order: TypeAlias = SendTo | WriteManifest | Discard | EndRun | Note
