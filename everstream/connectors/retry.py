"""Retries until a server answers: pauses that grow, up to a deadline by the steady clock.

Each connector decides what may be retried, and which error is raised in the end.
"""

import time
from collections.abc import Iterator
from itertools import repeat


def pauses(first_s: float, longest_s: float) -> Iterator[float]:
    """The pause before each next attempt: twice as long each time, up to the longest."""
    while first_s < longest_s:
        yield first_s
        first_s *= 2
    yield from repeat(longest_s)


class Deadline:
    """A deadline that starts now."""

    def __init__(
        self, patience_s: float, first_pause_s: float = 0.0, longest_pause_s: float | None = None
    ) -> None:
        """Without a longest pause, all pauses are as long as the first."""
        self._until_s = time.monotonic() + patience_s
        longest_s = first_pause_s if longest_pause_s is None else longest_pause_s
        self._pauses = pauses(first_pause_s, longest_s)

    @property
    def passed(self) -> bool:
        return time.monotonic() > self._until_s

    def pause(self, at_least_s: float = 0.0) -> bool:
        """Wait for the next attempt; returns False at once if it would be after the deadline."""
        pause_s = max(next(self._pauses), at_least_s)
        if time.monotonic() + pause_s > self._until_s:
            return False
        time.sleep(pause_s)
        return True
