"""What more follows from the backlog model, and its catch-up held against runs that really failed."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from everstream.planning.analytic import Backlog
from everstream.planning.measured import Measured


def utilisation(system: Backlog, mtbf_s: float = math.inf) -> float:
    """Share of its capacity the system needs: input, pauses, outages and replay included."""
    available = system.processing_share * (1 - system.outage_s / (mtbf_s + system.outage_s))
    replayed_per_s = system.rate_per_s * system.mean_age_s / mtbf_s
    return (system.rate_per_s + replayed_per_s) / (system.capacity_per_s * available)


def above_target_fraction(system: Backlog, target_s: float, mtbf_s: float = math.inf) -> float:
    """Expected fraction of the time in which an arriving tuple will miss the target.

    After an outage the latency falls in a straight line from its peak; the same holds,
    smaller, after the pause of a checkpoint. Both are averaged over when the failure
    strikes, which is any time within a period.
    """
    if system.load >= 1:
        return 1.0
    late_s = 0.0
    steps = 200
    for i in range(steps):
        age_s = system.commit_s + system.upload_s + system.period_s * (i + 0.5) / steps
        late_s += max(0.0, system.peak_latency_s(age_s) - target_s) / (1 - system.load) / steps
    pause_late_s = max(0.0, system.commit_s - target_s) / (1 - system.load)
    return min(1.0, late_s / mtbf_s + pause_late_s / system.period_s)


def mean_delay_s(system: Backlog, mtbf_s: float = math.inf) -> float:
    """Expected extra latency of a tuple, averaged over all time: the areas of the triangles."""
    if system.load >= 1:
        return math.inf
    area = 0.0
    steps = 200
    for i in range(steps):
        age_s = system.commit_s + system.upload_s + system.period_s * (i + 0.5) / steps
        area += system.peak_latency_s(age_s) ** 2 / (2 * (1 - system.load)) / steps
    pause_area = system.commit_s**2 / (2 * (1 - system.load))
    return area / mtbf_s + pause_area / system.period_s


@dataclass(frozen=True)
class RecoveryCheck:
    """One recovery: catch-up as predicted and as measured, both from restored to caught up."""

    predicted_s: float
    measured_s: float

    @property
    def difference(self) -> float:
        """Predicted against measured, as a share; infinite when there was nothing to catch up."""
        return self.predicted_s / self.measured_s - 1 if self.measured_s else math.inf


def check_recoveries(
    run: Measured, capacity_per_s: float, rate_per_s: float | None = None
) -> list[RecoveryCheck]:
    """Predict each catch-up of a run. `rate_per_s` is the input rate if it differs from the mean.

    Rate, pauses, outage and replayed records come from the run; the capacity must come from somewhere
    else (a run at full speed), since taking it from the catch-up itself would prove nothing.
    """
    rate = rate_per_s or run.rate_per_s
    pause_s = statistics.median(run.pauses_s) if run.pauses_s else 0.0
    duration_s = statistics.median(run.durations_s) if run.durations_s else 0.0
    checks = []
    for outage_s, catch_up_s, replayed in zip(
        run.outages_s, run.catch_ups_s, run.replayed, strict=True
    ):
        system = Backlog(
            rate_per_s=rate,
            capacity_per_s=capacity_per_s,
            interval_s=run.interval_s or math.inf,
            commit_s=pause_s,
            upload_s=max(0.0, duration_s - pause_s),
            outage_s=outage_s,
        )
        checks.append(RecoveryCheck(system.catch_up_s(replayed / rate), catch_up_s))
    return checks
