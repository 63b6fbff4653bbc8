"""Outlets: credit, who gets a frame, and the place of markers and ends in the stream."""

import polars as pl
import pytest

from everstream.core.frames import FrameKind
from everstream.core.ids import Epoch
from everstream.errors import UserError
from everstream.pipeline.graph import Broadcast, ByKey, OnDemand, Routing
from everstream.pipeline.keys import Keying
from everstream.runtime.outlets import CREDIT, CREDIT_ON_DEMAND
from tests.runtime.wires import ALL, CHANNELS, A, B, Wire


@pytest.mark.parametrize("routing", ALL, ids=["on demand", "broadcast", "by key"])
def test_no_more_is_sent_than_was_granted(routing: Routing) -> None:
    wire = Wire(routing)
    for number in range(100):
        wire.emit([number])
    limit = CREDIT_ON_DEMAND if isinstance(routing, OnDemand) else CREDIT
    for channel in CHANNELS:
        assert len(wire.on(channel)) == limit
    assert not wire.outlet.idle
    wire.outlet.grant(A, 3)
    wire.outlet.pump()
    assert len(wire.on(A)) == limit + 3 and len(wire.on(B)) == limit


@pytest.mark.parametrize("routing", ALL, ids=["on demand", "broadcast", "by key"])
def test_a_marker_keeps_its_place_behind_the_frames_before_it(routing: Routing) -> None:
    wire = Wire(routing)
    for number in range(40):
        wire.emit([number])
    wire.outlet.marker(Epoch(1))
    wire.emit([1000], [1001], [1002])
    wire.outlet.end()
    while not wire.outlet.idle:
        for channel in CHANNELS:
            wire.outlet.grant(channel, 1)
        wire.outlet.pump()
    for channel in CHANNELS:
        carried = wire.on(channel)
        at = carried.index("MARKER")
        assert all(record < 1000 for batch in carried[:at] for record in batch)
        assert all(record >= 1000 for batch in carried[at + 1 : -1] for record in batch)
        assert carried[-1] == "END"
        numbers = [f.sequence for f in wire.sent if f.channel == channel]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("routing", ALL, ids=["on demand", "broadcast", "by key"])
def test_markers_and_ends_need_no_credit(routing: Routing) -> None:
    wire = Wire(routing)
    for channel in CHANNELS:
        if not isinstance(routing, OnDemand):
            wire.outlet.grant(channel, -wire.outlet.credit)
    wire.outlet.marker(Epoch(1))
    wire.outlet.end()
    assert wire.on(A) == wire.on(B) == ["MARKER", "END"]


def test_on_demand_frames_go_to_who_asks_first() -> None:
    wire = Wire(OnDemand())
    for number in range(2 * CREDIT_ON_DEMAND):
        wire.emit([number])
    sent = len(wire.sent)
    for number in range(4):
        wire.emit([100 + number])
    for channel in (B, B, A, B):
        wire.outlet.grant(channel, 1)
        wire.outlet.pump()
    assert [frame.channel for frame in wire.sent[sent:]] == [B, B, A, B]
    assert [frame.payload.batch for frame in wire.sent[sent:] if frame.payload] == [
        [100],
        [101],
        [102],
        [103],
    ]


def test_a_broadcast_frame_is_encoded_once_for_all() -> None:
    wire = Wire(Broadcast())
    wire.emit([1, 2])
    first, second = wire.sent
    assert first.payload is second.payload
    assert first.payload is not None and first.payload.encoded is first.payload.encoded


def test_by_key_every_key_has_one_channel_and_order_is_kept() -> None:
    wire = Wire(ByKey(Keying(lambda x: x % 10)))
    wire.emit(list(range(30)))
    a = [x for batch in wire.on(A) for x in batch]
    b = [x for batch in wire.on(B) for x in batch]
    assert sorted(a + b) == list(range(30)) and a == sorted(a) and b == sorted(b)
    assert not {x % 10 for x in a} & {x % 10 for x in b}


def test_what_one_step_emits_is_joined_into_one_frame() -> None:
    wire = Wire(OnDemand())
    wire.emit([1], [2], pl.DataFrame({"n": [3]}), pl.DataFrame({"n": [4]}), [5])
    batches = [frame.payload.batch for frame in wire.sent if frame.payload]
    assert batches[0] == [1, 2] and batches[2] == [5]
    assert isinstance(batches[1], pl.DataFrame) and batches[1]["n"].to_list() == [3, 4]
    assert [frame.records for frame in wire.sent] == [2, 2, 1]


def test_a_step_that_emits_nothing_sends_nothing_unless_order_counts_on_it() -> None:
    plain, ordered = Wire(OnDemand()), Wire(OnDemand(), one_frame=True)
    plain.emit()
    ordered.emit(ordinal=7)
    assert plain.sent == []
    (frame,) = ordered.sent
    assert (frame.number, frame.records, frame.kind) == (7, 0, FrameKind.DATA)


def test_a_receiver_of_rare_results_does_not_cut_the_input_that_they_come_from() -> None:
    wire = Wire(OnDemand())
    wire.outlet.wish(A, 2)
    assert wire.outlet.most == 2
    wire.outlet.collect([1])
    wire.outlet.flush(0, 2)
    for _ in range(20):
        wire.outlet.flush(0, 2)
    assert wire.outlet.most > 500, "a window that ends now and then is all it gets"


def test_before_an_ordered_sink_one_step_must_make_one_frame() -> None:
    wire = Wire(OnDemand(), one_frame=True)
    with pytest.raises(UserError, match="emitted both rows and objects"):
        wire.emit([1], pl.DataFrame({"n": [1]}))
    wire = Wire(OnDemand(), one_frame=True)
    wire.outlet.collect([1])
    with pytest.raises(UserError, match="emitted from on_start or on_end"):
        wire.outlet.flush_outside_step()


def test_a_reset_forgets_what_waits_and_starts_with_the_first_credit() -> None:
    wire = Wire(OnDemand())
    for number in range(20):
        wire.emit([number])
    wire.outlet.reset()
    assert wire.outlet.idle
    wire.sent.clear()
    for number in range(20):
        wire.emit([number])
    assert len(wire.sent) == 2 * CREDIT_ON_DEMAND
