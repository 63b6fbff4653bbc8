"""The log of what a shard has sent: the exact bytes, kept until they cannot be requested again.

A frame is in memory until the next checkpoint of its sender, or until a segment is full, and then
in the store. No frame waits for a write, and nothing is lost by that: a sender that dies rolls back
to its last checkpoint, and what it had sent after that never happened. So a rollback cuts the log
implicitly, because a checkpoint names the segments that were complete at its time.

`MemoryLog` follows FERDiS: it dies with its process, and frames in transit are lost.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from everstream.core.checkpointing.record import LogKind, LogSegment
from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Generation, ShardId
from everstream.errors import CorruptObject
from everstream.runtime.payload import BatchPayload
from everstream.state.objects import Data, ObjectRef, check_format

SEGMENT_BYTES: Final = 16 << 20
"""A segment of this size is written without waiting for the next checkpoint."""
_MAGIC: Final = b"EVERLOG"
FORMAT: Final = 1
"""One digit after the magic."""
_START: Final = _MAGIC + str(FORMAT).encode()
_COUNT = struct.Struct("<I")
_FRAME = struct.Struct("<IBQQIqIQ")
_NO_PAYLOAD: Final = (1 << 64) - 1
_ALIGNMENT: Final = 64
"""Arrow data that starts on such a boundary is read without a copy."""


@dataclass
class Segment:
    """Frames in the order they were sent; in memory, in the store, or on the way there."""

    name: str
    channels: Sequence[ChannelId]
    frames: list[Frame] | None = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    ref: ObjectRef | None = None

    def save(self, put: Callable[[str, Data], ObjectRef]) -> None:
        """Write it unless that is done, then free the memory. May run on another thread."""
        frames = self.frames
        if self.ref is None and frames is not None:
            self.ref = put(self.name, encode_segment(frames, self.channels))
            self.frames = None


class MessageLog(Protocol):
    """The interface of a log for its runner."""

    @property
    def size_bytes(self) -> int | None:
        """The size of everything it keeps; None if unknown."""

    def append(self, frame: Frame) -> None:
        """This frame is being sent."""

    def after(self, channel: ChannelId, sequence: int) -> list[Frame]:
        """Frames sent on a channel after this position; raises CorruptObject if unreadable."""

    def full_segment(self) -> Segment | None:
        """A segment that should be written now, if there is one."""
        return None

    def seal(self) -> list[Segment]:
        """Everything sent so far, as segments a checkpoint can name."""
        return []

    def prune(self, received: Mapping[str, int]) -> None:
        """Frames up to these positions will not be requested any more."""

    def restore(
        self, generation: Generation, segments: Sequence[LogSegment], sent: Mapping[ChannelId, int]
    ) -> None:
        """Roll back to what was logged up to these positions."""

    def ensure_end(self, channel: ChannelId, sequence: int) -> None:
        """The sender had ended: whatever else is lost, its end is known to have this position."""


class DurableLog(MessageLog):
    """In the store, as segments."""

    def __init__(
        self,
        shard: ShardId,
        channels: Sequence[ChannelId],
        load: Callable[[Sequence[ObjectRef]], list[bytes]],
    ) -> None:
        self.shard = shard
        self.channels = tuple(channels)
        self._load = load
        self._generation = Generation(0)
        self._made = 0
        self._sealed: list[Segment] = []
        self._open = self._segment()

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._sealed) + self._open.size_bytes

    def append(self, frame: Frame) -> None:
        segment = self._open
        assert segment.frames is not None
        segment.frames.append(frame)
        segment.last[str(frame.channel)] = frame.sequence
        if frame.payload is not None:
            # Now, because the operator may change a list of objects after emitting it.
            segment.size_bytes += len(frame.payload.encoded)

    def after(self, channel: ChannelId, sequence: int) -> list[Frame]:
        frames: list[Frame] = []
        for segment in [*self._sealed, self._open]:
            if segment.last.get(str(channel), 0) > sequence:
                frames += (f for f in self._frames(segment) if f.channel == channel)
        return [frame for frame in frames if frame.sequence > sequence]

    def full_segment(self) -> Segment | None:
        if self._open.size_bytes < SEGMENT_BYTES:
            return None
        return self.seal()[-1]

    def seal(self) -> list[Segment]:
        if self._open.frames:
            self._sealed.append(self._open)
            self._open = self._segment()
        return list(self._sealed)

    def prune(self, received: Mapping[str, int]) -> None:
        self._sealed = [
            segment
            for segment in self._sealed
            if any(last > received.get(channel, 0) for channel, last in segment.last.items())
        ]

    def restore(
        self, generation: Generation, segments: Sequence[LogSegment], sent: Mapping[ChannelId, int]
    ) -> None:
        self._generation = generation
        self._sealed = [
            Segment(s.ref.name, self.channels, None, dict(s.last), s.ref.size_bytes, s.ref)
            for s in segments
        ]
        self._open = self._segment()

    def ensure_end(self, channel: ChannelId, sequence: int) -> None:
        """The end is in the store like every other frame."""

    def _frames(self, segment: Segment) -> list[Frame]:
        frames = segment.frames
        if frames is None:
            assert segment.ref is not None
            frames = list(decode_segment(self._load([segment.ref])[0], self.channels))
        return frames

    def _segment(self) -> Segment:
        self._made += 1
        owner = f"{self.shard.operator}-{self.shard.number}"
        return Segment(f"{owner}/{self._generation:x}-{self._made:08d}.log", self.channels)


class MemoryLog(MessageLog):
    """In this process alone."""

    size_bytes = None
    """Frames to shards of the same process are never encoded."""

    def __init__(self, channels: Sequence[ChannelId]) -> None:
        self.frames: dict[ChannelId, list[Frame]] = {channel: [] for channel in channels}

    def append(self, frame: Frame) -> None:
        self.frames[frame.channel].append(frame)

    def after(self, channel: ChannelId, sequence: int) -> list[Frame]:
        return [frame for frame in self.frames[channel] if frame.sequence > sequence]

    def prune(self, received: Mapping[str, int]) -> None:
        for channel, frames in self.frames.items():
            passed = received.get(str(channel), 0)
            self.frames[channel] = [frame for frame in frames if frame.sequence > passed]

    def restore(
        self, generation: Generation, segments: Sequence[LogSegment], sent: Mapping[ChannelId, int]
    ) -> None:
        """A shard that rolls back in a living process still has its log.

        Otherwise an empty frame takes the position of the last one, so that its receiver sees how
        many are missing although none may follow.
        """
        for channel, frames in self.frames.items():
            last = sent[channel]
            kept = [f for f in frames if f.sequence <= last]
            if last and (not kept or kept[-1].sequence < last):
                kept.append(Frame(channel, FrameKind.DATA, Generation(0), last))
            self.frames[channel] = kept

    def ensure_end(self, channel: ChannelId, sequence: int) -> None:
        kept = [frame for frame in self.frames[channel] if frame.sequence < sequence]
        self.frames[channel] = [*kept, Frame(channel, FrameKind.END, Generation(0), sequence)]


def log_of(
    kind: LogKind,
    shard: ShardId,
    channels: Sequence[ChannelId],
    load: Callable[[Sequence[ObjectRef]], list[bytes]],
) -> MessageLog | None:
    match kind:
        case "none":
            return None
        case "durable":
            return DurableLog(shard, channels, load)
        case "memory":
            return MemoryLog(channels)


def encode_segment(frames: Sequence[Frame], channels: Sequence[ChannelId]) -> tuple[bytes, ...]:
    """Headers first, then each payload on a separate boundary; the payloads are not copied."""
    number = {channel: index for index, channel in enumerate(channels)}
    head = [_START, _COUNT.pack(len(frames))]
    for frame in frames:
        size = _NO_PAYLOAD if frame.payload is None else len(frame.payload.encoded)
        head.append(
            _FRAME.pack(
                number[frame.channel],
                frame.kind,
                frame.sequence,
                frame.number,
                frame.records,
                frame.watermark,
                len(frame.piggyback),
                size,
            )
        )
        head.append(frame.piggyback)
    parts: list[Any] = [b"".join(head)]
    at = len(parts[0])
    for frame in frames:
        if frame.payload is not None:
            padding = -at % _ALIGNMENT
            payload = memoryview(frame.payload.encoded)
            parts += (bytes(padding), payload)
            at += padding + payload.nbytes
    return tuple(parts)


def decode_segment(data: bytes, channels: Sequence[ChannelId]) -> Iterator[Frame]:
    """The frames of a segment; the sender sets their generation when it sends them again."""
    view = memoryview(data)
    for frame, at, size in frames_in(data, channels):
        if size is not None:
            frame.payload = BatchPayload(encoded=view[at : at + size])
        yield frame


def frames_in(
    data: bytes, channels: Sequence[ChannelId]
) -> Iterator[tuple[Frame, int, int | None]]:
    """The frames of a segment without payloads, with each payload's position and size."""
    digit = data[len(_MAGIC) : len(_START)]
    if data[: len(_MAGIC)] != _MAGIC or not digit.isdigit():
        raise CorruptObject("a segment of a message log does not start like one.")
    check_format("a segment of a message log", int(digit), FORMAT)
    try:
        headers, at = _decode_headers(data, channels)
    except (struct.error, IndexError, ValueError) as error:
        raise CorruptObject(f"a segment of a message log cannot be read: {error}.") from error
    for frame, size in headers:
        if size == _NO_PAYLOAD:
            yield frame, at, None
            continue
        at += -at % _ALIGNMENT
        if at + size > len(data):
            raise CorruptObject("a segment of a message log is cut short.")
        yield frame, at, size
        at += size


def _decode_headers(
    data: bytes, channels: Sequence[ChannelId]
) -> tuple[list[tuple[Frame, int]], int]:
    """Each frame without its payload, the payload's size, and where the first payload may start."""
    (count,) = _COUNT.unpack_from(data, len(_START))
    at = len(_START) + _COUNT.size
    headers: list[tuple[Frame, int]] = []
    for _ in range(count):
        channel, kind, sequence, number, records, watermark, riding, size = _FRAME.unpack_from(
            data, at
        )
        at += _FRAME.size
        frame = Frame(
            channels[channel],
            FrameKind(kind),
            Generation(0),
            sequence,
            number,
            records,
            data[at : at + riding],
            watermark=watermark,
        )
        at += riding
        headers.append((frame, size))
    return headers, at
