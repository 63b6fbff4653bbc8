"""What a shard has sent, and replays to receivers that roll back.

`SentFrames` binds a shard's message log to its outlets. When receivers roll back, or the shard itself
does, frames are requested from it. They are read at once, while an unreadable log can still be
reported, and sent when all shards are restored. Without a log all shards roll back together and
nothing is replayed. `SourceLog` is the log of a source shard that reads its records again instead.
"""

import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from everstream.core.checkpointing.record import CheckpointRecord, LogSegment
from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, Generation, ShardId
from everstream.core.messages import Recover
from everstream.core.permits import permit
from everstream.core.plan import Plan
from everstream.core.scheme import Scheme
from everstream.errors import CorruptObject
from everstream.pipeline.batch import Batch, joined
from everstream.pipeline.graph import ByKey, ByRoute, Kind
from everstream.pipeline.operator import Operator
from everstream.pipeline.operators.purity import can_be_read_again, is_plain
from everstream.pipeline.source import EndOfStream, Reader, Source
from everstream.runtime.chain import ChainStages
from everstream.runtime.engine_api import EngineApi
from everstream.runtime.message_log import DurableLog, MessageLog, Segment, log_of
from everstream.runtime.outlets import Outlet
from everstream.runtime.payload import BatchPayload
from everstream.state.objects import ObjectRef
from everstream.state.saved import dumps
from everstream.state.snapshot import ShardState

# A log for source shards that holds no records: the source serves as the log. A source emits the
# same records at an offset again, and stages without state, randomness or clock make the same
# frames of them. So instead of a frame's bytes its offset is logged, and which records of the batch
# it was made of: some ten bytes. A frame that is requested again is read again. The plan decides
# whether that is sound for a shard (`reads_again`); for all others the bytes themselves are logged.
_BYTES = b"bytes".ljust(64)
_PLACE = b"place"
"""The kind of a logged payload; its size keeps the Arrow data behind it aligned."""
_PART = struct.Struct("<IQQ")
"""The index of the frame, the first record of the batch it was made of, and how many."""


def reads_again(plan: Plan, shard: ShardId) -> bool:
    """Whether this shard is a source whose output can be reproduced by reading again."""
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
    if isinstance(routing, ByRoute):
        columns = routing.router.columns
        return columns is not None and is_plain(columns)
    if not isinstance(routing, ByKey):
        return True
    return routing.keying.on_columns and is_plain(routing.keying.selector)


class SourceLog(DurableLog):
    """Logs where each frame was read. The runner sets that before each step."""

    def __init__(
        self, plan: Plan, shard: ShardId, load: Callable[[Sequence[ObjectRef]], list[bytes]]
    ) -> None:
        super().__init__(shard, plan.outputs[shard], load)
        self._plan = plan
        self._origin: bytes | None = None
        self._part = (0, 0)
        self._count: dict[ChannelId, int] = {}

    def reading_at(self, offset: Any) -> None:
        """Frames appended from now on were read at this offset."""
        self._origin = dumps(offset)

    def forwarding(self, start: int, records: int) -> None:
        """Frames appended from now on were made of these records of the batch."""
        self._part = (start, records)
        self._count = {}

    def append(self, frame: Frame) -> None:
        if frame.payload is None:
            super().append(frame)
            return
        if self._origin is None:
            # It waited in the checkpoint we rolled back to: its offset is unknown here.
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
    """A second instance of the shard's stages, with a separate reader."""

    def __init__(self, plan: Plan, shard: ShardId) -> None:
        self._plan = plan
        self._caught = {channel.edge: _Catch() for channel in plan.outputs[shard]}
        self._chain = ChainStages(plan, shard, self._caught, ShardState(), lambda: 0.0)  # type: ignore[arg-type]
        self._chain.build({}, {}, 0, "", permit(0))
        self._made_of: bytes | None = None

    def frame(self, place: Frame) -> Frame:
        assert place.payload is not None
        content = memoryview(place.payload.encoded)
        if content[: len(_BYTES)] == _BYTES:
            return replace(place, payload=BatchPayload(encoded=content[len(_BYTES) :]))
        content = content[len(_PLACE) :]
        index, start, records = _PART.unpack_from(content)
        made_of = bytes(content[4:])
        if made_of != self._made_of:
            self._make(bytes(content[_PART.size :]), start, records)
            self._made_of = made_of
        parts = self._parts(place.channel)
        if index >= len(parts) or len(parts[index]) != place.records:
            raise CorruptObject(
                f"the source of {place.channel} does not return the records that it returned "
                f"before: {place.records} records were sent and cannot be found."
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
            raise CorruptObject("a source has no records at an offset where it had some before.")
        self._chain.forward(batch[start : start + records])

    def _parts(self, channel: ChannelId) -> list[Batch]:
        batches = joined(self._caught[channel.edge].batches)
        routing = self._plan.graph.edges[channel.edge].routing
        if not isinstance(routing, ByKey | ByRoute):
            return batches
        splitter = routing.keying if isinstance(routing, ByKey) else routing.router
        channels = [c for c in self._plan.outputs[channel.sender] if c.edge == channel.edge]
        place = channels.index(channel)
        split = (splitter.split(batch, len(channels)) for batch in batches)
        return [part for parts in split for shard, part in parts if shard == place]

    def close(self) -> None:
        self._chain.close()


class _Catch:
    """Takes the place of an outlet, and keeps what it receives."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def collect(self, batch: Batch) -> None:
        self.batches.append(batch)

    def advance(self, watermark: int) -> None:
        """Watermarks are in the log itself."""


class SentFrames:
    """One shard's record of what it sent."""

    def __init__(self, plan: Plan, shard: ShardId, scheme: Scheme, engine: EngineApi) -> None:
        self.shard = shard
        self.outputs = plan.outputs[shard]
        self.log: MessageLog | None
        if scheme.log == "durable" and reads_again(plan, shard):
            self.log = SourceLog(plan, shard, engine.load)
        else:
            self.log = log_of(scheme.log, shard, self.outputs, engine.load)
        self._save_segment = engine.save_segment
        self._asked_for: dict[ChannelId, int] = {}
        """Channels to be opened again -> the position that their receivers have reached."""
        self._replayable: dict[ChannelId, list[Frame]] = {}
        """The frames to send there again."""

    @property
    def size_bytes(self) -> int | None:
        return 0 if self.log is None else self.log.size_bytes

    @property
    def append(self) -> Callable[[Frame], None] | None:
        """The callback of an outlet for every frame it sends."""
        return None if self.log is None else self._append

    def _append(self, frame: Frame) -> None:
        assert self.log is not None
        self.log.append(frame)
        full = self.log.full_segment()
        if full is not None:
            self._save_segment(full)

    def before_reading(self, reader: Reader) -> None:
        """A source is about to read: a log of offsets needs to know where."""
        if isinstance(self.log, SourceLog):
            self.log.reading_at(reader.offset)

    def before_forwarding(self, start: int, records: int) -> None:
        """And which of the records it has read it makes its frames of."""
        if isinstance(self.log, SourceLog):
            self.log.forwarding(start, records)

    def seal(self) -> Sequence[Segment]:
        """Everything sent so far, for a checkpoint to name."""
        return () if self.log is None else self.log.seal()

    def prune(self, received: Mapping[str, int]) -> None:
        """Frames received before these positions will not be requested."""
        if self.log is not None:
            self.log.prune(received)

    def ask(self, command: Recover) -> None:
        """Record which channels will request frames again."""
        goes_back = self.shard in command.records
        if goes_back:
            self._asked_for = {}
        for channel in self.outputs:
            if goes_back or channel.receiver in command.records:
                self._asked_for[channel] = command.received[str(channel)]

    def find(self) -> None:
        """Read the requested frames; raises CorruptObject if they cannot be read."""
        if self.log is not None:
            self._replayable = {c: self.log.after(c, seen) for c, seen in self._asked_for.items()}

    def asked(self) -> list[tuple[ChannelId, list[Frame]]]:
        """The channels to open now, with the frames to send there first."""
        asked_for, self._asked_for = self._asked_for, {}
        replayable, self._replayable = self._replayable, {}
        channels = []
        for channel, seen in asked_for.items():
            again = replayable.get(channel, [])
            if self.log is not None:
                # And frames that have been sent since.
                again = again + self.log.after(channel, again[-1].sequence if again else seen)
            channels.append((channel, again))
        return channels

    def restore(
        self, generation: Generation, record: CheckpointRecord | None, outlets: Mapping[int, Outlet]
    ) -> None:
        """Restore the log as of the checkpoint; nothing is sent before all shards are ready."""
        if self.log is None:
            return
        sent = {c: record.sent.get(str(c), 0) if record else 0 for c in self.outputs}
        self.log.restore(generation, record.log if record else (), sent)
        for channel in self.outputs:
            outlet = outlets[channel.edge]
            outlet.cut(channel)
            if record is not None and record.final and outlet.idle and not outlet.feedback:
                self.log.ensure_end(channel, sent[channel])
