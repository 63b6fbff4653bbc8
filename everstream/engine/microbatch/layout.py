"""Chains in levels: how a graph becomes a sequence of Spark stages.

A chain's level is one more than the highest level among its senders. All chains of a level form one
stage, with one shard per partition; an edge across several levels passes through the tasks between.
So nothing runs twice and nothing has to be kept, whatever the graph. An edge that leads back is not
part of this sequence: its frames enter with the next epoch.
"""

from dataclasses import dataclass

from everstream.core.ids import ChannelId, ShardId
from everstream.core.plan import Plan


@dataclass(frozen=True)
class TaskPlacement:
    """Where a shard runs: its stage, and its partition in the stage."""

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
            shard: TaskPlacement(level, index)
            for level, shards in enumerate(self.levels)
            for index, shard in enumerate(shards)
        }
        self.positions = {channel: number for number, channel in enumerate(plan.channels)}
        """Rows carry a channel as its number in the plan."""

    def chains_at(self, level: int) -> list[str]:
        """The names of the chains of a level, in order."""
        return list(dict.fromkeys(shard.operator for shard in self.levels[level]))

    def next_partition(self, place: TaskPlacement, channel: ChannelId | None) -> int:
        """The next partition of a row: its receiver's, or one on the way; None: to the last stage."""
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
