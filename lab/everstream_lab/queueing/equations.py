"""Equations 1, 3, 5 and 6 of the CCRR study. Times are in seconds."""

import math


def run_time_without_failures_s(work_s: float, interval_s: float, commit_s: float) -> float:
    """Equation 1: the work plus one commit per interval."""
    return work_s + work_s / interval_s * commit_s


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
