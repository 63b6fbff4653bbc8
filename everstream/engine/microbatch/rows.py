"""Rows: what one stage passes to the next. Each is a frame of a channel, or the report of a shard.

Spark sees two things: the partition a row goes to, and bytes it never looks into, which are a
header of fixed size and a payload. Rows arrive in any order; sequence numbers restore their order.
"""

import pickle
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import cloudpickle

from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Generation
from everstream.errors import InternalError
from everstream.runtime.payload import BatchPayload

_HEADER = struct.Struct("<BIQQIqd")
_SUMMED = struct.Struct("<BQIq")
_REPORT = 255
_WIDTH = 48
"""Size of the header in a row: payloads start where Arrow can read them in place."""
_EMPTY, _FULL = bytes(_WIDTH - _HEADER.size), b"\1".ljust(_WIDTH - _HEADER.size, b"\0")
"""Between the two: whether there is a payload, which may be empty."""


class Row(NamedTuple):
    partition: int
    header: bytes
    payload: Any
    """A buffer, or None."""


def pieces_of(row: Row) -> tuple[bytes, memoryview]:
    """The bytes of a row, in two pieces, so that a large payload need not be copied."""
    if row.payload is None:
        return row.header + _EMPTY, memoryview(b"")
    return row.header + _FULL, memoryview(row.payload).cast("B")


def row_in(data: bytes) -> Row:
    """The row with these bytes; it has arrived, so its partition no longer matters."""
    seen = memoryview(data)
    header = data[: _HEADER.size]
    return Row(0, header, seen[_WIDTH:] if seen[_HEADER.size] else None)


class Digest(NamedTuple):
    """The traffic of a channel in one epoch, seen from one of its ends."""

    frames: int
    checksum: int


NOTHING = Digest(0, 0)


@dataclass(frozen=True)
class Arrived:
    """A received frame: its header is parsed, its payload is not."""

    position: int
    kind: FrameKind
    sequence: int
    number: int
    records: int
    watermark: int
    born_s: float
    payload: Any

    def added_to(self, digest: Digest) -> Digest:
        """Both ends count this way; sequence numbers are per sender."""
        fields = _SUMMED.pack(self.kind, self.number, self.records, self.watermark)
        checksum = zlib.crc32(fields, digest.checksum)
        if self.payload is not None:
            checksum = zlib.crc32(self.payload, checksum)
        return Digest(digest.frames + 1, checksum)

    def as_frame(self, channel: ChannelId, generation: Generation, sequence: int) -> Frame:
        """With the receiver's numbering: both ends count from when they were built."""
        payload = None if self.payload is None else BatchPayload(encoded=self.payload)
        return Frame(
            channel,
            self.kind,
            generation,
            sequence,
            self.number,
            self.records,
            b"",
            payload,
            self.watermark,
            self.born_s,
        )


def arrived(position: int, frame: Frame) -> Arrived:
    return Arrived(
        position,
        frame.kind,
        frame.sequence,
        frame.number,
        frame.records,
        frame.watermark,
        frame.born_s,
        None if frame.payload is None else frame.payload.encoded,
    )


def header_of(frame: Arrived) -> bytes:
    return _HEADER.pack(
        frame.kind,
        frame.position,
        frame.sequence,
        frame.number,
        frame.records,
        frame.watermark,
        frame.born_s,
    )


def position_in(header: Any) -> int | None:
    """The channel of a row; None if it is a report."""
    kind, position = _HEADER.unpack_from(header)[:2]
    return None if kind == _REPORT else int(position)


def parsed(header: Any, payload: Any) -> Arrived:
    kind, position, sequence, number, records, watermark, born_s = _HEADER.unpack_from(header)
    return Arrived(position, FrameKind(kind), sequence, number, records, watermark, born_s, payload)


def in_order(frames: Iterable[Arrived]) -> list[Arrived]:
    """By channel, and on each in the order of sending: a marker repeats the number before it."""
    return sorted(frames, key=lambda f: (f.position, f.sequence, f.kind is FrameKind.MARKER))


def report_row(partition: int, report: Any) -> Row:
    """A shard's report; classes from the user's script are pickled by value."""
    return Row(partition, _HEADER.pack(_REPORT, 0, 0, 0, 0, 0, 0.0), cloudpickle.dumps(report))


def report_in(row: Row) -> Any:
    if position_in(row.header) is not None:
        raise InternalError(f"a frame for channel {position_in(row.header)} came to the driver")
    return pickle.loads(row.payload)
