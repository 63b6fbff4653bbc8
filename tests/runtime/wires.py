"""An outlet under test, and all that it has sent."""

from typing import Any

from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, ShardId
from everstream.core.protocols.aligned import Aligned
from everstream.core.protocols.base import ShardPosition
from everstream.core.shard import Shard
from everstream.pipeline.graph import Broadcast, ByKey, OnDemand, Routing
from everstream.pipeline.keys import Keying
from everstream.runtime.outlets import Outlet, Wiring, make_outlet
from everstream.runtime.spilled import SpillSpace

ME = ShardId("numbers", 0)
CHANNELS = [ChannelId(0, ME, ShardId("work", index)) for index in range(2)]
A, B = CHANNELS


class Wire:
    """Credit is given and frames are looked at by the test."""

    def __init__(
        self, routing: Routing, one_frame: bool = False, space: SpillSpace | None = None
    ) -> None:
        """space: it leads back, and lets wait there what does not fit into memory."""
        shard = Shard(ME, [], CHANNELS, Aligned(ShardPosition(ME, (), tuple(CHANNELS))))
        self.sent: list[Frame] = []
        wiring = Wiring(
            shard, tuple(CHANNELS), self.sent.append, one_frame, space is not None, None, space
        )
        self.outlet: Outlet = make_outlet(routing, wiring)
        self.outlet.reset()

    def emit(self, *batches: Any, ordinal: int = 0) -> None:
        for batch in batches:
            self.outlet.collect(batch)
        self.outlet.flush(ordinal)

    def on(self, channel: ChannelId) -> list[Any]:
        """What a channel has carried: records, or the kind of what is not data."""
        return [
            frame.payload.batch if frame.payload else frame.kind.name
            for frame in self.sent
            if frame.channel == channel
        ]


ALL: list[Routing] = [OnDemand(), Broadcast(), ByKey(Keying(lambda x: x))]
