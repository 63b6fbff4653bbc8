"""Decides, while a job runs, how far apart its checkpoints should be.

`AutoInterval` receives facts: a checkpoint was taken and cost this much, a shard failed and its
recovery took this long. It returns a `Decision`: the interval and, in words, the reason. It has
no clock, no log and no thread; every fact carries the time it happened, so the engine calls it
and a test replays it.

How it decides. Cost of checkpoints is `pause / interval`; cost of failures is `interval / 2`
of work done again for each time between failures. The sum is least at Young's and Daly's
interval, and the curve is flat around it, so it waits until the interval in force is clearly
wrong (hysteresis) and moves at most by a factor per change. A recovery-time target is a cap
on the interval, whatever the optimum: a longer interval means more to replay.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

from everstream.planning import analytic


@dataclass(frozen=True)
class AutoSettings:
    """The parameters of `every="auto"`; the defaults suit an unknown job."""

    initial_s: float = 10.0
    shortest_s: float = 0.5
    longest_s: float = 600.0
    recovery_target_s: float | None = None
    """From the failure until caught up. Caps the interval."""
    max_overhead: float | None = None
    """Share of the time that pauses may take. Floors the interval; the recovery target wins."""
    expected_mtbf_s: float = 6 * 3600.0
    """What to believe before any failure is seen; it weighs as much as one failure."""
    hysteresis: float = 0.25
    """Leave the interval alone while the wanted one is within this share of it."""
    largest_step: float = 4.0
    """Change the interval by at most this factor at once."""
    patience: int = 2
    """Checkpoints that must agree before the interval changes; a failure changes it at once."""
    remembered: int = 20
    """How many of the latest checkpoints the cost is judged by."""

    def __post_init__(self) -> None:
        if not 0 < self.shortest_s <= self.longest_s:
            raise ValueError(
                f"the bounds must be 0 < shortest <= longest, not {self.shortest_s} s "
                f"and {self.longest_s} s"
            )
        if self.recovery_target_s is not None and self.recovery_target_s <= 0:
            raise ValueError("the recovery target must be above zero seconds")
        if self.max_overhead is not None and not 0 < self.max_overhead < 1:
            raise ValueError("max_overhead is a share between 0 and 1")
        if self.expected_mtbf_s <= 0 or self.hysteresis < 0 or self.largest_step <= 1:
            raise ValueError(
                "expected_mtbf_s must be above 0, hysteresis at least 0 and largest_step above 1"
            )
        if self.patience < 1 or self.remembered < 1:
            raise ValueError("patience and remembered must be at least 1")


@dataclass(frozen=True)
class CheckpointSeen:
    """A checkpoint became stable at `at_s`."""

    at_s: float
    pause_s: float
    """How long the hot path stood still: the longest capture among the shards."""
    duration_s: float
    """From its start until it was stable."""


@dataclass(frozen=True)
class FailureSeen:
    """A failure struck at `at_s`; the rest is known when its recovery is over, else None."""

    at_s: float
    outage_s: float | None = None
    """From the failure until processing resumed."""


@dataclass(frozen=True)
class RateSeen:
    """Records per second arriving and the most the job has been seen to process."""

    at_s: float
    rate_per_s: float
    capacity_per_s: float


Fact = CheckpointSeen | FailureSeen | RateSeen


@dataclass(frozen=True)
class Decision:
    """The interval to use from now on; `changed` says whether it differs from before."""

    at_s: float
    interval_s: float
    changed: bool
    reason: str


@dataclass
class AutoInterval:
    """Keeps the interval near the optimum. Feed it facts in order of time."""

    settings: AutoSettings = field(default_factory=AutoSettings)
    started_s: float = 0.0
    interval_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.interval_s = self._bounded(self.settings.initial_s)[0]
        self._now_s = self.started_s
        self._pauses_s: deque[float] = deque(maxlen=self.settings.remembered)
        self._uploads_s: deque[float] = deque(maxlen=self.settings.remembered)
        self._outages_s: deque[float] = deque(maxlen=self.settings.remembered)
        self._failures = 0
        self._load: RateSeen | None = None
        self._agreeing = 0
        self._direction = 0

    @property
    def mtbf_s(self) -> float:
        """Time watched per failure, with the prior belief counted as one failure in its time."""
        watched_s = self._now_s - self.started_s
        return (watched_s + self.settings.expected_mtbf_s) / (self._failures + 1)

    @property
    def pause_s(self) -> float | None:
        """What a checkpoint costs now: the median, which one stall does not move."""
        return _median(self._pauses_s)

    def see(self, fact: Fact) -> Decision:
        """Take in one fact and say which interval to use."""
        if fact.at_s < self._now_s:
            raise ValueError(
                f"facts must come in order of time: {fact.at_s} s after {self._now_s} s"
            )
        self._now_s = fact.at_s
        failed = False
        if isinstance(fact, CheckpointSeen):
            self._pauses_s.append(max(0.0, fact.pause_s))
            self._uploads_s.append(max(0.0, fact.duration_s - fact.pause_s))
        elif isinstance(fact, FailureSeen):
            self._failures += 1
            failed = True
            if fact.outage_s is not None:
                self._outages_s.append(fact.outage_s)
        else:
            self._load = fact
        if self.pause_s is None:
            return self._keep("no checkpoint has been measured yet")
        wanted_s, why = self.wanted()
        return self._move(wanted_s, why, at_once=failed, counts=isinstance(fact, CheckpointSeen))

    def wanted(self) -> tuple[float, str]:
        """The best interval by what is known now, before hysteresis, and the reason for it."""
        pause_s = self.pause_s
        if pause_s is None:
            return self.interval_s, "no checkpoint has been measured yet"
        # Even a free checkpoint occupies the store and the shards' spare time while it uploads.
        best_s = analytic.daly_interval_s(max(pause_s, 1e-4), self.mtbf_s)
        why = (
            f"a checkpoint stops the job for {pause_s:.3g} s and one failure is expected "
            f"every {self.mtbf_s:.3g} s ({self._failures} seen)"
        )
        if self.settings.max_overhead is not None:
            floor_s = pause_s * (1 - self.settings.max_overhead) / self.settings.max_overhead
            if best_s < floor_s:
                best_s = floor_s
                why = f"pauses of {pause_s:.3g} s may take {self.settings.max_overhead:.2%} of the time"
        target_s = self.settings.recovery_target_s
        if target_s is not None:
            cap_s, cap_why = self._longest_for_target(target_s, pause_s)
            if best_s > cap_s:
                best_s, why = cap_s, cap_why
        upload_s = _median(self._uploads_s) or 0.0
        if best_s < upload_s:
            best_s = upload_s
            why += f"; but a checkpoint takes {upload_s:.3g} s to become stable"
        bounded_s, bound = self._bounded(best_s)
        return bounded_s, why + bound

    def _longest_for_target(self, target_s: float, pause_s: float) -> tuple[float, str]:
        """The longest interval whose worst recovery still meets the target, found by bisection."""
        outage_s = max(self._outages_s, default=0.0)
        upload_s = _median(self._uploads_s) or 0.0
        # Without a measured load, assume replay runs at twice the speed of the input.
        rate, capacity = 1.0, 2.0
        if self._load is not None:
            rate, capacity = self._load.rate_per_s, self._load.capacity_per_s

        def recovery_s(interval_s: float) -> float:
            system = analytic.Backlog(rate, capacity, interval_s, pause_s, upload_s, outage_s)
            return system.recovery_s(system.worst_age_s)

        why = (
            f"a recovery must end within {target_s:.3g} s: {outage_s:.3g} s of it are outage, the "
            f"rest is for catching up at {capacity / rate:.3g} times the input rate"
        )
        low_s, high_s = self.settings.shortest_s, self.settings.longest_s
        if recovery_s(high_s) <= target_s:
            return math.inf, why
        if recovery_s(low_s) > target_s:
            return low_s, f"no interval can meet the recovery target of {target_s:.3g} s; " + why
        for _ in range(60):
            middle_s = (low_s + high_s) / 2
            if recovery_s(middle_s) <= target_s:
                low_s = middle_s
            else:
                high_s = middle_s
        return low_s, why

    def _bounded(self, interval_s: float) -> tuple[float, str]:
        if interval_s < self.settings.shortest_s:
            return (
                self.settings.shortest_s,
                f"; kept at the lower bound of {self.settings.shortest_s:.3g} s",
            )
        if interval_s > self.settings.longest_s:
            return (
                self.settings.longest_s,
                f"; kept at the upper bound of {self.settings.longest_s:.3g} s",
            )
        return interval_s, ""

    def _move(self, wanted_s: float, why: str, at_once: bool, counts: bool) -> Decision:
        low_s = self.interval_s / (1 + self.settings.hysteresis)
        high_s = self.interval_s * (1 + self.settings.hysteresis)
        if low_s <= wanted_s <= high_s:
            self._agreeing = 0
            return self._keep(f"{wanted_s:.3g} s would be best, which is near enough: {why}")
        direction = 1 if wanted_s > self.interval_s else -1
        if direction != self._direction:
            self._agreeing = 0
        self._direction = direction
        self._agreeing += counts
        if not at_once and self._agreeing < self.settings.patience:
            return self._keep(f"{wanted_s:.3g} s would be best; waiting for it to last: {why}")
        step = self.settings.largest_step
        before_s = self.interval_s
        self.interval_s = min(max(wanted_s, before_s / step), before_s * step)
        self._agreeing = 0
        limited = "" if self.interval_s == wanted_s else f" (a step towards {wanted_s:.3g} s)"
        return Decision(
            self._now_s,
            self.interval_s,
            True,
            f"from {before_s:.3g} s to {self.interval_s:.3g} s{limited}: {why}",
        )

    def _keep(self, reason: str) -> Decision:
        return Decision(self._now_s, self.interval_s, False, reason)


def _median(values: deque[float]) -> float | None:
    return statistics.median(values) if values else None
