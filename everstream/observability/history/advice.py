"""Where the present checkpoint interval lies on the curve of what intervals cost, from what was seen."""

import math
from typing import Any

from everstream.planning.auto import AutoInterval, AutoSettings, CheckpointSeen, FailureSeen

POINTS = 41
SPREAD = 30.0
"""The curve reaches from the best interval by so much up and down, as a factor."""


class Seen:
    """The costs of checkpoints and failures so far."""

    def __init__(self) -> None:
        self._planner: AutoInterval | None = None
        self._latest = 0.0

    def checkpoint(self, entry: dict[str, Any]) -> None:
        pause_s = max((shard["capture_s"] for shard in entry["shards"]), default=0.0)
        at = self._in_order(entry["at"])
        self._at(at).see(CheckpointSeen(at, pause_s, entry["duration_s"]))

    def failure(self, entry: dict[str, Any]) -> None:
        """A failure that was not heard of before."""
        at = self._in_order(entry["at"])
        self._at(at).see(FailureSeen(at))

    def advice(self, present_s: float | None) -> dict[str, Any] | None:
        """[interval, share of the time it costs] around the best one; None before a checkpoint."""
        planner = self._planner
        if present_s is None or planner is None or not planner.pause_s:
            return None
        pause_s, mtbf_s = planner.pause_s, planner.mtbf_s
        best_s = planner.wanted()[0]
        lowest_s = min(best_s, present_s) / SPREAD
        factor = (max(best_s, present_s) * SPREAD / lowest_s) ** (1 / (POINTS - 1))
        intervals = [lowest_s * factor**point for point in range(POINTS)]
        curve = [[round(t, 4), _rounded(pause_s / t + t / 2 / mtbf_s)] for t in intervals]
        return {"curve": curve, "present_s": present_s, "best_s": round(best_s, 3)}

    def _in_order(self, at: float) -> float:
        """Clocks are set, and a failure is known after it has happened."""
        self._latest = max(self._latest, at)
        return self._latest

    def _at(self, at: float) -> AutoInterval:
        if self._planner is None:
            self._planner = AutoInterval(AutoSettings(), started_s=at)
        return self._planner


def _rounded(cost: float) -> float:
    return round(cost, max(2, 4 - math.floor(math.log10(cost)))) if cost > 0 else 0.0
