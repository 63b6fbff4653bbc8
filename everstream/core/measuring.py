"""The measurements of shards, workers and runs: sums, whose differences give the present rates.

Batches carry the time they came in (`Frame.born_s`); sinks compare it with the time at which they
have written them. This costs a few additions per step and batch, nothing per record, so it is
always on.

Durations are counts in fixed buckets, which give any quantile over any stretch of time. Buckets are
spaced logarithmically, so an estimate is off by at most some 4.5 %, for microseconds and for
minutes. All histograms have the same buckets: those of several shards add up, and the difference of
two readings of one covers the time between them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from everstream.core.ids import ShardId, WorkerId

LOWEST_S = 1e-5
"""Shorter durations count as this."""
PER_OCTAVE = 8
OCTAVES = 27
BUCKETS = PER_OCTAVE * OCTAVES
"""Up to some 1,340 s; longer durations count in the last bucket."""


def lower_s(bucket: float) -> float:
    """Where a bucket begins; it ends where the next one begins."""
    return LOWEST_S * math.exp2(bucket / PER_OCTAVE)


@dataclass(slots=True)
class Histogram:
    """Counts per bucket."""

    counts: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def add(self, took_s: float, times: int = 1) -> None:
        """Count a duration, `times` times."""
        bucket = int(PER_OCTAVE * math.log2(took_s / LOWEST_S)) if took_s > LOWEST_S else 0
        self.counts[min(bucket, BUCKETS - 1)] += times

    @property
    def total(self) -> int:
        return sum(self.counts)

    def quantile(self, q: float) -> float | None:
        """Seconds within which this share of all was done (the median: 0.5); None if empty."""
        total = self.total
        if not total:
            return None
        rank, below = q * total, 0
        for bucket, count in enumerate(self.counts):
            if count and below + count >= rank:
                return lower_s(bucket + max(0.0, rank - below) / count)
            below += count
        raise AssertionError("a share is between 0 and 1")

    def copy(self) -> Self:
        return type(self)(list(self.counts))

    def merge(self, other: "Histogram") -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]

    def since(self, before: "Histogram") -> Self:
        """What was added after an earlier reading of this one."""
        return type(self)([a - b for a, b in zip(self.counts, before.counts, strict=True)])


def merged(histograms: Iterable[Histogram]) -> Histogram:
    everything = Histogram()
    for histogram in histograms:
        everything.merge(histogram)
    return everything


@dataclass(slots=True)
class Losses:
    """Records of one operator that left the usual path."""

    late: int = 0
    skipped: int = 0
    dead_letters: int = 0


@dataclass(slots=True)
class Meter:
    """Sums since this process began, unless noted otherwise; `None` where unknown.

    Records that are written again after a failure count again. A process that replaces another
    begins at 0: before you take differences, check that the worker's attempt is the same and no sum
    has fallen.
    """

    batches: int = 0
    """Batches that sinks have written."""
    records: int = 0
    timed: int = 0
    """The records whose arrival time is known."""
    waited_s: float = 0.0
    """From arrival to the sink, summed over them."""
    latency: dict[str, Histogram] = field(default_factory=dict)
    """Sink -> the latency of each of them; a batch counts as its records."""
    target_per_s: float = 0.0
    """The rate at which the sources are to emit now; 0 if they are not paced."""
    behind: float = 0.0
    """Records that are due and not emitted yet."""
    forfeited: float = 0.0
    """Records that were due and are skipped, at sources that do not catch up."""
    busy_s: float = 0.0
    """Spent in steps: operators, reading, encoding, handing over. Not in taking checkpoints."""
    waiting_s: float = 0.0
    """Idle: no input, or a source that has no records."""
    blocked_s: float = 0.0
    """Back-pressured: there may be input, but downstream has no room for output."""
    bytes_in: int = 0
    """Encoded, of frames from other processes; frames within a process are not encoded."""
    bytes_out: int = 0
    """Encoded, of frames to other processes."""
    frames_waiting: int = 0
    """Now: at the inputs, not processed."""
    watermark: int | None = None
    """Now: milliseconds since 1970; None before there is any, and when the stream has ended."""
    time_waits_for: str | None = None
    """Now: of a source with event time that has not ended, who determines its watermark, in words."""
    source_time_us: int | None = None
    """Now: the watermark of that source, in microseconds; None before there is any."""
    split_behind: bool = False
    """Now: that is one of several things it reads, and another one is ahead."""
    state_bytes: int | None = None
    """Now: the size of a checkpoint of the whole state, as far as checkpoints have shown."""
    state_keys: int | None = None
    """Now."""
    log_bytes: int | None = 0
    """Now: of sent messages that may be requested again; None if they are not encoded."""
    spilled_bytes: int = 0
    """Encoded, of frames written to the local disk because too many waited to stay in memory."""
    commits: int = 0
    """Transactions of sinks that were committed."""
    late: int = 0
    """Records that came after their window was closed: those that leave by an output "late"."""
    skipped: int = 0
    """Records that were skipped because of an error (`on_error`), dead letters among them. Counted
    as in checkpoints: including those before the last failure, and none twice."""
    dead_letters: int = 0
    losses: dict[str, Losses] = field(default_factory=dict)
    """Operator -> these three, for operators that have any."""
    replayed: int = 0
    """Records that were sent again from this shard's log, to shards that had rolled back."""
    suppressed: int = 0
    """Records from before a failure, in frames that were therefore dropped."""

    def wrote(self, sink: str, records: int, born_s: float, now_s: float) -> None:
        """A sink has written records that came in at `born_s`."""
        self.batches += 1
        self.records += records
        if born_s:
            self.timed += records
            waited_s = now_s - born_s
            self.waited_s += records * waited_s
            if sink not in self.latency:
                self.latency[sink] = Histogram()
            self.latency[sink].add(waited_s, records)

    def lost(self, operator: str, *, late: int = 0, dead_letters: int = 0) -> None:
        """Count records of an operator that were late, or became dead letters."""
        self.late += late
        self.dead_letters += dead_letters
        losses = self.losses.setdefault(operator, Losses())
        losses.late += late
        losses.dead_letters += dead_letters


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
