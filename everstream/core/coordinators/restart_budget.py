"""How many failures are too many."""

from collections import deque

from everstream.core.ids import HostId

TOGETHER_S = 1.0
"""Different hosts that fail within this time have failed of one cause."""


class RestartBudget:
    """At most so many failures in a window of time; those we injected ourselves are free.

    Hosts that fail together, because a machine died or a network was cut, count once.
    """

    def __init__(self, limit: int, window_s: float) -> None:
        self.limit = limit
        self.window_s = window_s
        self._times_s: deque[float] = deque()
        self._together: set[HostId] = set()
        """The hosts of the newest failure."""

    def spend(self, now_s: float, host: HostId | None = None) -> bool:
        """Note a failure; False if it was one too many."""
        while self._times_s and now_s - self._times_s[0] > self.window_s:
            self._times_s.popleft()
        if not self._is_part_of_the_last(now_s, host):
            self._times_s.append(now_s)
            self._together.clear()
        if host is not None:
            self._together.add(host)
        return len(self._times_s) <= self.limit

    def _is_part_of_the_last(self, now_s: float, host: HostId | None) -> bool:
        if host is None or host in self._together or not self._together:
            return False
        return bool(self._times_s) and now_s - self._times_s[-1] < TOGETHER_S
