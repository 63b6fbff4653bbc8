"""Holds the backlog formula against a run that really failed.

Rate, pauses, outage and replayed records come from the run; the capacity must come from
somewhere else (a run at full speed), since taking it from the catch-up itself would prove nothing.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from everstream.planning.analytic import Backlog
from everstream.planning.measured import Measured


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
    """Predict each catch-up of a run. `rate_per_s` is the input rate if it differs from the mean."""
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
