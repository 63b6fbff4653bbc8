"""Protocol objects that talk to each other over FIFO channels, and nothing else.

No shards, no engine: random sends, deliveries and local checkpoints, and the checkpoints a
protocol demands. What is checked of a history uses neither the protocols nor the recovery line.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from everstream.core.checkpointing.recovery_line import ChannelEnds, Position, cycles
from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Generation, ShardId
from everstream.core.protocols.base import ShardPosition
from everstream.core.protocols.induced import BCS, HMNR
from everstream.core.protocols.uncoordinated import UncoordinatedProtocol

Make = Callable[[ShardPosition], UncoordinatedProtocol]


def make_uncoordinated(place: ShardPosition) -> UncoordinatedProtocol:
    return UncoordinatedProtocol(place, 1.0, 0.0)


def make_bcs(place: ShardPosition) -> BCS:
    return BCS(place, 1.0, 0.0)


def make_hmnr(place: ShardPosition) -> HMNR:
    return HMNR(place, 1.0, 0.0)


def frame(channel: ChannelId, sequence: int = 1, piggyback: bytes = b"") -> Frame:
    return Frame(channel, FrameKind.DATA, Generation(0), sequence, piggyback=piggyback)


@dataclass
class Member:
    """One shard of the harness: its protocol and how far it has come."""

    protocol: UncoordinatedProtocol
    received: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    checkpoints: list[Position] = field(default_factory=list)
    forced: int = 0

    @property
    def position(self) -> Position:
        return Position(dict(self.received), dict(self.sent))


class Net:
    """Shards and channels, all under one protocol."""

    def __init__(self, shards: Sequence[ShardId], channels: Sequence[ChannelId], make: Make):
        self.channels = channels
        self.links = [ChannelEnds(str(c), c.sender, c.receiver) for c in channels]
        groups = cycles(self.links, shards)
        self.members = {
            shard: Member(
                make(
                    ShardPosition(
                        shard,
                        tuple(c for c in channels if c.receiver == shard),
                        tuple(c for c in channels if c.sender == shard),
                        next((group for group in groups if shard in group), ()),
                    )
                )
            )
            for shard in shards
        }
        self.on_their_way: dict[ChannelId, deque[Frame]] = {c: deque() for c in channels}

    @property
    def forced(self) -> int:
        return sum(member.forced for member in self.members.values())

    def send(self, channel: ChannelId) -> Frame:
        sender = self.members[channel.sender]
        number = sender.sent[str(channel)] = sender.sent.get(str(channel), 0) + 1
        sent = frame(channel, number, sender.protocol.piggyback(channel))
        self.on_their_way[channel].append(sent)
        return sent

    def deliver(self, channel: ChannelId) -> None:
        arrived = self.on_their_way[channel].popleft()
        receiver = self.members[channel.receiver]
        for ask in receiver.protocol.checkpoint_first(arrived):
            assert getattr(ask, "forced", False), "the only thing to ask for here"
            receiver.checkpoints.append(receiver.position)
            receiver.forced += 1
        receiver.received[str(channel)] = arrived.sequence
        receiver.protocol.on_delivered(arrived)

    def checkpoint(self, shard: ShardId) -> None:
        member = self.members[shard]
        member.protocol.take()
        member.checkpoints.append(member.position)

    def run(self, chance: random.Random, steps: int) -> None:
        for _ in range(steps):
            what = chance.random()
            if what < 0.1:
                self.checkpoint(chance.choice(list(self.members)))
            elif what < 0.55:
                self.send(chance.choice(self.channels))
            else:
                arrived = [c for c, frames in self.on_their_way.items() if frames]
                if arrived:
                    self.deliver(chance.choice(arrived))

    def useless(self) -> list[tuple[ShardId, int]]:
        """Checkpoints that are part of no consistent set, whatever the others choose.

        Each in turn is held fast, and the others step back from where they are now until all
        agree; if it is the fixed one that would have to, nothing fits it. Written out here, so
        that it shares no line with what it judges.
        """
        states = {
            shard: [Position(), *member.checkpoints, member.position]
            for shard, member in self.members.items()
        }
        useless = []
        for fixed, member in self.members.items():
            for index in range(1, len(member.checkpoints) + 1):
                at = {shard: len(positions) - 1 for shard, positions in states.items()}
                at[fixed] = index
                if not self._others_agree(states, at, fixed):
                    useless.append((fixed, index))
        return useless

    def _others_agree(
        self, states: dict[ShardId, list[Position]], at: dict[ShardId, int], fixed: ShardId
    ) -> bool:
        moved = True
        while moved:
            moved = False
            for c in self.channels:
                sent = states[c.sender][at[c.sender]].sent.get(str(c), 0)
                if states[c.receiver][at[c.receiver]].received.get(str(c), 0) > sent:
                    if c.receiver == fixed:
                        return False
                    at[c.receiver] -= 1
                    moved = True
        return True


def random_net(chance: random.Random, make: Make, *, cyclic: bool = True) -> Net:
    """A few shards on a ring with chords, fed from outside it and feeding others; or no ring."""
    core = [ShardId("core", n) for n in range(chance.randint(2, 4))]
    outer = [ShardId("outer", n) for n in range(chance.randint(0, 2))]
    pairs = {(core[n - 1], core[n]) for n in range(len(core))}
    pairs |= {(chance.choice(core), chance.choice(core)) for _ in range(chance.randint(0, 4))}
    if not cyclic:
        pairs = {(a, b) for a, b in pairs if a < b}
    for shard in outer:
        pairs.add((chance.choice(core), shard) if chance.random() < 0.5 else (shard, core[0]))
    channels = [ChannelId(n, a, b) for n, (a, b) in enumerate(sorted(pairs))]
    return Net([*core, *outer], channels, make)
