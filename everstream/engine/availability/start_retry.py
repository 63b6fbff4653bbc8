"""Retries at start-up: a short outage of a database or broker does not prevent a run from starting.

An active run retries services that it cannot reach. A starting run does the same: it retries errors
that may be temporary with growing pauses, up to a deadline that the messages name.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from everstream.engine.reporting.listener import Listener
from everstream.errors import ConnectionLost
from everstream.events import StartDelayed, StartReached

T = TypeVar("T")
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0


@dataclass
class StartRetry:
    """Retries what a run needs to start, until a deadline."""

    timeout_s: float
    listener: Listener
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _failing_since_s: float | None = None
    _said: str = ""

    def reach(self, work: Callable[[], T]) -> T:
        """Return the result of `work` as soon as everything it needs can be reached."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                done = work()
            except ConnectionLost as error:
                self._wait_after(error, pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                if self._failing_since_s is not None:
                    waited_s = self.now_s() - self._failing_since_s
                    self.listener.on_event(StartReached(waited_s))
                self._failing_since_s, self._said = None, ""
                return done

    def _wait_after(self, error: ConnectionLost, pause_s: float) -> None:
        now_s = self.now_s()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        waited_s = now_s - self._failing_since_s
        if waited_s + pause_s > self.timeout_s:
            raise ConnectionLost(
                f"{error.message}\nThis was retried for {waited_s:.0f} s; start_timeout "
                f"(--start-timeout) is {self.timeout_s:g} s."
            ) from error
        if error.message != self._said:
            self._said = error.message
            self.listener.on_event(StartDelayed(error.message, self.timeout_s))
        self.sleep(pause_s)
