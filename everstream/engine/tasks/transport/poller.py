"""How long a worker sleeps when its runners had nothing to do, and how it is woken up.

Time goes on between asking the runners and going to sleep. Whoever was not ready when it was asked is
waited for, even if it has become ready since: otherwise nobody would, until something else happens.

ZeroMQ's own poll counts in milliseconds, which is as long as a record takes from one end of a pipeline
to the other. `select` sleeps to the microsecond; what it says of ZeroMQ's sockets is only that it is
time to look at them, and they must have been looked at before.
"""

import math
import select
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import zmq

SELECTABLE = 1024
"""From here on `select` does not take file descriptors."""


class Waits(Protocol):
    """Of a runner, what can happen by itself."""

    ready_at_s: float

    def timer_in_s(self) -> float: ...


def sleep_s(runners: Iterable[Waits], asked_s: float, now_s: float, at_most_s: float) -> float:
    """Until a source or a timer is ready; asked_s: for which time the runners were asked."""
    wait_s = at_most_s
    for runner in runners:
        if runner.ready_at_s > asked_s:
            wait_s = min(wait_s, runner.ready_at_s - now_s)
        wait_s = min(wait_s, runner.timer_in_s())
    return max(wait_s, 0.0)


class Poller:
    """Waits for sockets and file descriptors."""

    def __init__(self, waited: Sequence["zmq.Socket[bytes] | int"]) -> None:
        self._poller = zmq.Poller()
        self._fds = []
        for one in waited:
            self._poller.register(one, zmq.POLLIN)
            self._fds.append(one if isinstance(one, int) else int(one.get(zmq.FD)))
        self._fine = max(self._fds) < SELECTABLE

    def wait(self, at_most_s: float) -> dict[Any, int]:
        """What has come, as soon as anything has; nothing if the time is over."""
        if not self._fine:
            return dict(self._poller.poll(math.ceil(at_most_s * 1000)))
        ready = self._poller.poll(0)
        if not ready and at_most_s > 0:
            select.select(self._fds, (), (), at_most_s)
            ready = self._poller.poll(0)
        return dict(ready)
