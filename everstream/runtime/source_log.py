"""A log for source shards that holds no records: the source is its own log.

What a source gave at an offset it gives again, and stages without state, chance or clock make the
same of it again. So instead of a frame's bytes its offset is logged, and which records of the batch
there it was made of: some ten bytes. A frame that is asked for again is read again. Whether that is sound for a shard is decided from its plan;
for all others the bytes themselves are logged.
"""

import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from everstream.core.checkpoint_record import LogSegment
from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, Generation, ShardId
from everstream.core.permits import permit
from everstream.core.plan import Plan
from everstream.errors import CorruptObject
from everstream.pipeline.batch import Batch, joined
from everstream.pipeline.graph import ByKey, Kind
from everstream.pipeline.operator import Operator
from everstream.pipeline.purity import can_be_read_again, is_plain
from everstream.pipeline.source import EndOfStream, Source
from everstream.runtime.chain import ChainStages
from everstream.runtime.message_log import DurableLog
from everstream.runtime.payload import BatchPayload
from everstream.state.objects import ObjectRef
from everstream.state.saved import dumps
from everstream.state.snapshot import ShardState

_BYTES = b"bytes".ljust(64)
_PLACE = b"place"
"""What a logged payload is; as long as a boundary, so that Arrow data behind it stays aligned."""
_PART = struct.Struct("<IQQ")
"""The how-manieth frame, made of the records of the batch from where on, and how many."""


def reads_again(plan: Plan, shard: ShardId) -> bool:
    """Whether this shard is a source whose output can be had again by reading."""
    nodes = [plan.graph.nodes[name] for name in plan.chains[shard.operator].operators]
    source, others = nodes[0].what, [node.what for node in nodes[1:]]
    return (
        isinstance(source, Source)
        and nodes[0].kind is Kind.SOURCE
        and all(isinstance(what, Operator) for what in others)
        and all(node.on_error == "fail" for node in nodes)
        and all(_routes_by_columns(plan, channel.edge) for channel in plan.outputs[shard])
        and can_be_read_again(source, [what for what in others if isinstance(what, Operator)])
    )


def _routes_by_columns(plan: Plan, edge: int) -> bool:
    routing = plan.graph.edges[edge].routing
    if not isinstance(routing, ByKey):
        return True
    return routing.keying.on_columns and is_plain(routing.keying.selector)


class SourceLog(DurableLog):
    """Logs where each frame was read. The runner says so before each step, in `origin`."""

    def __init__(
        self,
        plan: Plan,
        shard: ShardId,
        load: Callable[[Sequence[ObjectRef]], list[bytes]],
    ) -> None:
        super().__init__(shard, plan.outputs[shard], load)
        self._plan = plan
        self._origin: bytes | None = None
        self._part = (0, 0)
        self._count: dict[ChannelId, int] = {}

    def reading_at(self, offset: Any) -> None:
        """What is appended from now on was read at this offset."""
        self._origin = dumps(offset)

    def forwarding(self, start: int, records: int) -> None:
        """What is appended from now on was made of so many records of the batch, from `start` on."""
        self._part = (start, records)
        self._count = {}

    def append(self, frame: Frame) -> None:
        if frame.payload is None:
            super().append(frame)
            return
        if self._origin is None:
            # It waited in the checkpoint we went back to: nobody here knows where it was read.
            logged = _BYTES + bytes(frame.payload.encoded)
        else:
            index = self._count.get(frame.channel, 0)
            self._count[frame.channel] = index + 1
            logged = _PLACE + _PART.pack(index, *self._part) + self._origin
        super().append(replace(frame, payload=BatchPayload(encoded=logged)))

    def restore(
        self, generation: Generation, segments: Sequence[LogSegment], sent: Mapping[ChannelId, int]
    ) -> None:
        super().restore(generation, segments, sent)
        self._origin = None

    def after(self, channel: ChannelId, sequence: int) -> list[Frame]:
        places = super().after(channel, sequence)
        if not any(frame.payload is not None for frame in places):
            return places
        again = _ReadAgain(self._plan, self.shard)
        try:
            return [frame if frame.payload is None else again.frame(frame) for frame in places]
        finally:
            again.close()


class _ReadAgain:
    """The shard's stages a second time, with a reader of their own."""

    def __init__(self, plan: Plan, shard: ShardId) -> None:
        self._plan = plan
        self._caught = {channel.edge: _Catch() for channel in plan.outputs[shard]}
        self._chain = ChainStages(plan, shard, self._caught, ShardState(), lambda: 0.0)  # type: ignore[arg-type]
        self._chain.build({}, {}, 0, "", permit(0))
        self._made_of: bytes | None = None

    def frame(self, place: Frame) -> Frame:
        assert place.payload is not None
        told = memoryview(place.payload.encoded)
        if told[: len(_BYTES)] == _BYTES:
            return replace(place, payload=BatchPayload(encoded=told[len(_BYTES) :]))
        told = told[len(_PLACE) :]
        index, start, records = _PART.unpack_from(told)
        made_of = bytes(told[4:])
        if made_of != self._made_of:
            self._make(bytes(told[_PART.size :]), start, records)
            self._made_of = made_of
        parts = self._parts(place.channel)
        if index >= len(parts) or len(parts[index]) != place.records:
            raise CorruptObject(
                f"the source of {place.channel} does not give again what it gave before: "
                f"{place.records} records were sent and cannot be found."
            )
        return replace(place, payload=BatchPayload(parts[index]))

    def _make(self, origin: bytes, start: int, records: int) -> None:
        for catch in self._caught.values():
            catch.batches = []
        reader = self._chain.head.reader
        assert reader is not None
        reader.seek(pickle.loads(origin))
        batch = self._chain.read()
        if isinstance(batch, EndOfStream | None) or len(batch) < start + records:
            raise CorruptObject("a source has nothing where it gave records before.")
        self._chain.forward(batch[start : start + records])

    def _parts(self, channel: ChannelId) -> list[Batch]:
        batches = joined(self._caught[channel.edge].batches)
        routing = self._plan.graph.edges[channel.edge].routing
        if not isinstance(routing, ByKey):
            return batches
        channels = [c for c in self._plan.outputs[channel.sender] if c.edge == channel.edge]
        place = channels.index(channel)
        split = (routing.keying.split(batch, len(channels)) for batch in batches)
        return [part for parts in split for shard, part in parts if shard == place]

    def close(self) -> None:
        self._chain.close()


class _Catch:
    """Stands where an outlet stands, and keeps what falls into it."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def collect(self, batch: Batch) -> None:
        self.batches.append(batch)

    def advance(self, watermark: int) -> None:
        """Watermarks are in the log itself."""
