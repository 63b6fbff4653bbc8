"""Frames that belong to a checkpoint: those that wait at its shard's outputs and inputs.

Frames that arrive while it is open may not fit into memory. Then they wait for their upload on the
local disk, in segments, as records at a feedback edge do; and the checkpoint names the segments.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Generation
from everstream.runtime.payload import BatchPayload
from everstream.runtime.spilled import FRAME_BYTES, Spill, Spilled
from everstream.state.objects import ObjectRef
from everstream.state.saved import Saved
from everstream.state.snapshot import ShardState

CHANNELS = "/channels"
"""The name under which a checkpoint keeps them; with a slash, so that no operator can have it."""
_Saved: TypeAlias = tuple[int, int, bytes | None, int, int]


@dataclass
class ChannelState(Saved, word="channel-state"):
    """Encoded at once, because an operator may change records once it has seen them."""

    outputs: dict[int, Any] = field(default_factory=dict)
    """Edge -> the frames that its outlet had not sent."""
    inputs: dict[str, list[_Saved]] = field(default_factory=dict)
    segments: tuple[Spilled, ...] = ()
    """Frames at the inputs that came before those."""
    spill: Spill | None = None
    """Where they are written if there are too many; with the channels of the inputs."""
    most_bytes: int = 0
    """How much of them may be in memory."""
    _held_bytes: int = field(default=0, init=False)

    def __getstate__(self) -> dict[str, Any]:
        kept = {"outputs": self.outputs, "inputs": self.inputs}
        return {**kept, "segments": self.segments} if self.segments else kept

    def add(self, frame: Frame) -> None:
        payload = frame.payload
        if payload is not None and frame.start:
            payload = BatchPayload(payload.batch[frame.start :])
        encoded = None if payload is None else bytes(payload.encoded)
        left = frame.records - frame.start
        saved = (int(frame.kind), frame.number, encoded, left, frame.watermark)
        self.inputs.setdefault(str(frame.channel), []).append(saved)
        self._held_bytes += FRAME_BYTES + len(encoded or b"")
        if self.spill is not None and self._held_bytes >= self.most_bytes:
            self._write(self.spill)

    def _write(self, spill: Spill) -> None:
        waiting = _frames(self.inputs, spill.channels, Generation(0))
        segment = spill.write([frame for frames in waiting.values() for frame in frames])
        self.segments = (*self.segments, segment)
        self.inputs = {}
        self._held_bytes = 0

    @property
    def spilled(self) -> Iterator[Spilled]:
        """Every segment on the local disk."""
        for saved in self.outputs.values():
            for queue in saved.values() if isinstance(saved, Mapping) else [saved]:
                yield from (entry for entry in queue if isinstance(entry, Spilled))
        yield from self.segments

    def save(self, put: Callable[[str, Any], ObjectRef], prefix: str) -> int:
        """Put segments that are only on the local disk into the store; returns their bytes."""
        named = enumerate(self.spilled)
        return sum(segment.save(put, f"{prefix}/{number}.frames") for number, segment in named)

    @property
    def saved_segments(self) -> tuple[ObjectRef, ...]:
        """The segments that `save` has stored, now or for an earlier checkpoint."""
        return tuple(segment.ref for segment in self.spilled if segment.ref is not None)

    def fetch(self, spill: Spill) -> None:
        """Fetch the segments of the inputs; raises CorruptObject if one is incomplete."""
        self.segments = tuple(map(spill.fetch, self.segments))

    def join(self, other: "ChannelState") -> None:
        """The other's frames wait at the inputs behind these."""
        for channel, frames in other.inputs.items():
            self.inputs.setdefault(channel, []).extend(frames)

    def waiting(
        self, inputs: Sequence[ChannelId], generation: Generation
    ) -> Mapping[ChannelId, list[Frame]]:
        """The frames as they wait at the inputs after a restore.

        They have no position: they were not sent in this generation, and return no credit.
        """
        waiting: dict[ChannelId, list[Frame]] = {}
        for segment in self.segments:
            for frame in segment.headers(inputs):
                frame.generation = generation
                waiting.setdefault(frame.channel, []).append(frame)
        for channel, frames in _frames(self.inputs, inputs, generation).items():
            waiting.setdefault(channel, []).extend(frames)
        return waiting

    def __bool__(self) -> bool:
        return bool(self.inputs) or bool(self.segments) or any(self.outputs.values())


def _frames(
    saved: Mapping[str, Iterable[_Saved]], channels: Sequence[ChannelId], generation: Generation
) -> dict[ChannelId, list[Frame]]:
    return {
        channel: [
            Frame(
                channel,
                FrameKind(kind),
                generation,
                0,
                number,
                records,
                payload=None if encoded is None else BatchPayload(encoded=encoded),
                watermark=watermark,
            )
            for kind, number, encoded, records, watermark in saved[str(channel)]
        ]
        for channel in channels
        if str(channel) in saved
    }


def encoded_alone(channels: ChannelState) -> bytes:
    """Frames as a separate object: a snapshot of nothing else."""
    return ShardState().capture({CHANNELS: channels}).encode()


def decoded_alone(data: bytes, ref: ObjectRef) -> ChannelState:
    """The frames in such an object; raises CorruptObject if it is not one."""
    channels: ChannelState = ShardState().restore([data], [ref])[CHANNELS]
    return channels
