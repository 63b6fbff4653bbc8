"""What waits in an outlet: a frame that has no channel position yet, and how it is saved."""

from typing import TypeAlias

from everstream.core.frames import FrameKind
from everstream.runtime.payload import BatchPayload

Item: TypeAlias = tuple[FrameKind, int, BatchPayload | None, int]
"""Kind, number, payload, records."""
Saved: TypeAlias = tuple[int, int, bytes | None, int]
EMPTY: Item = (FrameKind.DATA, 0, None, 0)


def to_saved(item: Item) -> Saved:
    """Encoded at once: the records may be changed by whoever made them."""
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
