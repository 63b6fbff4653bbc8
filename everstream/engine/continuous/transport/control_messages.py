"""Messages between the driver and a worker, besides those of the core."""

import pickle
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import zmq

from everstream.core.ids import TaskNumber, WorkerId
from everstream.core.messages import Command, Report
from everstream.engine.continuous.transport.endpoints import SocketFactory
from everstream.engine.continuous.worker.operator_logs import Logged
from everstream.engine.continuous.worker.process_use import Used
from everstream.engine.faults.injection import KillAfter, KillAt, KillNow
from everstream.errors import EverstreamError
from everstream.events import RunEvent
from everstream.pipeline.tuning import Tuning


@dataclass(frozen=True)
class Hello:
    """A process has started, to take the place of a worker or to wait as a spare."""

    number: TaskNumber
    attempt: int
    task: int
    """The id of this attempt of the task, needed to have it killed."""
    pid: int
    machine: str
    address: Any
    plan: int = 0
    """The number of its plan."""


@dataclass(frozen=True)
class Beat:
    """A heartbeat: the worker is alive. Sent by a separate thread, whatever the worker does."""

    number: TaskNumber
    attempt: int
    used: Used = field(default_factory=Used)
    """The resource use of this process."""


@dataclass(frozen=True)
class WorkerBroke:
    """The worker itself failed; it will exit and be restarted."""

    number: TaskNumber
    attempt: int
    error: EverstreamError


@dataclass(frozen=True)
class Unreachable:
    """A worker cannot connect to another one. It keeps retrying; the user should know."""

    worker: WorkerId
    peer: WorkerId
    waited_s: float


@dataclass(frozen=True)
class Noticed:
    """A problem that does not stop the worker, but that the user should know."""

    event: RunEvent


@dataclass(frozen=True)
class TakePlace:
    worker: WorkerId


@dataclass(frozen=True)
class KillFired:
    """The worker is about to kill itself as ordered, and does so on a nod."""

    kill: int
    worker: WorkerId


@dataclass(frozen=True)
class NewPlan:
    """Process: drop your plan and your place in it, and say hello with this plan."""

    number: int
    pickled: bytes = field(repr=False)


@dataclass(frozen=True)
class Nod:
    """An acknowledgement. Also the driver's heartbeat."""


@dataclass(frozen=True)
class Tune:
    tuning: Tuning


@dataclass(frozen=True)
class LeastTime:
    """The event time of the slowest of all aligned sources."""

    least_us: int


@dataclass(frozen=True)
class WantsTuning:
    """An operator requests changed settings: `batch` or `NAME.batch` -> value."""

    wishes: dict[str, str]


ToWorker: TypeAlias = (
    Command | TakePlace | KillAfter | KillAt | KillNow | Nod | Tune | LeastTime | NewPlan
)
"""All messages from the driver to a worker."""

ToDriver: TypeAlias = (
    Report | Hello | Beat | WorkerBroke | Unreachable | Noticed | Logged | KillFired | WantsTuning
)
"""All messages from a worker to the driver."""


class ControlChannel:
    """The driver's end of the connections to all workers."""

    def __init__(self, sockets: SocketFactory) -> None:
        self.socket, self.address = sockets.listen(zmq.ROUTER, "driver")
        self.socket.router_handover = True  # a worker that reconnects is the same worker

    def next(self) -> tuple[bytes, ToDriver] | None:
        """The sender and its message; None if there is no message."""
        try:
            identity, *parts = self.socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None
        return identity, pickle.loads(b"".join(parts))

    def tell(self, identity: bytes, message: ToWorker) -> None:
        self.socket.send_multipart([identity, pickle.dumps(message, protocol=5)])

    def close(self) -> None:
        self.socket.close()
