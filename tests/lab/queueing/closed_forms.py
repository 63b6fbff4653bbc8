"""Textbook answers for simple queues: Erlang C, M/M/c, M/D/1, M/G/1 and open Jackson networks.

They hold without checkpoints and failures and are what the kernel is checked against, with the exact
means of the `discard` behaviour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def erlang_c(offered: float, servers: int) -> float:
    """The probability of having to wait, for `offered` = arrival rate times mean service time."""
    if offered >= servers:
        return 1.0
    blocking = 1.0
    for busy in range(1, servers + 1):
        blocking = offered * blocking / (busy + offered * blocking)
    utilisation = offered / servers
    return blocking / (1 - utilisation + utilisation * blocking)


def mmc_wait_s(rate_per_s: float, service_s: float, servers: int) -> float:
    """Mean wait in an M/M/c queue; infinite when it cannot keep up.

    >>> round(mmc_wait_s(0.5, 1.0, 1), 6)
    1.0
    """
    offered = rate_per_s * service_s
    if offered >= servers:
        return math.inf
    return erlang_c(offered, servers) * service_s / (servers - offered)


def mg1_wait_s(rate_per_s: float, service_s: float, variance_s2: float) -> float:
    """Pollaczek and Khinchine: mean wait with one server and any service distribution."""
    utilisation = rate_per_s * service_s
    if utilisation >= 1:
        return math.inf
    return rate_per_s * (variance_s2 + service_s**2) / (2 * (1 - utilisation))


def batch_mm1_wait_s(batches_per_s: float, entities: int, service_s: float) -> float:
    """Mean wait when tuples come in batches of fixed size to one exponential server."""
    utilisation = batches_per_s * entities * service_s
    if utilisation >= 1:
        return math.inf
    return service_s * (2 * utilisation + entities - 1) / (2 * (1 - utilisation))


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
