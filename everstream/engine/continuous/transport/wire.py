"""The wire format of frames and credit between two workers.

A message is a fixed header, the protocol's data and, for data frames, the payload. A small payload
is in the same part, because a part costs more than copying it, and further messages may follow it.
A larger payload has a separate part, so that large batches are neither copied nor touched on their
way; very large ones cross a network in several parts. Both sides know the plan: a channel is its
position in it.
"""

import struct
from typing import Any, NamedTuple

from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Generation
from everstream.errors import InternalError
from everstream.runtime.payload import BatchPayload

_HEADER = struct.Struct("<BIQQQIqdII")
_CREDIT = 255
MAX_PIGGYBACK_BYTES = 1 << 20
SMALL_BYTES = 1 << 12
"""Payloads up to this size travel in one part with their header."""


class Credit(NamedTuple):
    """A receiver's grant to the sender of a channel."""

    channel: ChannelId
    generation: Generation
    frames: int
    most: int
    """Records that a frame should have; 0: any number."""


class Wire:
    """Turns frames into messages and back, for one plan."""

    def __init__(self, channels: list[ChannelId]) -> None:
        self.channels = channels
        self.position = {channel: index for index, channel in enumerate(channels)}

    def frame_to_parts(self, frame: Frame) -> list[Any]:
        """One part that others may follow, or a header and a payload that ends the message."""
        encoded = None if frame.payload is None else frame.payload.encoded
        inside = 0 if encoded is None or len(encoded) > SMALL_BYTES else len(encoded)
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
            inside,
        )
        if frame.piggyback:
            header += frame.piggyback
        if encoded is None:
            return [header]
        return [header + encoded] if inside else [header, encoded]

    def credit_to_bytes(self, credit: Credit) -> bytes:
        channel, generation, frames, most = credit
        return _HEADER.pack(
            _CREDIT, self.position[channel], generation, 0, frames, most, 0, 0.0, 0, 0
        )

    def parse(self, parts: list[Any]) -> list[Frame | Credit]:
        """Frames and grants of credit, in the order of sending; the first part as bytes.

        Only the last frame's payload can be in separate parts.
        """
        first, end = parts[0], 0
        parsed: list[Frame | Credit] = []
        while not parsed or end < len(first):
            item, end = self._parse_at(first, end)
            parsed.append(item)
        if len(parts) > 1:
            last = parsed[-1]
            if not isinstance(last, Frame) or last.payload is not None:
                raise InternalError(
                    "a message has more parts, but its last frame has no separate payload"
                )
            last.payload = BatchPayload(encoded=_joined(parts[1:]))
        return parsed

    def _parse_at(self, first: bytes, start: int) -> tuple[Frame | Credit, int]:
        """The item that starts at this byte, and where it ends."""
        if len(first) - start < _HEADER.size:
            raise InternalError(f"a message has a header of {len(first) - start} bytes")
        header = _HEADER.unpack_from(first, start)
        kind, position, generation, sequence, number, records, watermark, born_s, extra, inside = (
            header
        )
        inner = start + _HEADER.size + extra
        end = inner + inside
        if end > len(first) or extra > MAX_PIGGYBACK_BYTES or inside > SMALL_BYTES:
            raise InternalError(f"a message has {len(first)} bytes instead of {end}")
        if position >= len(self.channels):
            raise InternalError(f"a message names channel {position} of {len(self.channels)}")
        channel = self.channels[position]
        if kind == _CREDIT:
            return Credit(channel, Generation(generation), number, records), end
        frame = Frame(
            channel,
            FrameKind(kind),
            Generation(generation),
            sequence,
            number,
            records,
            first[start + _HEADER.size : inner] if extra else b"",
            BatchPayload(encoded=first[inner:end]) if inside else None,
            watermark,
            born_s,
        )
        return frame, end


def _joined(parts: list[Any]) -> Any:
    """A payload comes in one part, unless it is too large for the network."""
    return parts[0] if len(parts) == 1 else b"".join(bytes(part) for part in parts)
