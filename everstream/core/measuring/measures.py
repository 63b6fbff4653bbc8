"""What was measured over a whole run at one moment: what pages, metrics and histories are made of."""

from dataclasses import dataclass

from everstream.core.ids import ShardId, WorkerId
from everstream.core.measuring.meter import Meter


@dataclass(frozen=True)
class WorkerMeasures:
    """A worker's process: sums since it began, and what it has now."""

    machine: str
    pid: int
    attempt: int
    """The sums of another attempt began at 0, those of its shards as well."""
    cpu_s: float = 0.0
    """Of all its threads, in user and kernel mode."""
    memory_bytes: int | None = None
    """Resident, now; None where the system does not tell."""
    peak_bytes: int = 0
    collecting_s: float = 0.0
    """Spent in Python's garbage collection."""


@dataclass(frozen=True)
class Measures:
    """What the event `MetricsSampled` is made of: sums, so that two of them say how it went in between."""

    wall_s: float
    """When, as seconds since 1970."""
    shards: dict[ShardId, Meter]
    counts: dict[ShardId, dict[str, tuple[int, int]]]
    """Shard -> operator -> records in, records out."""
    workers: dict[WorkerId, WorkerMeasures]
    """Those that are there."""
