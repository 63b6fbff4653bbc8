"""Trying again until a server answers: pauses that grow, up to a deadline by the steady clock.

What may be tried again, and what is said when it was in vain, is each connector's own.
"""

import time
from collections.abc import Iterator
from itertools import repeat


def pauses(first_s: float, longest_s: float) -> Iterator[float]:
    """How long to wait before each next attempt: twice as long each time, up to the longest."""
    while first_s < longest_s:
        yield first_s
        first_s *= 2
    yield from repeat(longest_s)


class Deadline:
    """The end of a patience that begins now."""

    def __init__(
        self, patience_s: float, first_pause_s: float = 0.0, longest_pause_s: float | None = None
    ) -> None:
        """The longest pause is the first one if none is given: then they do not grow."""
        self._until_s = time.monotonic() + patience_s
        longest_s = first_pause_s if longest_pause_s is None else longest_pause_s
        self._pauses = pauses(first_pause_s, longest_s)

    @property
    def passed(self) -> bool:
        return time.monotonic() > self._until_s

    def pause(self, at_least_s: float = 0.0) -> bool:
        """Wait for the next attempt; False, at once, if it would come after the deadline."""
        pause_s = max(next(self._pauses), at_least_s)
        if time.monotonic() + pause_s > self._until_s:
            return False
        time.sleep(pause_s)
        return True
