"""Heartbeats in the store: the status of a driver, and the standby that waits to replace it.

Two small objects that are overwritten. A driver writes its heartbeat when it starts and when it
ends, and in between only if there is a standby, as often as that one requests. They only determine
when a standby tries to take over: the log of manifests decides whether it may.
"""

import json
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from everstream.state.blobs import Blobs
from everstream.state.signing import Forged

HEARTBEAT: Final = "standby/pulse"
WAITING: Final = "standby/waiting"


class DriverStatus(Enum):
    """The status of a driver, or how it ended."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class Heartbeat:
    """The status that a driver reports."""

    lease: int
    command: str
    """The command it belongs to, which restarts it when it dies."""
    owner: str
    life: DriverStatus = DriverStatus.RUNNING
    beat: int = 0

    def write(self, blobs: Blobs) -> None:
        blobs.write(HEARTBEAT, json.dumps({**asdict(self), "life": self.life.value}).encode())


@dataclass(frozen=True)
class Waiting:
    """A standby is waiting, and requests a heartbeat at this interval."""

    owner: str
    every_s: float
    beat: int = 0

    def write(self, blobs: Blobs) -> None:
        blobs.write(WAITING, json.dumps(asdict(self)).encode())


def read_heartbeat(blobs: Blobs) -> Heartbeat | None:
    """The heartbeat; None if none can be read."""
    try:
        fields = _read(blobs, HEARTBEAT)
        return (
            None
            if fields is None
            else Heartbeat(**{**fields, "life": DriverStatus(fields["life"])})
        )
    except (KeyError, TypeError, ValueError):
        return None


def read_waiting(blobs: Blobs) -> Waiting | None:
    try:
        fields = _read(blobs, WAITING)
        return None if fields is None else Waiting(**fields)
    except TypeError:
        return None


def _read(blobs: Blobs, path: str) -> dict[str, Any] | None:
    try:
        fields = json.loads(blobs.read(path))
    except (FileNotFoundError, Forged, ValueError):
        return None
    return fields if isinstance(fields, dict) else None
