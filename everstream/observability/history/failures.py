"""Follows recovery reports, which fill up as a run comes back, and says which have changed."""

from collections.abc import Sequence

from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.observability.history.entries import Entry, failure_entry

FOLLOWED = 50
"""The newest reports that may still change."""


class Failures:
    """The failures of one run, as entries."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._told: dict[str, Entry] = {}

    def changed(self, reports: Sequence[RecoveryReport], now_s: float, at: float) -> list[Entry]:
        """Those about which there is something new. `now_s` is the clock of the reports, `at` wall time."""
        entries = []
        for report in reports[-FOLLOWED:]:
            name = f"{self._run}-{report.detected_s:.6f}"
            entry = failure_entry(report, name, at - (now_s - report.start_s))
            known = self._told.get(name)
            if known is not None:
                entry["at"] = known["at"]  # two clocks drift apart; a failure happens once
            if entry != known:
                self._told[name] = entry
                entries.append(entry)
        while len(self._told) > 2 * FOLLOWED:
            del self._told[next(iter(self._told))]
        return entries
