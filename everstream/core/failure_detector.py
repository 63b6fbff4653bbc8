"""When a standby takes over: decided from what it sees of a driver, by its own clock alone.

No clocks are compared. The standby looks at the driver's heartbeat, an object that changes for as long as
the driver lives, and counts on its own clock how long it has not. A driver that says how it ended is
believed. Being wrong is harmless: the log of manifests lets only one of two drivers go on.
"""

from enum import Enum, auto

from everstream.state.heartbeat import Heartbeat, Life


class Verdict(Enum):
    WAIT = auto()
    TAKE_OVER = auto()
    FINISHED = auto()
    """The pipeline is done: there is nothing to stand by for."""
    STOPPED = auto()
    """Somebody stopped it on purpose, with a checkpoint: it is not for a standby to undo that."""


class FailureDetector:
    """Watches one store."""

    def __init__(self, command: str, silence_s: float, notice_s: float) -> None:
        """command: our own. notice_s: a driver may need so long to learn that somebody waits."""
        self._command = command
        self._silence_s = silence_s
        self._notice_s = notice_s
        self._seen: Heartbeat | None = None
        self._changed_s: float | None = None
        self._beats = 0
        self._overtaken = False
        """What is seen is of one that was replaced: whoever did it has not been heard of yet."""

    def saw(self, heartbeat: Heartbeat | None, now_s: float) -> Verdict:
        """What is in the store now; None: no driver that says of itself how it is was ever here."""
        first = self._changed_s is None
        if first or heartbeat != self._seen:
            if not first:
                self._beats += 1
            self._seen, self._changed_s, self._overtaken = heartbeat, now_s, False
        if heartbeat is None or self._overtaken:
            return Verdict.TAKE_OVER if self._is_silent(now_s) else Verdict.WAIT
        watched = self._beats > 0
        if heartbeat.command == self._command:
            return Verdict.TAKE_OVER  # the driver before us, which has died
        match heartbeat.life:
            case Life.FINISHED if watched:
                return Verdict.FINISHED
            case Life.STOPPED if watched:
                return Verdict.STOPPED
            case Life.FINISHED | Life.STOPPED | Life.FAILED:
                return Verdict.TAKE_OVER
            case Life.RUNNING:
                return Verdict.TAKE_OVER if self._is_silent(now_s) else Verdict.WAIT

    def overtaken(self, now_s: float) -> None:
        """Somebody else has taken over: watch that one."""
        self._overtaken, self._beats, self._changed_s = True, 0, now_s

    def _is_silent(self, now_s: float) -> bool:
        """It beats for us only once it knows of us, and so needs the time for that at first."""
        assert self._changed_s is not None
        limit_s = self._silence_s if self._beats > 1 else self._silence_s + self._notice_s
        return now_s - self._changed_s >= limit_s
