"""A shard's checkpoints: how to take one, and how to restore one.

A checkpoint is taken in one step, between two pieces of work: sinks close their transactions, the
key stores are captured, the log is sealed. The result is an `Upload`, which shares nothing with the
shard that it still changes. If frames that are still to arrive belong to it, it stays open until
the last of them has come. And if a store is large, it waits until that has been saved, in slices
between later pieces of work.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from everstream.core.checkpointing.record import CheckpointRecord, LogSegment
from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, Generation
from everstream.core.instructions import LoadState
from everstream.core.protocols.base import Queues
from everstream.runtime.chain import ChainStages
from everstream.runtime.channel_state import CHANNELS, ChannelState, decoded_alone
from everstream.runtime.engine_api import EngineApi, Upload
from everstream.runtime.outlets import Outlet
from everstream.runtime.redistributed_state import load_share
from everstream.runtime.sent_frames import SentFrames
from everstream.runtime.spilled import Spill, SpillSpace
from everstream.state.objects import ObjectRef
from everstream.state.snapshot import ShardState


class Snapshots:
    """Takes and restores the checkpoints of one shard."""

    def __init__(
        self,
        inputs: Sequence[ChannelId],
        chain: ChainStages,
        state: ShardState,
        outlets: Mapping[int, Outlet],
        sent: SentFrames,
        engine: EngineApi,
        space: SpillSpace,
    ) -> None:
        self._inputs = tuple(inputs)
        self._chain = chain
        self._state = state
        self._outlets = outlets
        self._sent = sent
        self._engine = engine
        self._space = space
        self._open: tuple[Upload, ChannelState] | None = None
        """A checkpoint that waits for frames that belong to it."""
        self._closed: deque[Upload] = deque()
        """Checkpoints to be uploaded, in order: a later one may need objects that an earlier one
        puts into the store."""

    def take(
        self,
        record: CheckpointRecord,
        queues: Queues,
        generation: Generation,
        waiting: Iterable[Frame],
    ) -> None:
        """Capture the state of this instant; it stays open if frames to come belong to it."""
        began_s = self._engine.clock_s()
        if self._open is not None:
            # Its epoch was aborted, otherwise no other would have begun.
            self._state.mark_failed(self._open[0].capture)
            self._open = None
        extras = self._chain.prepare(record.number)
        # Half of it, because one that is being uploaded is in memory, too.
        most_bytes = self._space.memory_bytes // 2
        channels = ChannelState(spill=Spill(self._space, self._inputs), most_bytes=most_bytes)
        if queues != "none":
            channels.outputs = {n: o.queued() for n, o in self._outlets.items() if not o.idle}
            for frame in waiting:
                if queues == "both" or frame.begun:
                    channels.add(frame)
        if channels or queues == "both":
            extras[CHANNELS] = channels
        capture = self._state.capture(extras, in_slices=True)
        record = replace(
            record,
            counts=self._chain.counts,
            skipped=self._chain.skipped,
            keeps=tuple(self._chain.keeping(extras)),
            uncommitted=uncommitted_in(extras),
            holds_frames=bool(channels) or queues == "both",
            capture_s=self._engine.clock_s() - began_s,
        )
        transactions, segments = self._chain.unpersisted(), self._sent.seal()
        upload = Upload(record.shard, generation, record, capture, transactions, segments, channels)
        if queues == "both":
            self._open = (upload, channels)
        else:
            self._closed.append(upload)

    @property
    def saving(self) -> bool:
        return self._state.saving

    def save_slice(self) -> None:
        self._state.save_slice(self._engine.clock_s)

    def ready(self) -> Iterator[Upload]:
        """The checkpoints that can be uploaded now."""
        while self._closed and self._closed[0].capture.whole:
            yield self._closed.popleft()

    def add(self, frame: Frame) -> None:
        """A frame came that belongs to the open checkpoint."""
        assert self._open is not None
        self._open[1].add(frame)

    def close(self, aligned_s: float) -> None:
        """No more frames belong to the open checkpoint, which was aligning for this long."""
        assert self._open is not None
        (upload, channels), self._open = self._open, None
        upload.record = replace(upload.record, aligned_s=aligned_s, holds_frames=bool(channels))
        self._closed.append(upload)

    def saved(self, upload: Upload, ref: ObjectRef, upload_s: float) -> CheckpointRecord:
        """A checkpoint is durable. Returns its record, with everything needed to restore it."""
        chain = self._state.mark_durable(upload.capture, ref)
        return replace(
            upload.record,
            objects=chain,
            files=upload.capture.files,
            log=tuple(LogSegment(s.ref, s.last) for s in upload.segments if s.ref is not None),
            spilled=upload.channels.saved_segments,
            upload_s=upload_s,
            size_bytes=ref.size_bytes + upload.capture.new_bytes + upload.spilled_bytes,
        )

    def lost(self, upload: Upload) -> None:
        """A checkpoint could not be written; the next one must not build on it."""
        self._state.mark_failed(upload.capture)

    def restore(self, order: LoadState) -> Mapping[ChannelId, Sequence[Frame]]:
        """Roll back. Returns the frames that wait at the inputs. May raise CorruptObject."""
        self._open = None
        self._closed.clear()
        for outlet in self._outlets.values():
            outlet.reset()
        extras = load_state(self._state, self._chain, order.records, self._engine.load)
        channels: ChannelState = extras.pop(CHANNELS, ChannelState())
        channels.fetch(Spill(self._space, self._inputs))
        for number, saved in channels.outputs.items():
            self._outlets[number].requeue(saved)
        for carried in (record.carried for record in order.records):
            for data, ref in zip(self._engine.load(carried), carried, strict=True):
                channels.join(decoded_alone(data, ref))
        record = order.records[0] if order.records else None
        self._sent.restore(order.generation, record, self._outlets)
        self._sent.find()
        counts = {name: pair for r in order.records for name, pair in r.counts.items()}
        store, reason = self._engine.store_url, order.reason
        self._chain.build(extras, counts, order.generation, store, order.permit, reason)
        return channels.waiting(self._inputs, order.generation)


def uncommitted_in(extras: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Sink -> the checkpoints of its transactions that are saved here."""
    return {
        name: tuple(transaction.checkpoint for transaction in extra["transactions"])
        for name, extra in extras.items()
        if name != CHANNELS and "transactions" in extra
    }


def load_state(
    state: ShardState,
    chain: ChainStages,
    records: Sequence[CheckpointRecord],
    load: Callable[[Sequence[ObjectRef]], list[bytes]],
) -> dict[str, Any]:
    """Fill the key stores. Returns the extras (offsets, transactions) of this chain's operators.

    Usually one record holds everything. After a change of the graph the operators' state is
    gathered, by their names, from the records they were in; the next capture is full then.
    """
    operators = chain.operators
    if len(records) == 1 and records[0].parts:
        return load_share(state, chain, records[0], load)
    if len(records) == 1 and records[0].operators == operators and not records[0].aliases:
        objects = records[0].objects
        return state.restore(load(objects), objects, load)
    state.reset()
    extras: dict[str, Any] = {}
    for record in records:
        owner = partial(_owner_among, record, operators)
        other = state.beside(owner)
        restored = other.restore(load(record.objects), record.objects, load)
        owned = {record.owner(name): value for name, value in restored.items()}
        extras |= {name: owned[name] for name in chain.saved_names() if name in owned}
        if CHANNELS in restored and record.operators == operators:
            extras[CHANNELS] = restored[CHANNELS]
        state.adopt(other, owner)
    return extras


def _owner_among(record: CheckpointRecord, operators: Collection[str], saved: str) -> str | None:
    owner = record.owner(saved)
    return owner if owner in operators else None
