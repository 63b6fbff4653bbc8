"""Decides when a standby takes over, from what it sees of the driver, on its own clock alone.

No clocks are compared. The standby reads the driver's heartbeat, an object that changes as long as
the driver lives, and measures on its own clock how long it has not changed. If the driver records
how it ended, the standby trusts that. A wrong decision is harmless: the log of manifests lets only
one of two drivers continue.
"""

from enum import Enum, auto

from everstream.state.heartbeat import DriverStatus, Heartbeat


class StandbyDecision(Enum):
    WAIT = auto()
    TAKE_OVER = auto()
    FINISHED = auto()
    """The pipeline is finished: a standby is no longer needed."""
    STOPPED = auto()
    """A user stopped it on purpose, with a checkpoint: a standby must not undo that."""


class FailureDetector:
    """Watches one store."""

    def __init__(self, command: str, silence_s: float, notice_s: float) -> None:
        """command: our own. notice_s: how long a driver may need to notice that a standby waits."""
        self._command = command
        self._silence_s = silence_s
        self._notice_s = notice_s
        self._seen: Heartbeat | None = None
        self._changed_s: float | None = None
        self._beats = 0
        self._overtaken = False
        """The heartbeat is of a driver that was replaced; its successor has not sent one yet."""

    def saw(self, heartbeat: Heartbeat | None, now_s: float) -> StandbyDecision:
        """The heartbeat in the store now; None: no driver that writes one was ever here."""
        first = self._changed_s is None
        if first or heartbeat != self._seen:
            if not first:
                self._beats += 1
            self._seen, self._changed_s, self._overtaken = heartbeat, now_s, False
        if heartbeat is None or self._overtaken:
            return StandbyDecision.TAKE_OVER if self._is_silent(now_s) else StandbyDecision.WAIT
        watched = self._beats > 0
        if heartbeat.command == self._command:
            return StandbyDecision.TAKE_OVER  # the driver before us, which has died
        match heartbeat.life:
            case DriverStatus.FINISHED if watched:
                return StandbyDecision.FINISHED
            case DriverStatus.STOPPED if watched:
                return StandbyDecision.STOPPED
            case DriverStatus.FINISHED | DriverStatus.STOPPED | DriverStatus.FAILED:
                return StandbyDecision.TAKE_OVER
            case DriverStatus.RUNNING:
                return StandbyDecision.TAKE_OVER if self._is_silent(now_s) else StandbyDecision.WAIT

    def overtaken(self, now_s: float) -> None:
        """Another standby has taken over: watch that one."""
        self._overtaken, self._beats, self._changed_s = True, 0, now_s

    def _is_silent(self, now_s: float) -> bool:
        """A driver sends heartbeats once it knows of a standby, and gets the time for that."""
        assert self._changed_s is not None
        limit_s = self._silence_s if self._beats > 1 else self._silence_s + self._notice_s
        return now_s - self._changed_s >= limit_s
