"""Decides when the sources of a disturbed run may end."""

from pathlib import Path

from everstream.core.orders import Phase
from everstream.engine.faults.kills import Kill


class EndGate:
    """Opens the gate when every kill has happened, or when none has for long in a healthy run.

    The gate is a file: the sources, in other processes, check whether it exists.
    """

    def __init__(self, gate: Path, kills: int, patience_s: float) -> None:
        self.gate = gate
        self.delivered: list[Kill] = []
        self._kills = kills
        self._patience_s = patience_s
        self._quiet_since_s: float | None = None

    def on_kill(self, kill: Kill) -> None:
        self.delivered.append(kill)
        self._quiet_since_s = None
        if len(self.delivered) == self._kills:
            self.gate.touch()

    def on_progress(self, phase: Phase, now_s: float) -> None:
        if phase is not Phase.RUNNING:
            self._quiet_since_s = None
        elif self._quiet_since_s is None:
            self._quiet_since_s = now_s
        elif now_s - self._quiet_since_s > self._patience_s:
            self.gate.touch()
