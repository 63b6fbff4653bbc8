"""Signs of life in the store: what a driver says of itself there, and who waits for its place.

Two small objects that are overwritten. A driver puts its heartbeat there when it starts and when it ends;
in between only if somebody stands by, and as often as that one asks for. Nothing depends on them but
when a standby tries its luck: whether it may have the store, the log of manifests decides.
"""

import json
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from everstream.state.blobs import Blobs
from everstream.state.signing import Forged

HEARTBEAT: Final = "standby/pulse"
WAITING: Final = "standby/waiting"


class Life(Enum):
    """How a driver is, or how it ended."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class Heartbeat:
    """What a driver says of itself."""

    lease: int
    command: str
    """Which command it belongs to: that one starts it again when it dies."""
    owner: str
    life: Life = Life.RUNNING
    beat: int = 0

    def write(self, blobs: Blobs) -> None:
        blobs.write(HEARTBEAT, json.dumps({**asdict(self), "life": self.life.value}).encode())


@dataclass(frozen=True)
class Waiting:
    """Somebody stands by, and wants a sign of life so often."""

    owner: str
    every_s: float
    beat: int = 0

    def write(self, blobs: Blobs) -> None:
        blobs.write(WAITING, json.dumps(asdict(self)).encode())


def read_heartbeat(blobs: Blobs) -> Heartbeat | None:
    """None if there is none that can be read."""
    try:
        found = _read(blobs, HEARTBEAT)
        return None if found is None else Heartbeat(**{**found, "life": Life(found["life"])})
    except (KeyError, TypeError, ValueError):
        return None


def read_waiting(blobs: Blobs) -> Waiting | None:
    try:
        found = _read(blobs, WAITING)
        return None if found is None else Waiting(**found)
    except TypeError:
        return None


def _read(blobs: Blobs, path: str) -> dict[str, Any] | None:
    try:
        found = json.loads(blobs.read(path))
    except (FileNotFoundError, Forged, ValueError):
        return None
    return found if isinstance(found, dict) else None
