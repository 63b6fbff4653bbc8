"""A clock for processing time that follows the clock of the machine, but never back.

Administrators and time services set clocks: back by an hour, say, when one was an hour ahead. What
waits for a time would then wait an hour longer, and what was due would be due again. So when the
clock of the machine is set back, processing time goes on from where it was, a little slower until
the machine has caught up. When it is set forward, processing time follows at once.
"""

import time
from collections.abc import Callable

PACE_WHILE_AHEAD = 0.9


class ForwardClock:
    """Seconds since 1970 by `clock`, except that they never go back.

    >>> given = iter([100.0, 101.0, 41.0, 51.0])
    >>> now_s = ForwardClock(lambda: next(given))
    >>> [now_s(), now_s(), now_s()]
    [101.0, 101.0, 110.0]
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._read_s = self._now_s = clock()

    def __call__(self) -> float:
        read_s = self._clock()
        passed_s = max(0.0, read_s - self._read_s)
        self._read_s = read_s
        self._now_s = max(read_s, self._now_s + PACE_WHILE_AHEAD * passed_s)
        return self._now_s

    def not_before(self, time_s: float) -> None:
        """It has been as late as this already, before a restart."""
        self._now_s = max(self._now_s, time_s)
