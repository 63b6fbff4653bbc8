"""What the driver and a worker say to each other besides what the core says."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from everstream.core.ids import TaskNumber, WorkerId
from everstream.core.messages import Command, Report
from everstream.engine.faults.injection import KillAfter, KillAt, KillNow
from everstream.engine.tasks.worker.operator_logs import Logged
from everstream.engine.tasks.worker.process_use import Used
from everstream.errors import EverstreamError
from everstream.events import RunEvent
from everstream.pipeline.tuning import Tuning


@dataclass(frozen=True)
class Hello:
    """A process has started, which takes the place of a worker or stands by."""

    number: TaskNumber
    attempt: int
    task: int
    """Spark's id of this task attempt: the handle to have it killed."""
    pid: int
    machine: str
    address: Any
    plan: int = 0
    """The number of the plan it has."""


@dataclass(frozen=True)
class Beat:
    """I am alive. Sent by a thread of its own, whatever the worker is busy with."""

    number: TaskNumber
    attempt: int
    used: Used = field(default_factory=Used)
    """What this process has used."""


@dataclass(frozen=True)
class WorkerBroke:
    """Something in the worker itself went wrong; it will exit and be started again."""

    number: TaskNumber
    attempt: int
    error: EverstreamError


@dataclass(frozen=True)
class Unreachable:
    """A worker cannot connect to another one. It keeps trying; the user should know."""

    worker: WorkerId
    peer: WorkerId
    waited_s: float


@dataclass(frozen=True)
class Noticed:
    """Something that does not stop the worker, but that the user should know."""

    event: RunEvent


@dataclass(frozen=True)
class TakePlace:
    """Process: from now on you are this worker."""

    worker: WorkerId


@dataclass(frozen=True)
class KillFired:
    """I am about to kill myself as I was told; nod, and I do."""

    kill: int
    worker: WorkerId


@dataclass(frozen=True)
class NewPlan:
    """Process: forget the plan you have, whatever your place in it was, and say hello with this one."""

    number: int
    pickled: bytes = field(repr=False)


@dataclass(frozen=True)
class Nod:
    """Heard. Also the driver's own heartbeat."""


@dataclass(frozen=True)
class Tune:
    """Worker: these settings hold from now on."""

    tuning: Tuning


@dataclass(frozen=True)
class WantsTuning:
    """An operator here wants settings to be changed: `batch` or `NAME.batch` -> value."""

    wishes: dict[str, str]


ToWorker: TypeAlias = Command | TakePlace | KillAfter | KillAt | KillNow | Nod | Tune | NewPlan
"""Everything a worker hears from the driver."""

ToDriver: TypeAlias = (
    Report | Hello | Beat | WorkerBroke | Unreachable | Noticed | Logged | KillFired | WantsTuning
)
"""Everything the driver hears from a worker."""
