"""Watermark alignment: sources that are ahead of the slowest one by more than `max_drift` wait.

State that joins and windows keep grows with the distance between the fastest and the slowest source. All
source shards whose `event_time` gives a `max_drift` are one group. None of them reads on once its watermark
is further ahead of the least in the group than the drift that it allows. Only when records are read is
decided here, never which of them are late, so nothing of it has to be saved.
"""

from collections.abc import Mapping

from everstream.core.ids import ShardId
from everstream.core.measuring import Meter
from everstream.core.plan import Plan
from everstream.pipeline.operators.builtin import EventTime
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK


class TimeAlignment:
    """The least event time of a plan's aligned sources."""

    def __init__(self, plan: Plan) -> None:
        self._aligned = [
            shard
            for shard in plan.shards
            if any(
                isinstance(what := plan.graph.nodes[name].what, EventTime)
                and what.max_drift_us is not None
                for name in plan.chains[shard.operator].operators
            )
        ]
        self.least_us = END_OF_TIME
        """As it was announced last."""

    def advanced(self, meters: Mapping[ShardId, Meter]) -> bool:
        """Look at the newest measures. Whether `least_us` has changed.

        A shard that has no event time yet counts: the others wait for it. One that has ended does not.
        """
        if len(self._aligned) < 2 or any(shard not in meters for shard in self._aligned):
            return False
        group = [meters[shard] for shard in self._aligned]
        reached = [
            NO_WATERMARK if meter.source_time_us is None else meter.source_time_us
            for meter in group
            if meter.time_waits_for is not None
        ]
        before, self.least_us = self.least_us, min(reached, default=END_OF_TIME)
        return self.least_us != before
