"""Warns when the run waits for something for too long.

A store, a database or a peer that hangs raises no error, so nothing would report it. Every wait has
a name. Once the same wait has lasted too long, a warning is due, and again each time the wait has
lasted twice as long.
"""


class StallWarning:
    """Watches one wait at a time."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._wait: str | None = None
        self._since_s = 0.0
        self._say_after_s = limit_s

    def due(self, wait: str | None, now_s: float) -> float | None:
        """How long this wait (None: there is none) has lasted, if a warning is due now."""
        if wait != self._wait:
            self._wait = wait
            self._since_s = now_s
            self._say_after_s = self.limit_s
        waited_s = now_s - self._since_s
        if wait is None or waited_s < self._say_after_s:
            return None
        self._say_after_s = 2 * max(waited_s, self._say_after_s)
        return waited_s
