"""Chains in levels: how a graph becomes one line of Spark stages.

A chain's level is one more than the highest of those it gets records from. All chains of a level
are one stage, one shard each partition; what an edge sends over several levels passes through the
tasks between. So nothing runs twice and nothing has to be kept, whatever the graph looks like. An
edge that leads back is no edge of this line: what it sends comes in with the next epoch.
"""

from dataclasses import dataclass

from everstream.core.ids import ChannelId, ShardId
from everstream.core.plan import Plan


@dataclass(frozen=True)
class Place:
    """Where a shard runs: in which stage, and as which of its partitions."""

    level: int
    index: int


class Layout:
    """A plan, laid out for one job per epoch."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        levels = _levels(plan)
        deepest = max(levels.values())
        self.levels: list[list[ShardId]] = [
            [shard for shard in plan.shards if levels[shard.operator] == level]
            for level in range(deepest + 1)
        ]
        self.places = {
            shard: Place(level, index)
            for level, shards in enumerate(self.levels)
            for index, shard in enumerate(shards)
        }
        self.positions = {channel: number for number, channel in enumerate(plan.channels)}
        """A channel travels as its number in the plan."""

    def chains_at(self, level: int) -> list[str]:
        """The names of the chains of a level, in order."""
        return list(dict.fromkeys(shard.operator for shard in self.levels[level]))

    def next_partition(self, place: Place, channel: ChannelId | None) -> int:
        """Where a row goes from here: to its receiver, or on its way there; None: to the end."""
        after = place.level + 1
        if channel is not None:
            target = self.places[channel.receiver]
            if target.level == after:
                return target.index
        return place.index % len(self.levels[after]) if after < len(self.levels) else 0


def _levels(plan: Plan) -> dict[str, int]:
    """Chain -> its level; chains are in the order of the graph, senders first."""
    levels: dict[str, int] = {}
    for name, chain in plan.chains.items():
        senders = {
            plan.chain_of[edge.sender]
            for operator in chain.operators
            for edge in plan.graph.inputs(operator)
            if plan.chain_of[edge.sender] != name and not edge.feedback
        }
        levels[name] = 1 + max((levels[sender] for sender in senders), default=-1)
    return levels
