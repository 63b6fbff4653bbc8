"""Frames as messages: in one part or in several, and back as they were."""

import pytest

from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Generation, ShardId
from everstream.engine.continuous.transport.wire import SMALL_BYTES, Credit, Wire
from everstream.errors import InternalError
from everstream.runtime.payload import BatchPayload

CHANNELS = [
    ChannelId(0, ShardId("source", 0), ShardId("map", 0)),
    ChannelId(0, ShardId("source", 0), ShardId("map", 1)),
]
WIRE = Wire(CHANNELS)


def frame(batch: list[object] | None, piggyback: bytes = b"") -> Frame:
    payload = None if batch is None else BatchPayload(batch)
    size = len(batch or ())
    return Frame(
        CHANNELS[1], FrameKind.DATA, Generation(3), 5, 7, size, piggyback, payload, 11, 1.5
    )


@pytest.mark.parametrize("piggyback", [b"", b"rides along"])
@pytest.mark.parametrize(
    ("batch", "parts"), [(None, 1), ([], 1), ([1, "two"], 1), ([b"x" * SMALL_BYTES], 2)]
)
def test_a_frame_comes_back_as_it_was(
    batch: list[object] | None, parts: int, piggyback: bytes
) -> None:
    sent = frame(batch, piggyback)
    message = WIRE.frame_to_parts(sent)
    assert len(message) == parts
    (came,) = WIRE.parse([bytes(message[0]), *message[1:]])
    assert isinstance(came, Frame)
    assert (came.payload and came.payload.batch) == batch
    came.payload = sent.payload
    assert came == sent


def test_credit_comes_back_as_it_was() -> None:
    credit = Credit(CHANNELS[0], Generation(9), 2, 500)
    assert WIRE.parse([WIRE.credit_to_bytes(credit)]) == [credit]


def test_what_stands_in_one_part_comes_back_in_order() -> None:
    credit = Credit(CHANNELS[0], Generation(9), 2, 500)
    small, bare = frame([1, "two"], b"rides along"), frame(None)
    large = frame([b"x" * SMALL_BYTES])
    heads = [WIRE.frame_to_parts(one)[0] for one in (small, bare)]
    header, payload = WIRE.frame_to_parts(large)
    first = b"".join([WIRE.credit_to_bytes(credit), *heads, header])
    came = WIRE.parse([first, payload])
    assert came[0] == credit
    assert [one.payload and one.payload.batch for one in came[1:] if isinstance(one, Frame)] == [
        [1, "two"],
        None,
        [b"x" * SMALL_BYTES],
    ]


def test_a_message_that_is_not_what_it_says_is_refused() -> None:
    (message,) = WIRE.frame_to_parts(frame(None, b"rides along"))
    (small,) = WIRE.frame_to_parts(frame([1]))
    with pytest.raises(InternalError, match="header of 0 bytes"):
        WIRE.parse([b""])
    with pytest.raises(InternalError, match="header of 3 bytes"):
        WIRE.parse([message[:3]])
    with pytest.raises(InternalError, match="bytes instead of"):
        WIRE.parse([message[:-1]])
    with pytest.raises(InternalError, match="bytes instead of"):
        WIRE.parse([small[:-1]])
    with pytest.raises(InternalError, match="header of 5 bytes"):
        WIRE.parse([message + bytes(5)])
    with pytest.raises(InternalError, match="no separate payload"):
        WIRE.parse([small, b"another"])
    with pytest.raises(InternalError, match="names channel 1 of 1"):
        Wire(CHANNELS[:1]).parse([message])
