"""What the driver process sends to its supervisor, over a pipe only the two of them hold.

The driver runs the pipeline and sends its events; the supervisor shows them and outlives the driver.
Messages are pickled one after the other: each end is our own program, started by the other.
"""

import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, BinaryIO, TypeAlias

from everstream.engine.reporting.listener import Listener
from everstream.events import RunEvent, RunStarted


@dataclass(frozen=True)
class Opened:
    """The pipeline was found; this is what will run and where its checkpoints are."""

    pipeline: str
    store: str
    checkpoints: str


@dataclass(frozen=True)
class Told:
    """An event of the run."""

    event: RunEvent
    at_s: float
    """When, on the monotonic clock that the processes of a machine share."""


@dataclass(frozen=True)
class Answered:
    """What became of a request of the supervisor."""

    number: int
    text: str
    trouble: str | None = None
    """None: it was done. "usage", "late" or "failed": why not."""


@dataclass(frozen=True)
class Finished:
    """The run ended in good order: `result` is what `RunResult.to_json` gives."""

    result: dict[str, Any]


class Fault(Enum):
    """Who must act after a failure."""

    USAGE = "usage"
    """The user: what was asked for cannot be run."""
    RUN = "run"
    """No one: the run was tried and failed for good."""
    LOST = "lost"
    """The supervisor: Spark went away under a run that was going well, or while it started."""
    STOPPED = "stopped"
    """No one: it was stopped before it had begun."""


@dataclass(frozen=True)
class Failed:
    fault: Fault
    text: str


Message: TypeAlias = Opened | Told | Answered | Finished | Failed


class Teller(Listener):
    """Sends the events of a run as messages."""

    def __init__(self, tell: Callable[[Message], None]) -> None:
        self._tell = tell
        self.has_started = False

    def on_event(self, event: RunEvent) -> None:
        self.has_started |= isinstance(event, RunStarted)
        self._tell(Told(event, time.monotonic()))


def write_message(stream: BinaryIO, message: Message) -> None:
    pickle.dump(message, stream, protocol=5)
    stream.flush()


def read_messages(stream: BinaryIO) -> Iterator[Message]:
    """Every whole message; a driver that was killed may leave half a one behind."""
    while True:
        try:
            message: Message = pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):
            return
        yield message
