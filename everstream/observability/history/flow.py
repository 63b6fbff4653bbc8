"""From samples to rates: how fast each shard, operator and worker is, and its current values.

Rates are differences of sums. A restarted process counts from 0, and after a rollback it counts
from its checkpoint; but a rate, here or in Prometheus, must include what was done in between. So
`Rising` turns counts that start again into sums that never fall.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from everstream.core.measuring import BUCKETS, Histogram
from everstream.events import MetricsSampled

RISING = (
    *("busy_s", "waiting_s", "blocked_s", "bytes_in", "bytes_out", "commits"),
    *("replayed", "suppressed", "batches"),
)
"""Sums of a shard since its process started."""
LOST = ("late", "skipped", "dead_letters")
"""Counts of an operator; the second one as in checkpoints."""
RISING_OF_WORKERS = ("cpu_s", "collecting_s")
WINDOW_S = 2.5
"""Rates cover this time, or the time between the last two samples if that is longer."""
QUANTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}


class Rising:
    """Sums by name, over all processes that have counted for them."""

    def __init__(self) -> None:
        self.sums: dict[Hashable, float] = {}
        self._last: dict[Hashable, float] = {}
        self._window: deque[tuple[float, dict[Hashable, float]]] = deque()

    def sample(
        self, at: float, counts: Mapping[Hashable, float], anew: Mapping[Hashable, float]
    ) -> None:
        """The current counts.

        counts: roll back with a checkpoint: a lower value means that nothing was done.
        anew: belong to a process: a lower value means that a new process has done that much.
        """
        for name, value in counts.items():
            self._rise(name, value, self._last.get(name, 0.0), 0.0)
        for name, value in anew.items():
            self._rise(name, value, self._last.get(name, 0.0), value)
        here = {name: self.sums[name] for of in (counts, anew) for name in of}
        self._window.append((at, here))
        while len(self._window) > 2 and at - self._window[0][0] > WINDOW_S:
            self._window.popleft()

    def interrupted(self) -> None:
        """The next sample does not cover the time in between."""
        self._window.clear()

    def per_s(self, name: Hashable) -> float | None:
        """How fast it rises; None if unknown."""
        by, over_s = self._risen(name)
        return by / over_s if over_s > 0 else None

    def risen(self, name: Hashable) -> float | None:
        """By how much, over the same time."""
        by, over_s = self._risen(name)
        return by if over_s > 0 else None

    def _risen(self, name: Hashable) -> tuple[float, float]:
        """By how much, and over how many seconds; 0 seconds if unknown."""
        to_s, now = self._window[-1] if self._window else (0.0, {})
        for from_s, before in self._window:
            if name in now and name in before:
                return now[name] - before[name], to_s - from_s
        return 0.0, 0.0

    def _rise(self, name: Hashable, value: float, last: float, if_fallen: float) -> None:
        by = value - last if value >= last else if_fallen
        self.sums[name] = self.sums.get(name, 0.0) + by
        self._last[name] = value


class RunMetrics:
    """The samples of a run, combined."""

    def __init__(self) -> None:
        self.rising = Rising()
        self.shards: dict[str, dict[str, Any]] = {}
        """Shard -> its last report."""
        self.workers: dict[str, dict[str, Any]] = {}
        """Worker -> its last known values."""
        self.alive: set[str] = set()
        self.latency: dict[str, set[tuple[str, int]]] = {}
        """Sink -> the shards and buckets in which it has counted."""
        self.at: float | None = None

    def take(self, sample: MetricsSampled) -> None:
        self.at = sample.at
        self.shards.update(sample.shards)
        self.workers.update(sample.workers)
        self.alive = set(sample.workers)
        counts: dict[Hashable, float] = {}
        anew: dict[Hashable, float] = {}
        for shard, meter in sample.shards.items():
            for name, (taken, given) in meter["counts"].items():
                counts["in", shard, name] = taken
                counts["out", shard, name] = given
                if "losses" in meter:
                    lost = meter["losses"].get(name, {})
                    counts["skipped", shard, name] = lost.get("skipped", 0)
                    anew["late", shard, name] = lost.get("late", 0)
                    anew["dead_letters", shard, name] = lost.get("dead_letters", 0)
            for name in RISING:
                if meter.get(name) is not None:
                    anew[name, shard] = meter[name]
            for sink, buckets in meter.get("latency", {}).items():
                known = self.latency.setdefault(sink, set())
                for bucket, times in buckets.items():
                    known.add((shard, int(bucket)))
                    anew["latency", shard, sink, int(bucket)] = times
        for worker, there in sample.workers.items():
            for name in RISING_OF_WORKERS:
                anew[name, "worker", worker] = there[name]
        self.rising.sample(self.at, counts, anew)

    def interrupted(self) -> None:
        """A driver has ended or started: nothing is known of the time between."""
        self.rising.interrupted()
        self.alive = set()

    def per_s(self, names: Iterable[Hashable]) -> float | None:
        """The sum of these rates; None unless one is known."""
        known = [rate for name in names if (rate := self.rising.per_s(name)) is not None]
        return sum(known) if known else None

    def share(self, name: str, shard: str) -> float | None:
        """Seconds per second."""
        rate = self.rising.per_s((name, shard))
        return None if rate is None else round(min(1.0, max(0.0, rate)), 4)

    def now(self, shard: str, name: str) -> Any:
        """The last reported value of a shard."""
        return self.shards.get(shard, {}).get(name)

    def counted(self, operator: str) -> tuple[int, int] | None:
        """Records in and out of an operator, each record once, over all its shards."""
        pairs = [
            meter["counts"][operator]
            for meter in self.shards.values()
            if operator in meter["counts"]
        ]
        return (sum(p[0] for p in pairs), sum(p[1] for p in pairs)) if pairs else None

    def lost(self, name: str, operator: str, shards: Iterable[str]) -> int | None:
        """Over all processes of these shards; `skipped` as in the checkpoints."""
        if name == "skipped":
            meters = [self.shards[shard] for shard in shards if shard in self.shards]
            losses = [meter["losses"].get(operator, {}) for meter in meters if "losses" in meter]
            return sum(lost.get(name, 0) for lost in losses) if losses else None
        names = [(name, shard, operator) for shard in shards]
        known = [self.rising.sums[lost] for lost in names if lost in self.rising.sums]
        return int(sum(known)) if known else None

    def quantiles(self, sinks: Iterable[str]) -> dict[str, float | None]:
        """Milliseconds from source to sink, over the last seconds."""
        recent = Histogram()
        for sink in sinks:
            for shard, bucket in self.latency.get(sink, ()):
                recently = self.rising.risen(("latency", shard, sink, bucket))
                recent.counts[bucket] += int(recently or 0)
        return {name: _ms(recent.quantile(q)) for name, q in QUANTILES.items()}

    def latency_sums(self, sink: str) -> Histogram:
        """Since the start."""
        histogram = Histogram([0] * BUCKETS)
        for shard, bucket in self.latency.get(sink, ()):
            histogram.counts[bucket] += int(self.rising.sums["latency", shard, sink, bucket])
        return histogram


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
