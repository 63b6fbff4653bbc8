"""The measurements of a whole run at one moment, from which pages, metrics and histories are
made."""

from dataclasses import dataclass

from everstream.core.ids import ShardId, WorkerId
from everstream.core.measuring.meter import Meter


@dataclass(frozen=True)
class WorkerMeasures:
    """A worker's process: sums since it began, and present values."""

    machine: str
    pid: int
    attempt: int
    """The sums of another attempt, and those of its shards, started at 0."""
    cpu_s: float = 0.0
    """Of all its threads, in user and kernel mode."""
    memory_bytes: int | None = None
    """Resident, now; None where the system does not report it."""
    peak_bytes: int = 0
    collecting_s: float = 0.0
    """Spent in Python's garbage collection."""


@dataclass(frozen=True)
class Measures:
    """The content of the event `MetricsSampled`: sums, so that two of them give rates."""

    wall_s: float
    """When it was measured, in seconds since 1970."""
    shards: dict[ShardId, Meter]
    counts: dict[ShardId, dict[str, tuple[int, int]]]
    """Shard -> operator -> records in, records out."""
    workers: dict[WorkerId, WorkerMeasures]
    """The workers that are present."""
