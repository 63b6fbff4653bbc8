"""Queues of an outlet: in memory, or in memory up to a limit and on disk beyond it.

Where a full queue makes its sender wait, it is short, and a plain one is enough. A feedback edge
never makes its sender wait, so its queue may outgrow memory. Then its front is in memory, its end
is in memory until it fills a segment, and everything between the two is on disk.

Items in memory have no size before they are encoded, so sizes at the front are estimates: the size
of columns is known, and for lists of objects a sample is encoded. Items behind the front are
encoded at once, because their operator may still change them, and their size is exact.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, TypeAlias

from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Generation
from everstream.runtime.payload import BatchPayload
from everstream.runtime.spilled import FRAME_BYTES, Spill, Spilled, SpillSpace

Item: TypeAlias = tuple[FrameKind, int, BatchPayload | None, int]
"""Kind, number, payload, records."""
Saved: TypeAlias = tuple[int, int, bytes | None, int]
EMPTY: Item = (FrameKind.DATA, 0, None, 0)


def to_saved(item: Item) -> Saved:
    """Encoded at once: their operator may still change the records."""
    kind, number, payload, records = item
    return int(kind), number, None if payload is None else bytes(payload.encoded), records


def from_saved(item: Saved) -> Item:
    kind, number, encoded, records = item
    return (
        FrameKind(kind),
        number,
        None if encoded is None else BatchPayload(encoded=encoded),
        records,
    )


UNCOUNTED: Final = 8
"""Items that may wait before their size is estimated: as many as a receiver accepts unseen."""
SAMPLED: Final = 32
"""Of this many lists of objects one is encoded to estimate their size."""
_NOBODY: Final = Generation(0)
"""Items have no generation before they are sent."""

Entry: TypeAlias = Saved | Spilled
"""The content of a queue in a checkpoint, in order: single items, and segments of them."""


class PlainQueue(deque[Item]):
    """In memory."""

    def saved(self) -> list[Entry]:
        """All of it, for a checkpoint."""
        return [to_saved(item) for item in self]

    def requeue(self, saved: Iterable[Entry]) -> None:
        for entry in saved:
            assert not isinstance(entry, Spilled), "only feedback edges spill"
            self.append(from_saved(entry))


class SpillingQueue:
    """In memory up to a bound, and on disk beyond it. Its front is always in memory."""

    def __init__(self, space: SpillSpace, channel: ChannelId, most_bytes: int) -> None:
        self._channel = channel
        self._most_bytes = most_bytes
        self._spill = Spill(space, (channel,))
        self._front: deque[Item] = deque()
        self._front_sizes: deque[int] = deque()
        self._front_bytes = 0
        self._segments: deque[Spilled] = deque()
        self._end: list[Item] = []
        self._end_bytes = 0
        self._length = 0
        self._sizes = _Sizes()

    def __len__(self) -> int:
        return self._length

    def __bool__(self) -> bool:
        return self._length > 0

    def __getitem__(self, index: int) -> Item:
        return self._front[index]

    @property
    def memory_bytes(self) -> int:
        """How much it has in memory, as far as it knows."""
        return self._front_bytes + self._end_bytes

    @property
    def spilled_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    def append(self, item: Item) -> None:
        self._length += 1
        if not self._segments and not self._end:
            size = self._sizes.of(item) if len(self._front) >= UNCOUNTED else 0
            if self._front_bytes + size <= self._most_bytes // 2 or not self._front:
                self._front.append(item)
                self._front_sizes.append(size)
                self._front_bytes += size
                return
        item, size = _encoded(item)
        self._end.append(item)
        self._end_bytes += size
        if self._end_bytes >= self._most_bytes // 4:
            self._write_end()

    def popleft(self) -> Item:
        item = self._front.popleft()
        self._front_bytes -= self._front_sizes.popleft()
        self._length -= 1
        if not self._front and self._length:
            self._refill()
        return item

    def saved(self) -> list[Entry]:
        """All of it, for a checkpoint: segments on disk are only named."""
        front, end = map(to_saved, self._front), map(to_saved, self._end)
        return [*front, *self._segments, *end]

    def requeue(self, saved: Iterable[Entry]) -> None:
        """Append these entries. Raises CorruptObject if it cannot be fetched."""
        for entry in saved:
            if isinstance(entry, Spilled):
                self._adopt(self._spill.fetch(entry))
            else:
                self.append(from_saved(entry))

    def _adopt(self, segment: Spilled) -> None:
        if self._end:
            self._write_end()
        self._segments.append(segment)
        self._length += segment.length
        if not self._front:
            self._refill()

    def _write_end(self) -> None:
        frames = [
            Frame(self._channel, kind, _NOBODY, 0, number, records, payload=payload)
            for kind, number, payload, records in self._end
        ]
        self._segments.append(self._spill.write(frames))
        self._end, self._end_bytes = [], 0

    def _refill(self) -> None:
        if not self._segments:
            items, self._end, self._end_bytes = self._end, [], 0
        else:
            items = [
                (frame.kind, frame.number, _payload(frame), frame.records)
                for frame in self._spill.read(self._segments.popleft())
            ]
            if not self._segments:
                self._spill.let_go()
        for item in items:
            _, size = _encoded(item)
            self._front.append(item)
            self._front_sizes.append(size)
            self._front_bytes += size


class _Sizes:
    """Estimates the size of items without encoding them all."""

    def __init__(self) -> None:
        self._record_bytes = 0.0
        self._lists = 0

    def of(self, item: Item) -> int:
        _, _, payload, records = item
        if payload is None:
            return FRAME_BYTES
        known = payload.known_bytes
        if known is not None:
            return FRAME_BYTES + known
        if self._lists % SAMPLED == 0:
            average = len(payload.encoded) / max(records, 1)
            self._record_bytes = (self._record_bytes + average) / 2 if self._lists else average
        self._lists += 1
        return FRAME_BYTES + int(records * self._record_bytes)


def _encoded(item: Item) -> tuple[Item, int]:
    """The item as bytes and nothing else, and its size."""
    kind, number, payload, records = item
    if payload is None:
        return item, FRAME_BYTES
    encoded = payload.encoded
    return (kind, number, BatchPayload(encoded=encoded), records), FRAME_BYTES + len(encoded)


def _payload(frame: Frame) -> BatchPayload | None:
    payload = frame.payload
    assert payload is None or isinstance(payload, BatchPayload)
    return payload
