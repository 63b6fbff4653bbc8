"""Formulas that answer in microseconds what the simulation answers in seconds.

The first half is what the CCRR study uses (its equations 1 to 6) with Young's and Daly's
intervals. The second half is for the `backlog` behaviour, where nothing is lost and a failure
costs delay: how much waits after an outage, how long catching up takes, and how much of the
time a latency target is missed.

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


def run_time_without_failures_s(work_s: float, interval_s: float, commit_s: float) -> float:
    """Equation 1: the work plus one commit per interval."""
    return work_s + work_s / interval_s * commit_s


def shared_commit_s(nodes: int, checkpoint_bytes: float, bandwidth_bytes_per_s: float) -> float:
    """Equation 2: all nodes write their checkpoint to one shared store."""
    return nodes * checkpoint_bytes / bandwidth_bytes_per_s


def run_time_with_failures_s(
    work_s: float, interval_s: float, commit_s: float, recovery_s: float, mtbf_s: float
) -> float:
    """Equation 3 (Daly): half an interval is done again after each failure.

    In the CCRR system nothing is done again (tuples pass by the failed node instead), so this
    overestimates its window; the study reports up to 10.5 % for it.
    """
    checkpoints = work_s / interval_s
    period_s = interval_s + commit_s
    return (
        work_s
        + (checkpoints - 1) * commit_s
        + checkpoints * (period_s / 2 + recovery_s) * period_s / mtbf_s
    )


def loss_without_failures(
    rate_per_s: float, work_s: float, interval_s: float, commit_s: float
) -> float:
    """Equation 5: what arrives during the commits is lost."""
    return rate_per_s * math.floor(work_s / interval_s) * commit_s


def loss_with_failures(
    rate_per_s: float,
    work_s: float,
    interval_s: float,
    commit_s: float,
    recovery_s: float,
    mtbf_s: float,
) -> float:
    """Equation 6: the commits plus one recovery for each failure, counted generously."""
    total_s = run_time_with_failures_s(work_s, interval_s, commit_s, recovery_s, mtbf_s)
    failures = math.floor(total_s / mtbf_s + 1)
    return (
        loss_without_failures(rate_per_s, work_s, interval_s, commit_s)
        + rate_per_s * failures * recovery_s
    )


@dataclass(frozen=True)
class DiscardForecast:
    """What the `discard` behaviour is expected to do, per window."""

    window_s: float
    lost: float
    unprocessed: float
    recoveries: float


def discard_forecast(
    rate_per_s: float,
    tuples: int,
    interval_s: float,
    commit_s: float,
    recovery_s: float,
    mtbf_s: float,
    failing_nodes: int = 1,
) -> DiscardForecast:
    """Exact means for exponential failures, repaired one by one at the next checkpoint.

    Each interval starts with every node up, save those that failed during a plain commit, so
    a node is found down with probability 1 - exp(-(interval + commit) / mtbf) at most.
    """
    work_s = tuples / rate_per_s
    cycles = math.floor(work_s / interval_s)
    rest_s = work_s - cycles * interval_s
    all_up = math.exp(-commit_s / mtbf_s)
    found_down = 1 - math.exp(-interval_s / mtbf_s)
    # A commit without a recovery lets a failure in; one with a recovery restarts all clocks.
    no_recovery = (1 - found_down) ** failing_nodes
    for _ in range(50):
        carried = no_recovery * (1 - all_up)
        node_down = carried + (1 - carried) * found_down
        no_recovery = (1 - node_down) ** failing_nodes
    recoveries = cycles * failing_nodes * node_down
    paused_s = cycles * commit_s + recoveries * recovery_s

    def skipped_s(span_s: float) -> float:
        """Mean time in a span with at least one node down."""
        up_s = 0.0
        steps = 200
        for i in range(steps):
            at_s = (i + 0.5) * span_s / steps
            node_up = (1 - carried) * math.exp(-at_s / mtbf_s)
            up_s += node_up**failing_nodes * span_s / steps
        return span_s - up_s

    return DiscardForecast(
        window_s=work_s + paused_s,
        lost=rate_per_s * paused_s,
        unprocessed=rate_per_s * (cycles * skipped_s(interval_s) + skipped_s(rest_s)),
        recoveries=recoveries,
    )


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

    def utilisation(self, mtbf_s: float = math.inf) -> float:
        """Share of its capacity the system needs: input, pauses, outages and replay included."""
        available = self.processing_share * (1 - self.outage_s / (mtbf_s + self.outage_s))
        replayed_per_s = self.rate_per_s * self.mean_age_s / mtbf_s
        return (self.rate_per_s + replayed_per_s) / (self.capacity_per_s * available)

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

    def above_target_fraction(self, target_s: float, mtbf_s: float = math.inf) -> float:
        """Expected fraction of the time in which an arriving tuple will miss the target.

        After an outage the latency falls in a straight line from its peak; the same holds,
        smaller, after the pause of a checkpoint. Both are averaged over when the failure
        strikes, which is any time within a period.
        """
        if self.load >= 1:
            return 1.0
        late_s = 0.0
        steps = 200
        for i in range(steps):
            age_s = self.commit_s + self.upload_s + self.period_s * (i + 0.5) / steps
            late_s += max(0.0, self.peak_latency_s(age_s) - target_s) / (1 - self.load) / steps
        pause_late_s = max(0.0, self.commit_s - target_s) / (1 - self.load)
        return min(1.0, late_s / mtbf_s + pause_late_s / self.period_s)

    def mean_delay_s(self, mtbf_s: float = math.inf) -> float:
        """Expected extra latency of a tuple, averaged over all time: the areas of the triangles."""
        if self.load >= 1:
            return math.inf
        area = 0.0
        steps = 200
        for i in range(steps):
            age_s = self.commit_s + self.upload_s + self.period_s * (i + 0.5) / steps
            area += self.peak_latency_s(age_s) ** 2 / (2 * (1 - self.load)) / steps
        pause_area = self.commit_s**2 / (2 * (1 - self.load))
        return area / mtbf_s + pause_area / self.period_s
