"""Virtual time: a queue of events, and a seeded random generator."""

import heapq
import itertools
import random
from collections.abc import Callable


class Scheduler:
    """Runs callbacks in the order of their virtual times."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.steps = 0
        self.due = 0
        """Callbacks in the queue, without those that only wait for time to pass."""
        self._queue: list[tuple[float, int, bool, Callable[[], None]]] = []
        self._ties = itertools.count()

    def after(self, delay_s: float, callback: Callable[[], None], *, waits: bool = False) -> None:
        """waits: it is a tick or an alarm, and nothing is under way that it completes."""
        self._put(self.now_s + delay_s, waits, callback)

    def at(self, time_s: float, callback: Callable[[], None]) -> None:
        self._put(max(time_s, self.now_s), False, callback)

    def _put(self, time_s: float, waits: bool, callback: Callable[[], None]) -> None:
        self.due += not waits
        heapq.heappush(self._queue, (time_s, next(self._ties), waits, callback))

    def step(self) -> bool:
        """Run the next callback; False if there is none."""
        if not self._queue:
            return False
        self.now_s, _, waits, callback = heapq.heappop(self._queue)
        self.due -= not waits
        self.steps += 1
        callback()
        return True

    def jitter_s(self, typical_s: float) -> float:
        """A delay around this size; now and then a much longer one."""
        if self.random.random() < 0.02:
            typical_s *= 20
        return self.random.expovariate(1 / typical_s)
