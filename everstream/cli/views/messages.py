"""Messages from the driver process to its supervisor, over a private pipe.

The driver runs the pipeline and sends its events; the supervisor shows them and outlives the driver.
Messages are pickled one after the other, which is safe because both ends are Everstream itself.
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
    """The pipeline was found: what will run, and where its checkpoints are."""

    pipeline: str
    store: str
    checkpoints: str


@dataclass(frozen=True)
class EventReported:
    event: RunEvent
    at_s: float
    """On the monotonic clock, which the processes of a machine share."""


@dataclass(frozen=True)
class Answered:
    """The answer to a request of the supervisor."""

    number: int
    text: str
    trouble: str | None = None
    """None: it was done. "usage", "late" or "failed": why not."""


@dataclass(frozen=True)
class DriverFinished:
    """The run ended without a failure. `result` is that of `RunResult.to_json`."""

    result: dict[str, Any]


class Fault(Enum):
    """Who has to act after a failure."""

    USAGE = "usage"
    """The user: the command cannot be run as given."""
    RUN = "run"
    """No one: the run failed for good."""
    LOST = "lost"
    """The supervisor: Spark died under a healthy run, or while the run started."""
    STOPPED = "stopped"
    """No one: the run was stopped before its first record."""


@dataclass(frozen=True)
class DriverFailed:
    fault: Fault
    text: str


Message: TypeAlias = Opened | EventReported | Answered | DriverFinished | DriverFailed


class Teller(Listener):
    def __init__(self, tell: Callable[[Message], None]) -> None:
        self._tell = tell
        self.has_started = False

    def on_event(self, event: RunEvent) -> None:
        self.has_started |= isinstance(event, RunStarted)
        self._tell(EventReported(event, time.monotonic()))


def write_message(stream: BinaryIO, message: Message) -> None:
    pickle.dump(message, stream, protocol=5)
    stream.flush()


def read_messages(stream: BinaryIO) -> Iterator[Message]:
    """Every complete message; a killed driver may leave a partial one behind."""
    while True:
        try:
            message: Message = pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):
            return
        yield message
