"""What the driver and a host say to each other besides what the core says."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from everstream.core.ids import HostId, ShardId, TaskNumber
from everstream.core.messages import Command, Report
from everstream.core.points import Point
from everstream.errors import EverstreamError
from everstream.pipeline.tuning import Tuning
from everstream.spark.operator_logs import Logged
from everstream.spark.process_use import Used


@dataclass(frozen=True)
class Hello:
    """A process has started, which takes the place of a host or stands by."""

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
    """I am alive. Sent by a thread of its own, whatever the host is busy with."""

    number: TaskNumber
    attempt: int
    used: Used = field(default_factory=Used)
    """What this process has used."""


@dataclass(frozen=True)
class HostBroke:
    """Something in the host itself went wrong; it will exit and be started again."""

    number: TaskNumber
    attempt: int
    error: EverstreamError


@dataclass(frozen=True)
class Unreachable:
    """A host cannot connect to another one. It keeps trying; the user should know."""

    host: HostId
    peer: HostId
    waited_s: float


@dataclass(frozen=True)
class Noticed:
    """Something that stops nobody, and that the user should know."""

    host: HostId
    text: str


@dataclass(frozen=True)
class TakePlace:
    """Process: from now on you are this host."""

    host: HostId


@dataclass(frozen=True)
class KillAfter:
    """Host: kill yourself when this shard has processed so many records."""

    kill: int
    shard: ShardId
    records: int


@dataclass(frozen=True)
class KillAt:
    """Host: kill yourself when this shard comes to this point for the so-many-th time."""

    kill: int
    shard: ShardId
    point: Point
    occurrence: int


@dataclass(frozen=True)
class KillNow:
    """Host: kill yourself."""

    kill: int


@dataclass(frozen=True)
class KillFired:
    """I am about to kill myself as I was told; nod, and I do."""

    kill: int
    host: HostId


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
    """Host: these settings hold from now on."""

    tuning: Tuning


@dataclass(frozen=True)
class WantsTuning:
    """An operator here wants settings to be changed: `batch` or `NAME.batch` -> value."""

    wishes: dict[str, str]


ToHost: TypeAlias = Command | TakePlace | KillAfter | KillAt | KillNow | Nod | Tune | NewPlan
"""Everything a host hears from the driver."""

ToDriver: TypeAlias = (
    Report | Hello | Beat | HostBroke | Unreachable | Noticed | Logged | KillFired | WantsTuning
)
"""Everything the driver hears from a host."""
