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
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._ties = itertools.count()

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._ties), callback))

    def at(self, time_s: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(time_s, self.now_s), next(self._ties), callback))

    def step(self) -> bool:
        """Run the next callback; False if there is none."""
        if not self._queue:
            return False
        self.now_s, _, callback = heapq.heappop(self._queue)
        self.steps += 1
        callback()
        return True

    def jitter_s(self, typical_s: float) -> float:
        """A delay around this size; now and then a much longer one."""
        if self.random.random() < 0.02:
            typical_s *= 20
        return self.random.expovariate(1 / typical_s)
