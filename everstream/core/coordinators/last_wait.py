"""Notices that nothing is left to wait for but a store that does not answer.

While there is work, a checkpoint that does not come is given up and the run goes on. Two waits
have nothing behind them: for the last checkpoint of a run whose input has ended, and for a manifest
that decides where everybody goes back to. They are waited for longer, but not for ever.
"""

from collections.abc import Hashable

from everstream.core.coordinators.run_state import RunState
from everstream.core.orders import Phase
from everstream.errors import RunFailed

TIMES_AS_LONG = 3
"""As a checkpoint may take while there is other work."""


class LastWait:
    """Watches one run."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._limit_s = TIMES_AS_LONG * run.policy.checkpoint_timeout_s
        self._wait: Hashable = None
        self._since_s = 0.0
        self._refusals = 0

    def refused(self) -> None:
        """The store has answered, though it was no good answer: it is asked again."""
        self._refusals += 1

    def given_up(self, now_s: float) -> RunFailed | None:
        """The end of the run, if such a wait has lasted too long without any progress."""
        what = self._what()
        run = self._run
        saved = run.tally.regular + run.tally.forced
        wait = what and (what, run.generation, run.stable_epoch, saved, self._refusals)
        if wait != self._wait:
            self._wait, self._since_s = wait, now_s
        if what is None or now_s - self._since_s < self._limit_s:
            return None
        back = f"epoch {run.stable_epoch}" if run.stable_epoch else "the start"
        return RunFailed(
            f"{what} is not in the store after {self._limit_s:g} s ({TIMES_AS_LONG} times "
            f"checkpoint_timeout), and nothing else is left to do. Look whether the store answers "
            f"and has room, and run again: the next run goes on from {back}."
        )

    def _what(self) -> str | None:
        run = self._run
        if run.phase is Phase.RESTORING and run.writing is not None:
            return f"the manifest of epoch {run.writing.epoch}"
        if run.phase is Phase.RUNNING and run.headway.all_ended():
            return "the last checkpoint"
        return None
