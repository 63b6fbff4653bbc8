"""Sums that never fall, made of counts that begin anew, and how fast they rise.

A process that is started again counts from nothing; one that goes back to a checkpoint counts from
there. Who plots a rate, or asks Prometheus for one, wants what was done in between.
"""

from collections import deque
from collections.abc import Hashable, Mapping

WINDOW_S = 2.5
"""Rates are over the last so many seconds, or between the last two samples if those are further apart."""


class Rising:
    """Sums by name, over all processes that have counted for them."""

    def __init__(self) -> None:
        self.sums: dict[Hashable, float] = {}
        self._last: dict[Hashable, float] = {}
        self._window: deque[tuple[float, dict[Hashable, float]]] = deque()

    def sample(
        self, at: float, counts: Mapping[Hashable, float], anew: Mapping[Hashable, float]
    ) -> None:
        """What is counted now.

        counts: go back with a checkpoint: where one falls, nothing was done.
        anew: of a process: where one falls, a new process has done so much.
        """
        for name, value in counts.items():
            self._rise(name, value, self._last.get(name, 0.0), 0.0)
        for name, value in anew.items():
            self._rise(name, value, self._last.get(name, 0.0), value)
        here = {name: self.sums[name] for of in (counts, anew) for name in of}
        self._window.append((at, here))
        while len(self._window) > 2 and at - self._window[0][0] > WINDOW_S:
            self._window.popleft()

    def interrupted(self) -> None:
        """What comes next says nothing about the time in between."""
        self._window.clear()

    def per_s(self, name: Hashable) -> float | None:
        """How fast it rises; None if that is not known."""
        if not self._window:
            return None
        to_s, now = self._window[-1]
        if name not in now:
            return None
        for from_s, before in self._window:
            if name in before:
                return (now[name] - before[name]) / (to_s - from_s) if to_s > from_s else None
        return None

    def risen(self, name: Hashable) -> float | None:
        """By how much, over the same time."""
        rate = self.per_s(name)
        if rate is None:
            return None
        now = self._window[-1][1]
        first = next(before for _, before in self._window if name in before)
        return now[name] - first[name]

    def _rise(self, name: Hashable, value: float, last: float, if_fallen: float) -> None:
        by = value - last if value >= last else if_fallen
        self.sums[name] = self.sums.get(name, 0.0) + by
        self._last[name] = value
