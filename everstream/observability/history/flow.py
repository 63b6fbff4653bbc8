"""What samples show: how fast each shard, operator and worker goes, and what each of them has now.

Rates are differences of sums. A process that is restarted counts from 0, and one that rolls back counts
from its checkpoint; a rate, here or in Prometheus, must show what was done in between. So `Rising` makes
sums that never fall of counts that start again.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from everstream.core.measuring.histogram import BUCKETS, Histogram
from everstream.events import MetricsSampled

RISING = (
    *("busy_s", "waiting_s", "blocked_s", "bytes_in", "bytes_out", "commits"),
    *("replayed", "suppressed", "batches"),
)
"""What shards sum up since their process began."""
LOST = ("late", "skipped", "dead_letters")
"""What operators count; the second one as checkpoints do."""
RISING_OF_WORKERS = ("cpu_s", "collecting_s")
WINDOW_S = 2.5
"""Rates are over this time, or between the last two samples if those are further apart."""
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
        """What is counted now.

        counts: go back with a checkpoint: where one falls, nothing was done.
        anew: of a process: where one falls, a new process has done so much.
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
        """What comes next says nothing about the time in between."""
        self._window.clear()

    def per_s(self, name: Hashable) -> float | None:
        """How fast it rises; None if that is not known."""
        if not self._window:
            return None
        to_s, now = self._window[-1]
        if name not in now:
            return None
        for from_s, before in self._window:
            if name in before:
                return (now[name] - before[name]) / (to_s - from_s) if to_s > from_s else None
        return None

    def risen(self, name: Hashable) -> float | None:
        """By how much, over the same time."""
        rate = self.per_s(name)
        if rate is None:
            return None
        now = self._window[-1][1]
        first = next(before for _, before in self._window if name in before)
        return now[name] - first[name]

    def _rise(self, name: Hashable, value: float, last: float, if_fallen: float) -> None:
        by = value - last if value >= last else if_fallen
        self.sums[name] = self.sums.get(name, 0.0) + by
        self._last[name] = value


class Flow:
    """The samples of a run, each laid on those before it."""

    def __init__(self) -> None:
        self.rising = Rising()
        self.shards: dict[str, dict[str, Any]] = {}
        """Shard -> what it last said."""
        self.workers: dict[str, dict[str, Any]] = {}
        """Worker -> what was last known of it."""
        self.alive: set[str] = set()
        self.latency: dict[str, set[tuple[str, int]]] = {}
        """Sink -> the shards and buckets in which it has counted."""
        self.at: float | None = None
        self._attempts: dict[str, int] = {}

    def take(self, sample: MetricsSampled) -> None:
        self.at = sample.at
        self.shards.update(sample.shards)
        self.workers.update(sample.workers)
        self.alive = set(sample.workers)
        for worker, there in sample.workers.items():
            self._attempts[worker] = there["attempt"]
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
        """A driver has gone, or come: nothing is known of the time between."""
        self.rising.interrupted()
        self.alive = set()

    def per_s(self, names: Iterable[Hashable]) -> float | None:
        """The rates of all of these together; None unless one is known."""
        known = [rate for name in names if (rate := self.rising.per_s(name)) is not None]
        return sum(known) if known else None

    def share(self, name: str, shard: str) -> float | None:
        """Seconds per second."""
        rate = self.rising.per_s((name, shard))
        return None if rate is None else round(min(1.0, max(0.0, rate)), 4)

    def now(self, shard: str, name: str) -> Any:
        """What a shard has said of itself last."""
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
        """Over all processes these shards have had; `skipped` as the checkpoints have it."""
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
                times = self._recently(("latency", shard, sink, bucket))
                recent.counts[bucket] += times
        return {name: _ms(recent.quantile(q)) for name, q in QUANTILES.items()}

    def latency_sums(self, sink: str) -> Histogram:
        """Since the beginning."""
        histogram = Histogram([0] * BUCKETS)
        for shard, bucket in self.latency.get(sink, ()):
            histogram.counts[bucket] += int(self.rising.sums["latency", shard, sink, bucket])
        return histogram

    def _recently(self, name: Hashable) -> int:
        return int(self.rising.risen(name) or 0)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
