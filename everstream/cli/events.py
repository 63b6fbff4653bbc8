"""What the driver process tells its monitor, over a pipe only the two of them hold.

The driver runs the pipeline and says what happens; the monitor shows it and outlives the driver.
Events are pickled one after the other: each end is our own program, started by the other.
"""

import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, BinaryIO, TypeAlias

from everstream.core.manifest import EpochManifest, shown_once
from everstream.core.plan import Plan
from everstream.engine.kills import Kill
from everstream.engine.reporting.listener import Listener, RunStatus
from everstream.engine.result import checkpoint_json
from everstream.observability.history.entries import Entry


@dataclass(frozen=True)
class Opened:
    """The pipeline was found; this is what will run and where its checkpoints are."""

    pipeline: str
    store: str
    checkpoints: str


@dataclass(frozen=True)
class Started:
    """Spark is there and the store is ours; the workers are about to start."""

    operators: tuple[str, ...]
    shards: int
    workers: int
    total_records: int | None
    at_s: float
    shown_once: tuple[str, ...] = ()
    """The sinks that show no record twice."""


@dataclass(frozen=True)
class Progressed:
    snapshot: RunStatus
    at_s: float


@dataclass(frozen=True)
class Noted:
    text: str
    warning: bool


@dataclass(frozen=True)
class EpochStable:
    checkpoint: dict[str, Any]


@dataclass(frozen=True)
class KillDelivered:
    """A kill the user asked for is about to happen; it must not be asked for again."""

    kill: Kill
    at_s: float = 0.0
    of_driver: bool = False


@dataclass(frozen=True)
class Recorded:
    """An entry of the run's history."""

    entry: Entry


@dataclass(frozen=True)
class Answered:
    """What became of something the monitor has asked for."""

    number: int
    text: str
    trouble: str | None = None
    """None: it was done. "usage", "late" or "failed": why not."""


@dataclass(frozen=True)
class DriverLost:
    """The monitor's own: the driver has died, and may be started again."""

    how: str


@dataclass(frozen=True)
class Finished:
    """The run ended in good order: `result` is what `RunResult.to_json` gives."""

    result: dict[str, Any]


class Fault(Enum):
    """Whose turn it is after a failure."""

    USAGE = "usage"
    """The user's: what was asked for cannot be run."""
    RUN = "run"
    """Nobody's: the run was tried and failed for good."""
    LOST = "lost"
    """The monitor's: Spark went away under a run that was going well, or while it started."""
    STOPPED = "stopped"
    """Nobody's: it was stopped before it had begun."""


@dataclass(frozen=True)
class Failed:
    fault: Fault
    text: str


Event: TypeAlias = (
    Opened
    | Started
    | Progressed
    | Noted
    | EpochStable
    | KillDelivered
    | Recorded
    | Answered
    | DriverLost
    | Finished
    | Failed
)


class Teller(Listener):
    """Listens to a run and passes everything on as events."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self.tell = tell
        self.has_started = False
        self.plan: Plan | None = None

    def started(self, plan: Plan, total_records: int | None) -> None:
        self.has_started = True
        operators = tuple(plan.graph.nodes)
        shards, workers = len(plan.shards), len(plan.workers)
        self.plan = plan
        now_s, once = time.monotonic(), tuple(shown_once(plan))
        self.tell(Started(operators, shards, workers, total_records, now_s, once))

    def rescaled(self, plan: Plan) -> None:
        self.plan = plan

    def progress(self, snapshot: RunStatus) -> None:
        self.tell(Progressed(snapshot, time.monotonic()))

    def note(self, text: str, warning: bool) -> None:
        self.tell(Noted(text, warning))

    def epoch(self, manifest: EpochManifest) -> None:
        self.tell(EpochStable(checkpoint_json(manifest)))

    def killing(self, kill: Kill) -> None:
        of_driver = self.plan is not None and kill.of_driver(self.plan)
        self.tell(KillDelivered(kill, time.monotonic(), of_driver))

    def recorded(self, entry: Entry) -> None:
        self.tell(Recorded(entry))


def write_event(stream: BinaryIO, event: Event) -> None:
    pickle.dump(event, stream, protocol=5)
    stream.flush()


def read_events(stream: BinaryIO) -> Iterator[Event]:
    """Every whole event; a driver that was killed may leave half a one behind."""
    while True:
        try:
            event: Event = pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):
            return
        yield event
