"""Formulas that answer in microseconds what the simulation answers in seconds.

Young's and Daly's intervals; and for the `backlog` behaviour, where nothing is lost and a failure
costs delay: how much waits after an outage, how long catching up takes, and how much of the time a
latency target is missed.

Times are in seconds; `commit_s` is how long processing pauses for a checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def young_interval_s(commit_s: float, mtbf_s: float) -> float:
    """Young's first-order optimum.

    >>> round(young_interval_s(1, 600), 1)
    34.6
    """
    return math.sqrt(2 * commit_s * mtbf_s)


def daly_interval_s(commit_s: float, mtbf_s: float) -> float:
    """Daly's higher-order optimum, counted from the end of one checkpoint to the start of the next.

    >>> round(daly_interval_s(1, 600), 1)
    34.0
    """
    if commit_s >= 2 * mtbf_s:
        return mtbf_s
    return ccrr_interval_s(commit_s, mtbf_s) - commit_s


def ccrr_interval_s(commit_s: float, mtbf_s: float) -> float:
    """Equation 4 as the CCRR study prints it: Daly's optimum without the final `- commit_s`.

    >>> round(ccrr_interval_s(1, 600), 1), round(ccrr_interval_s(1, 300), 1)
    (35.0, 24.8)
    """
    ratio = commit_s / (2 * mtbf_s)
    return math.sqrt(2 * commit_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9)


@dataclass(frozen=True)
class Backlog:
    """A system that keeps what it cannot process yet: rates, checkpoints and what an outage takes."""

    rate_per_s: float
    capacity_per_s: float
    interval_s: float
    commit_s: float
    upload_s: float = 0.0
    outage_s: float = 0.0
    """From the failure until processing resumes: detection, restart and restore."""

    @property
    def period_s(self) -> float:
        """From one checkpoint to the next: a checkpoint waits until the one before is stable."""
        return max(self.interval_s, self.upload_s) + self.commit_s

    @property
    def processing_share(self) -> float:
        return 1 - self.commit_s / self.period_s

    @property
    def load(self) -> float:
        """Utilisation while processing is allowed, without pauses."""
        return self.rate_per_s / self.capacity_per_s

    @property
    def mean_age_s(self) -> float:
        """Mean age of the newest stable checkpoint: what has to be replayed, in seconds of input."""
        return self.period_s / 2 + self.commit_s + self.upload_s

    @property
    def worst_age_s(self) -> float:
        return self.period_s + self.commit_s + self.upload_s

    def waiting_after_outage(self, age_s: float | None = None) -> float:
        """Tuples to process before the system is level with its input again, at the restart."""
        age_s = self.mean_age_s if age_s is None else age_s
        return self.rate_per_s * (age_s + self.outage_s)

    def catch_up_s(self, age_s: float | None = None) -> float:
        """From the restart until the backlog is empty; infinite without spare capacity.

        Checkpoints continue meanwhile: each full interval of processing adds a pause and the
        records that arrive during it.
        """
        spare_per_s = self.capacity_per_s - self.rate_per_s
        gain_s = max(self.interval_s, self.upload_s) * spare_per_s
        if spare_per_s <= 0 or gain_s <= self.rate_per_s * self.commit_s:
            return math.inf
        waiting = self.waiting_after_outage(age_s)
        pauses = 0
        while True:
            processing_s = (waiting + pauses * self.rate_per_s * self.commit_s) / spare_per_s
            needed = math.floor(processing_s / (self.period_s - self.commit_s))
            if needed <= pauses:
                return processing_s + pauses * self.commit_s
            pauses = needed

    def recovery_s(self, age_s: float | None = None) -> float:
        """From the failure until nothing waits any more."""
        return self.outage_s + self.catch_up_s(age_s)

    def peak_latency_s(self, age_s: float | None = None) -> float:
        """The latency of a tuple that arrives just as the failure strikes."""
        age_s = self.mean_age_s if age_s is None else age_s
        return self.outage_s + age_s * self.load
