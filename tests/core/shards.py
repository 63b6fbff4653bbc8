"""A shard under test, and the frames it is fed."""

from typing import Any

from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Epoch, Generation, ShardId
from everstream.core.instructions import (
    Deliver,
)
from everstream.core.messages import (
    Restore,
)
from everstream.core.protocols.aligned import Aligned
from everstream.core.protocols.base import ShardPosition
from everstream.core.shard import Shard
from everstream.runtime.payload import BatchPayload

ME = ShardId("count", 0)
LEFT = ChannelId(0, ShardId("left", 0), ME)
RIGHT = ChannelId(1, ShardId("right", 0), ME)
OUT = ChannelId(2, ME, ShardId("out", 0))
G = Generation(1)


def shard(*inputs: ChannelId, ordered: bool = False) -> Shard:
    return Shard(
        ME, inputs, [OUT], Aligned(ShardPosition(ME, tuple(inputs), (OUT,))), ordered=ordered
    )


def running(*inputs: ChannelId, ordered: bool = False, records: Any = ()) -> Shard:
    made = shard(*inputs, ordered=ordered)
    made.on_restore(Restore(G, Epoch(0), {ME: tuple(records)}))
    made.on_loaded(G, 0.0)
    made.on_resume(G)
    return made


def data(channel: ChannelId, sequence: int, number: int = 0, generation: Generation = G) -> Frame:
    payload = BatchPayload([sequence])
    return Frame(channel, FrameKind.DATA, generation, sequence, number, 1, payload=payload)


def marker(channel: ChannelId, after: int, epoch: int) -> Frame:
    return Frame(channel, FrameKind.MARKER, G, after, epoch)


def end(channel: ChannelId, sequence: int) -> Frame:
    return Frame(channel, FrameKind.END, G, sequence)


def feed(shard: Shard, *frames: Frame) -> None:
    for frame in frames:
        assert shard.accepts(frame)
        shard.on_frame(frame)


def steps(shard: Shard) -> list[Any]:
    """Everything it does until there is nothing to do."""
    done: list[Any] = []
    while instructions := shard.step():
        done += instructions
    return done


def delivered(instructions: list[Any]) -> list[tuple[ChannelId, int]]:
    frames = [i.frame for i in instructions if isinstance(i, Deliver)]
    return [(frame.channel, frame.sequence) for frame in frames]
