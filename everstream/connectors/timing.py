"""How long ago something began, for one process after the other, whatever happens to wall clocks."""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from everstream.pipeline.clocks import ForwardClock

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def clock_name() -> str:
    """What the steady clock is known by: the same name in all processes since the machine booted."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


class Timing:
    """A start, and the time that has passed since then.

    The steady clock says how much that is. In another process it still does if its name is the
    same; if not, the wall clock says it, and never less than was known to have passed.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """`clock`: the only one there is, and it may be set; the engine's are then not used."""
        self._fixed = clock is not None
        self._wall_s: Callable[[], float] = time.time
        self._steady_s: Callable[[], float] = time.monotonic
        if clock is not None:
            self._wall_s = self._steady_s = ForwardClock(clock)
        self.name = "" if self._fixed else clock_name()
        self._start_s = 0.0
        self.start()

    def use(self, wall_s: Callable[[], float], steady_s: Callable[[], float]) -> bool:
        """Take these clocks instead; whether they are taken."""
        if not self._fixed:
            self._wall_s, self._steady_s = wall_s, steady_s
        return not self._fixed

    @property
    def steady_start_s(self) -> float | None:
        """The start by the steady clock, if others know that clock, too."""
        return self._start_s if self.name else None

    def start(self) -> float:
        """It begins now; when that is by the wall clock."""
        self._start_s = self._steady_s()
        return self._wall_s()

    def resume(
        self, start_s: float, steady_start_s: float | None, name: str, passed_s: float
    ) -> float:
        """It began then; the start by the wall clock as it is now."""
        if steady_start_s is not None and name and name == self.name:
            self._start_s = steady_start_s
            return start_s
        wall_s = self._wall_s()
        if wall_s < start_s + passed_s:
            start_s = wall_s - passed_s
        self._start_s = self._steady_s() - (wall_s - start_s)
        return start_s

    def passed_s(self) -> float:
        """Seconds since the start."""
        return max(0.0, self._steady_s() - self._start_s)
