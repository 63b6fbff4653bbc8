"""How frames and credit look on the wire between two hosts.

A message is a fixed header, followed for data by the payload in a part of its own, so that large
batches are neither copied nor touched on their way; very large ones cross a network in several parts. Both sides know the plan: a channel is its
position in it.
"""

import struct
from typing import Any, NamedTuple

from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Generation
from everstream.errors import InternalError
from everstream.runtime.payload import BatchPayload

_HEADER = struct.Struct("<BIQQQIqd")
_CREDIT = 255
MAX_PIGGYBACK_BYTES = 1 << 20


class Credit(NamedTuple):
    """What a receiver grants the sender of a channel."""

    channel: ChannelId
    generation: Generation
    frames: int
    most: int
    """Records that a frame should have; 0: as they come."""


class Wire:
    """Turns frames into messages and back, for one plan."""

    def __init__(self, channels: list[ChannelId]) -> None:
        self.channels = channels
        self.position = {channel: index for index, channel in enumerate(channels)}

    def frame_to_parts(self, frame: Frame) -> list[Any]:
        header = _HEADER.pack(
            frame.kind,
            self.position[frame.channel],
            frame.generation,
            frame.sequence,
            frame.number,
            frame.records,
            frame.watermark,
            frame.born_s,
        )
        if frame.piggyback:
            header += frame.piggyback
        return [header] if frame.payload is None else [header, frame.payload.encoded]

    def credit_to_parts(self, credit: Credit) -> list[bytes]:
        position, generation = self.position[credit.channel], credit.generation
        return [_HEADER.pack(_CREDIT, position, generation, 0, credit.frames, credit.most, 0, 0.0)]

    def parse(self, parts: list[Any]) -> Frame | Credit:
        """A frame, or a grant of credit."""
        header = bytes(parts[0])
        if not _HEADER.size <= len(header) <= _HEADER.size + MAX_PIGGYBACK_BYTES:
            raise InternalError(f"a message has a header of {len(header)} bytes")
        kind, position, generation, sequence, number, records, watermark, born_s = (
            _HEADER.unpack_from(header)
        )
        if position >= len(self.channels):
            raise InternalError(f"a message names channel {position} of {len(self.channels)}")
        channel = self.channels[position]
        if kind == _CREDIT:
            return Credit(channel, Generation(generation), number, records)
        payload = BatchPayload(encoded=_joined(parts[1:])) if len(parts) > 1 else None
        return Frame(
            channel,
            FrameKind(kind),
            Generation(generation),
            sequence,
            number,
            records,
            header[_HEADER.size :],
            payload,
            watermark,
            born_s,
        )


def _joined(parts: list[Any]) -> Any:
    """A payload comes in one part, unless it is too large for the network."""
    return parts[0] if len(parts) == 1 else b"".join(bytes(part) for part in parts)
