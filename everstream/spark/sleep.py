"""How long a host sleeps when its runners had nothing to do.

Time goes on between asking the runners and going to sleep. Whoever was not ready when it was asked is
waited for, even if it has become ready since: otherwise nobody would, until something else happens.
"""

from collections.abc import Iterable
from typing import Protocol


class Waits(Protocol):
    """Of a runner, what can happen by itself."""

    ready_at_s: float

    def timer_in_s(self) -> float: ...


def sleep_ms(runners: Iterable[Waits], asked_s: float, now_s: float, at_most_s: float) -> int:
    """Milliseconds until a source or a timer is ready; asked_s: for which time the runners were asked."""
    wait_s = at_most_s
    for runner in runners:
        if runner.ready_at_s > asked_s:
            wait_s = min(wait_s, runner.ready_at_s - now_s)
        wait_s = min(wait_s, runner.timer_in_s())
    return max(1, int(wait_s * 1000)) if wait_s > 0 else 0
