"""The recovery line: the newest checkpoints that agree with each other.

Two checkpoints agree if neither has received a frame that the other has not sent. A frame that was
sent but not yet received is in transit, and is replayed from the sender's log; so it never forces a
rollback.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True)
class Position:
    """How far a shard had come on its channels at a checkpoint, or has come by now."""

    received: Mapping[str, int] = field(default_factory=dict)
    sent: Mapping[str, int] = field(default_factory=dict)


START = Position()
"""Nothing received and nothing sent: it agrees with everything."""


class ChannelEnds(NamedTuple):
    """A channel, reduced to what agreement needs."""

    name: str
    sender: Hashable
    receiver: Hashable


def recovery_line(
    links: Sequence[ChannelEnds], histories: Mapping[S, Sequence[Position]]
) -> dict[S, int]:
    """For each shard the index of its newest position that agrees with all the others.

    A history is given oldest first. Every shard begins at `START`, which has the index -1. Steps
    receivers back until every channel agrees; ends because `START` agrees with everything.
    """
    line = {shard: len(history) - 1 for shard, history in histories.items()}

    def at(shard: Hashable) -> Position:
        index = line[shard]  # type: ignore[index]
        return START if index < 0 else histories[shard][index]  # type: ignore[index]

    moved = True
    while moved:
        moved = False
        for name, sender, receiver in links:
            while at(receiver).received.get(name, 0) > at(sender).sent.get(name, 0):
                line[receiver] -= 1  # type: ignore[index]
                moved = True
    return line


def descendants(links: Collection[ChannelEnds], of: Collection[S]) -> set[S]:
    """These shards and all that receive from them, directly or not."""
    reached: set[S] = set(of)
    waiting = list(reached)
    while waiting:
        sender = waiting.pop()
        for link in links:
            if link.sender == sender and link.receiver not in reached:
                reached.add(link.receiver)  # type: ignore[arg-type]
                waiting.append(link.receiver)  # type: ignore[arg-type]
    return reached


def cycles(links: Collection[ChannelEnds], shards: Collection[S]) -> list[tuple[S, ...]]:
    """The strongly connected components that hold a cycle, each in the order of `shards`."""
    reached = {shard: descendants(links, [shard]) for shard in shards}
    looped = {link.receiver for link in links if link.receiver == link.sender}
    components: list[tuple[S, ...]] = []
    placed: set[S] = set()
    for shard in shards:
        if shard in placed:
            continue
        component = tuple(o for o in shards if o in reached[shard] and shard in reached[o])
        placed.update(component)
        if len(component) > 1 or shard in looped:
            components.append(component)
    return components
