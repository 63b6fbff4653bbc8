"""How long a worker sleeps when its runners have nothing to do, and how it is woken up.

Time passes between asking the runners and going to sleep. A runner that was not ready when asked is
included in the sleep's length, even if it has become ready since: otherwise the worker would sleep
until something else happens.

ZeroMQ's poll counts in milliseconds, which is as long as a record takes through a whole pipeline.
`select` sleeps to the microsecond. For ZeroMQ's sockets it only reports that it is time to check
them, and they must have been checked before.
"""

import math
import select
from collections.abc import Iterable, Sequence
from typing import Any

import zmq

from everstream.runtime.runner import ShardRunner

SELECTABLE = 1024
"""`select` accepts only file descriptors below this."""


def sleep_s(
    runners: Iterable[ShardRunner], asked_s: float, now_s: float, at_most_s: float
) -> float:
    """Until a source or a timer is ready; asked_s: the time for which the runners were asked."""
    wait_s = at_most_s
    for runner in runners:
        if runner.ready_at_s > asked_s:
            wait_s = min(wait_s, runner.ready_at_s - now_s)
        wait_s = min(wait_s, runner.timer_in_s())
    return max(wait_s, 0.0)


class Poller:
    def __init__(self, waited: Sequence["zmq.Socket[bytes] | int"]) -> None:
        self._poller = zmq.Poller()
        self._fds = []
        for one in waited:
            self._poller.register(one, zmq.POLLIN)
            self._fds.append(one if isinstance(one, int) else int(one.get(zmq.FD)))
        self._fine = max(self._fds) < SELECTABLE

    def wait(self, at_most_s: float) -> dict[Any, int]:
        """The sockets and descriptors that are ready, as soon as one is; none after the timeout."""
        if not self._fine:
            return dict(self._poller.poll(math.ceil(at_most_s * 1000)))
        ready = self._poller.poll(0)
        if not ready and at_most_s > 0:
            select.select(self._fds, (), (), at_most_s)
            ready = self._poller.poll(0)
        return dict(ready)
