"""Frames: what travels on a channel. The core reads their headers and never looks inside."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from everstream.core.ids import ChannelId, Generation
from everstream.pipeline.batch import Batch
from everstream.pipeline.times import NO_WATERMARK


class FrameKind(IntEnum):
    DATA = 0
    MARKER = 1
    END = 2


class Payload(Protocol):
    """The records of a frame, for code that opens it."""

    @property
    def batch(self) -> Batch: ...

    @property
    def encoded(self) -> Any:
        """A buffer with the bytes as they are sent and logged."""


@dataclass(slots=True)
class Frame:
    """A header and a batch, or a marker, or the end of the stream."""

    channel: ChannelId
    kind: FrameKind
    generation: Generation
    sequence: int
    """Position on the channel; counts data and end frames. A marker repeats the one before it."""
    number: int = 0
    """Marker: the checkpoint. Data: the ordinal of the source frame it stems from."""
    records: int = 0
    piggyback: bytes = b""
    """Data that the protocol sends along."""
    payload: Payload | None = None
    """None in a data frame: it has no records and is sent for its watermark."""
    watermark: int = NO_WATERMARK
    """After this frame every record on this channel has at least this time, or is late."""
    born_s: float = 0.0
    """When the records it stems from came in, by the wall clock; 0 if unknown."""
    start: int = 0
    """How many of its records the operators have received, if it is delivered in parts."""

    @property
    def begun(self) -> bool:
        """It belongs to the shard at which it waits, and will not be sent again.

        It was received in part, or was in a checkpoint.
        """
        return self.start > 0 or (self.sequence == 0 and self.kind is FrameKind.DATA)


def even_part(records: int, most: int) -> int:
    """How many of these records to take first, at most `most` at once, in parts of equal size."""
    return -(-records // -(-records // most))


def stands_for_a_lost_one(frame: Frame) -> bool:
    """No records and no watermark: only a log that has lost a frame sends such a one."""
    empty = frame.payload is None and frame.watermark == NO_WATERMARK
    return empty and frame.kind is FrameKind.DATA
