"""How frames and credit look on the wire between two hosts.

A message is a fixed header, what the protocol sends along, and for data the payload. A small payload
is in the same part, because parts cost more than copying it does; any other has a part of its own, so
that large batches are neither copied nor touched on their way; very large ones cross a network in
several parts. Both sides know the plan: a channel is its position in it.
"""

import struct
from typing import Any, NamedTuple

from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Generation
from everstream.errors import InternalError
from everstream.runtime.payload import BatchPayload

_HEADER = struct.Struct("<BIQQQIqdI")
_CREDIT = 255
MAX_PIGGYBACK_BYTES = 1 << 20
SMALL_BYTES = 1 << 12
"""Payloads up to this size travel in one part with their header."""


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
            len(frame.piggyback),
        )
        if frame.piggyback:
            header += frame.piggyback
        if frame.payload is None:
            return [header]
        encoded = frame.payload.encoded
        return [header + encoded] if len(encoded) <= SMALL_BYTES else [header, encoded]

    def credit_to_bytes(self, credit: Credit) -> bytes:
        channel, generation, frames, most = credit
        return _HEADER.pack(_CREDIT, self.position[channel], generation, 0, frames, most, 0, 0.0, 0)

    def parse(self, parts: list[Any]) -> Frame | Credit:
        """A frame, or a grant of credit; the first part as bytes."""
        first = parts[0]
        if len(first) < _HEADER.size:
            raise InternalError(f"a message has a header of {len(first)} bytes")
        kind, position, generation, sequence, number, records, watermark, born_s, extra = (
            _HEADER.unpack_from(first)
        )
        end = _HEADER.size + extra
        if not end <= len(first) <= end + SMALL_BYTES or extra > MAX_PIGGYBACK_BYTES:
            raise InternalError(f"a message begins with {len(first)} bytes where {end} are said")
        if position >= len(self.channels):
            raise InternalError(f"a message names channel {position} of {len(self.channels)}")
        channel = self.channels[position]
        if kind == _CREDIT:
            return Credit(channel, Generation(generation), number, records)
        payload = None
        if len(parts) > 1:
            payload = BatchPayload(encoded=_joined(parts[1:]))
        elif len(first) > end:
            payload = BatchPayload(encoded=first[end:])
        return Frame(
            channel,
            FrameKind(kind),
            Generation(generation),
            sequence,
            number,
            records,
            first[_HEADER.size : end],
            payload,
            watermark,
            born_s,
        )


def _joined(parts: list[Any]) -> Any:
    """A payload comes in one part, unless it is too large for the network."""
    return parts[0] if len(parts) == 1 else b"".join(bytes(part) for part in parts)
