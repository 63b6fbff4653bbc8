"""Frames that belong to a checkpoint: those that wait at its shard's outputs and inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Generation
from everstream.runtime.payload import BatchPayload
from everstream.state.objects import ObjectRef
from everstream.state.saved import Saved
from everstream.state.snapshot import ShardState

CHANNELS = "/channels"
"""Where a checkpoint keeps them; with a slash, so that no operator can have this name."""
_Saved: TypeAlias = tuple[int, int, bytes | None, int, int]


@dataclass
class ChannelState(Saved, word="channel-state"):
    """Encoded at once, because an operator may change records once it has seen them."""

    outputs: dict[int, Any] = field(default_factory=dict)
    """Edge -> what its outlet had not sent."""
    inputs: dict[str, list[_Saved]] = field(default_factory=dict)

    def add(self, frame: Frame) -> None:
        payload = frame.payload
        if payload is not None and frame.start:
            payload = BatchPayload(payload.batch[frame.start :])
        encoded = None if payload is None else bytes(payload.encoded)
        left = frame.records - frame.start
        saved = (int(frame.kind), frame.number, encoded, left, frame.watermark)
        self.inputs.setdefault(str(frame.channel), []).append(saved)

    def join(self, other: "ChannelState") -> None:
        """The other's frames wait at the inputs behind these."""
        for channel, frames in other.inputs.items():
            self.inputs.setdefault(channel, []).extend(frames)

    def waiting(
        self, inputs: Sequence[ChannelId], generation: Generation
    ) -> Mapping[ChannelId, list[Frame]]:
        """The frames as they wait at the inputs after a restore.

        They have no position: nobody sent them in this generation, and nobody gets credit for
        them.
        """
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
                for kind, number, encoded, records, watermark in self.inputs[str(channel)]
            ]
            for channel in inputs
            if str(channel) in self.inputs
        }

    def __bool__(self) -> bool:
        return bool(self.inputs) or any(self.outputs.values())


def encoded_alone(channels: ChannelState) -> bytes:
    """Frames as an object of their own: a snapshot of nothing else."""
    return ShardState().capture({CHANNELS: channels}).encode()


def decoded_alone(data: bytes, ref: ObjectRef) -> ChannelState:
    """The frames in such an object; raises CorruptObject if it is none."""
    channels: ChannelState = ShardState().restore([data], [ref])[CHANNELS]
    return channels
