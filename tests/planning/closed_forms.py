"""Textbook answers for simple queues: Erlang C, M/M/c, M/D/1, M/G/1 and open Jackson networks.

They hold without checkpoints and failures and are what the kernel is checked against.
"""

from __future__ import annotations

import math


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
