"""Finds out which source holds back event time, and warns when it does so for too long.

Windows wait for the slowest source shard. Its watermark is compared with those of the others: a shard that
does not advance while another one is ahead of it is named.
"""

from collections.abc import Iterable

from everstream.core.coordinators.stall_warning import StallWarning
from everstream.core.measuring import Meter
from everstream.events import TimeHeldBack


class TimeWatch:
    """Looks at the measures of all shards."""

    def __init__(self, limit_s: float) -> None:
        self._stall = StallWarning(limit_s)

    def due(self, meters: Iterable[Meter], now_s: float) -> TimeHeldBack | None:
        """The warning that is due now, if there is one."""
        slowest, ahead_us = holding_back(meters)
        at = "" if slowest is None else f"{slowest.time_waits_for} at {slowest.source_time_us}"
        waited_s = self._stall.due(at or None, now_s)
        if slowest is None or waited_s is None:
            return None
        behind_s = (
            None if slowest.source_time_us is None else (ahead_us - slowest.source_time_us) / 1e6
        )
        return TimeHeldBack(slowest.time_waits_for or "", waited_s, behind_s)


def holding_back(meters: Iterable[Meter]) -> tuple[Meter | None, int]:
    """The slowest source shard and the time of the fastest; None if none is ahead of the others."""
    timed = [meter for meter in meters if meter.time_waits_for is not None]
    if not timed:
        return None, 0
    reached = [meter.source_time_us for meter in timed if meter.source_time_us is not None]
    slowest = min(
        timed, key=lambda meter: (meter.source_time_us is not None, meter.source_time_us or 0)
    )
    ahead = max(reached, default=0)
    is_behind = bool(reached) and slowest.source_time_us != ahead
    return (slowest if is_behind or slowest.split_behind else None), ahead
