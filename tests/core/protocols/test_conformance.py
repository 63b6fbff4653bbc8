"""One suite for all protocols: what a shard may rely on, whichever was chosen."""

import json
import pickle
import random
from collections.abc import Sequence
from typing import Any

import pytest

from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, CheckpointNumber, Epoch, Generation, ShardId
from everstream.core.messages import StartCheckpoint
from everstream.core.protocols.base import (
    Ask,
    CloseCheckpoint,
    FrameAction,
    SendMarkers,
    ShardPosition,
    ShardProtocol,
    StopProducing,
    TakeCheckpoint,
)
from everstream.core.protocols.induced import BCS, HMNR
from everstream.core.protocols.uncoordinated import UncoordinatedProtocol
from everstream.core.scheme import ALIGNED, AT_LEAST_ONCE, UNALIGNED, Scheme, scheme_of
from everstream.pipeline import checkpointing

from .harness import frame, make_hmnr, random_net

ME, PEER, FEED, OUT = (ShardId(name, 0) for name in ("me", "peer", "feed", "out"))
LEFT, RIGHT = ChannelId(0, FEED, ME), ChannelId(1, PEER, ME)
ONWARD, ROUND = ChannelId(2, ME, OUT), ChannelId(3, ME, PEER)
PLACE = ShardPosition(ME, (LEFT, RIGHT), (ONWARD, ROUND), (ME, PEER))
SOURCE = ShardPosition(FEED, (), (LEFT,))

COORDINATED = [ALIGNED, AT_LEAST_ONCE, UNALIGNED]
LOGGED = [
    scheme_of(checkpointing.Uncoordinated(every="1s", jitter=0.2)),
    scheme_of(checkpointing.CommunicationInduced(every="1s", rule="hmnr", jitter=0.2)),
    scheme_of(checkpointing.CommunicationInduced(every="1s", rule="bcs", jitter=0.2)),
]
every_scheme = pytest.mark.parametrize("scheme", [*COORDINATED, *LOGGED], ids=lambda s: s.name)
coordinated = pytest.mark.parametrize("scheme", COORDINATED, ids=lambda s: s.name)
logged = pytest.mark.parametrize("scheme", LOGGED, ids=lambda s: s.name)


def marker(channel: ChannelId, epoch: int) -> Frame:
    return Frame(channel, FrameKind.MARKER, Generation(0), 0, epoch)


def end(channel: ChannelId) -> Frame:
    return Frame(channel, FrameKind.END, Generation(0), 1)


def meet(protocol: ShardProtocol, arrived: Frame) -> list[Ask]:
    """What a shard does with a frame that it finds at the head of an input."""
    asks = list(protocol.on_arrival(arrived))
    if arrived.kind is FrameKind.MARKER and protocol.consumes_markers_on_arrival:
        return asks
    match protocol.admit(arrived):
        case FrameAction.CONSUME:
            return [*asks, *protocol.on_consumed(arrived)]
        case FrameAction.DELIVER:
            asks += protocol.checkpoint_first(arrived)
            protocol.on_delivered(arrived)
            if arrived.kind is FrameKind.END:
                asks += protocol.on_input_ended(arrived.channel)
    return asks


def taken(asks: Sequence[Ask]) -> list[int]:
    return [ask.number for ask in asks if isinstance(ask, TakeCheckpoint)]


def ride(scheme: Scheme, clock: int) -> bytes:
    """What a peer's frame carries whose clock shows so much."""
    peer = scheme.protocol(ShardPosition(PEER, (ROUND,), (RIGHT,), (ME, PEER)))
    if isinstance(peer, UncoordinatedProtocol):
        for _ in range(clock):
            peer.take()
    return peer.piggyback(RIGHT)


def at_checkpoint(scheme: Scheme, number: int) -> ShardProtocol:
    """A protocol that has just taken this checkpoint, after some traffic."""
    protocol = scheme.protocol(PLACE)
    for epoch in range(1, number + 1):
        meet(protocol, frame(LEFT))
        protocol.piggyback(ROUND)
        meet(protocol, frame(RIGHT, 1, ride(scheme, epoch)))
        if isinstance(protocol, UncoordinatedProtocol):
            protocol.take()
        else:
            meet(protocol, marker(LEFT, epoch))
            meet(protocol, marker(RIGHT, epoch))
    return protocol


def copy_of(scheme: Scheme, protocol: ShardProtocol) -> ShardProtocol:
    """Another process reads the checkpoint and goes on from it."""
    variables = json.loads(json.dumps(protocol.variables()))
    restored: ShardProtocol = pickle.loads(pickle.dumps(scheme)).protocol(PLACE)
    restored.restore(variables, sorted(protocol.ended))
    return restored


@every_scheme
@pytest.mark.parametrize("seed", range(10))
def test_a_restored_protocol_goes_on_as_the_one_that_took_the_checkpoint(
    scheme: Scheme, seed: int
) -> None:
    original = at_checkpoint(scheme, 3)
    restored = copy_of(scheme, original)
    chance = random.Random(seed)
    epoch = 3
    clock = 3
    for _ in range(60):
        what = chance.random()
        if what < 0.3:
            assert original.piggyback(ROUND) == restored.piggyback(ROUND)
            assert original.piggyback(ONWARD) == restored.piggyback(ONWARD) == b""
        elif what < 0.45 and not original.keeps_positions:
            epoch += 1
            for channel in (LEFT, RIGHT):
                assert meet(original, marker(channel, epoch)) == meet(
                    restored, marker(channel, epoch)
                )
        elif what < 0.45:
            assert original.on_command(StartCheckpoint(Epoch(0), stop=True)) == restored.on_command(
                StartCheckpoint(Epoch(0), stop=True)
            )
        else:
            clock += chance.randint(0, 2)
            arrived = frame(RIGHT, 1, ride(scheme, clock)) if what < 0.8 else frame(LEFT)
            assert meet(original, arrived) == meet(restored, arrived)
        assert original.variables() == restored.variables()


def test_restored_hmnr_vectors_are_those_after_the_checkpoint_in_random_histories() -> None:
    """Sent-to lists are empty there: what was sent before is before the checkpoint."""
    chance = random.Random(3)
    for _ in range(40):
        net = random_net(chance, make_hmnr)
        net.run(chance, 60)
        for member in net.members.values():
            protocol = member.protocol
            assert isinstance(protocol, HMNR)
            protocol.take()
            restored = make_hmnr(protocol.place)
            restored.restore(json.loads(json.dumps(protocol.variables())), ())
            for name in ("clock", "ckpt", "taken", "sent_to", "min_to"):
                assert (getattr(protocol, name) == getattr(restored, name)).all(), name
            assert restored.number == protocol.number


@every_scheme
def test_a_protocol_restored_from_nothing_is_like_a_fresh_one(scheme: Scheme) -> None:
    used = at_checkpoint(scheme, 3)
    used.restore({}, ())
    fresh = scheme.protocol(PLACE)
    assert used.variables() == fresh.variables()
    assert used.piggyback(ROUND) == fresh.piggyback(ROUND)
    assert not used.ended and not list(used.recorded)


@every_scheme
def test_variables_are_plain_values(scheme: Scheme) -> None:
    variables = at_checkpoint(scheme, 2).variables()
    assert json.loads(json.dumps(variables)) == variables


@every_scheme
def test_checkpoint_numbers_only_rise(scheme: Scheme) -> None:
    protocol = scheme.protocol(PLACE)
    numbers: list[int] = []
    for epoch in range(1, 6):
        asks = [*meet(protocol, frame(RIGHT, 1, ride(scheme, 2 * epoch)))]
        if not protocol.keeps_positions:
            asks += [*meet(protocol, marker(LEFT, epoch)), *meet(protocol, marker(RIGHT, epoch))]
        asks += protocol.on_tick(10.0 * epoch)
        asks += protocol.on_tick(10.0 * epoch + 5)
        numbers += taken(asks)
    assert len(numbers) >= 5
    assert numbers == sorted(set(numbers))


@every_scheme
def test_told_to_stop_a_source_saves_first_and_then_stops(scheme: Scheme) -> None:
    asks = list(scheme.protocol(SOURCE).on_command(StartCheckpoint(Epoch(7), stop=True)))
    assert isinstance(asks[0], TakeCheckpoint)
    assert isinstance(asks[-1], StopProducing)


@coordinated
def test_a_source_snapshots_before_it_sends_the_marker(scheme: Scheme) -> None:
    asks = list(scheme.protocol(SOURCE).on_command(StartCheckpoint(Epoch(7))))
    kinds = [type(ask) for ask in asks]
    assert kinds.index(TakeCheckpoint) < kinds.index(SendMarkers)
    assert taken(asks) == [7]


@coordinated
def test_a_finished_input_counts_as_one_that_has_shown_its_marker(scheme: Scheme) -> None:
    for order in ([end(LEFT), marker(RIGHT, 1)], [marker(RIGHT, 1), end(LEFT)]):
        protocol = scheme.protocol(PLACE)
        asks = [ask for one in order for ask in meet(protocol, one)]
        assert taken(asks) == [1]
        assert any(isinstance(ask, SendMarkers) for ask in asks)
        if protocol.consumes_markers_on_arrival:
            assert asks[-1] == CloseCheckpoint(CheckpointNumber(1))


@coordinated
def test_inputs_that_had_ended_before_the_checkpoint_stay_ended_after_a_restore(
    scheme: Scheme,
) -> None:
    protocol = scheme.protocol(PLACE)
    meet(protocol, end(LEFT))
    restored = copy_of(scheme, protocol)
    assert restored.ended == {LEFT}
    assert taken(meet(restored, marker(RIGHT, 4))) == [4]


@coordinated
def test_time_asks_nothing_of_who_waits_for_markers(scheme: Scheme) -> None:
    protocol = scheme.protocol(PLACE)
    assert [list(protocol.on_tick(now_s)) for now_s in (0.0, 10.0, 1000.0)] == [[], [], []]


def test_only_aligned_checkpoints_hold_an_input() -> None:
    for scheme in [*COORDINATED, *LOGGED]:
        protocol = scheme.protocol(PLACE)
        meet(protocol, marker(LEFT, 1))
        held = protocol.admit(frame(LEFT)) is FrameAction.HOLD
        assert held == (scheme is ALIGNED), scheme.name
        assert protocol.admit(frame(RIGHT)) is FrameAction.DELIVER


def test_unaligned_snapshots_at_the_first_marker_and_records_the_other_inputs_until_theirs() -> (
    None
):
    protocol = UNALIGNED.protocol(PLACE)
    assert not list(protocol.recorded)
    asks = meet(protocol, marker(LEFT, 1))
    assert asks == [
        TakeCheckpoint(CheckpointNumber(1), queues="both"),
        SendMarkers(Epoch(1), overtaking=True),
    ]
    assert list(protocol.recorded) == [RIGHT]
    assert meet(protocol, marker(RIGHT, 1)) == [CloseCheckpoint(CheckpointNumber(1))]
    assert not list(protocol.recorded)


def test_unaligned_leaves_an_epoch_that_was_given_up_for_the_next() -> None:
    protocol = UNALIGNED.protocol(PLACE)
    meet(protocol, marker(LEFT, 1))
    assert taken(meet(protocol, marker(LEFT, 2))) == [2]
    assert meet(protocol, marker(RIGHT, 1)) == []
    assert list(protocol.recorded) == [RIGHT]
    assert meet(protocol, marker(RIGHT, 2)) == [CloseCheckpoint(CheckpointNumber(2))]


def test_at_least_once_says_which_inputs_were_ahead_of_the_checkpoint() -> None:
    protocol = AT_LEAST_ONCE.protocol(PLACE)
    meet(protocol, marker(LEFT, 1))
    meet(protocol, frame(LEFT))
    assert taken(meet(protocol, marker(RIGHT, 1))) == [1]
    assert set(protocol.ahead) == {LEFT, RIGHT}


@logged
def test_the_timer_counts_from_the_last_checkpoint_whatever_its_cause(scheme: Scheme) -> None:
    protocol: Any = scheme.protocol(PLACE)
    assert taken(protocol.on_tick(0.0)) == []
    assert taken(protocol.on_tick(0.7)) == [], "0.8 to 1.2 s, with a jitter of a fifth"
    protocol.take(forced=True)
    assert taken(protocol.on_tick(0.75)) == []
    assert taken(protocol.on_tick(1.5)) == []
    assert taken(protocol.on_tick(1.96)) == [2]


@logged
def test_jitter_differs_between_shards_and_stays_within_its_share(scheme: Scheme) -> None:
    waits = []
    for number in range(20):
        protocol: Any = scheme.protocol(ShardPosition(ShardId("s", number), (), ()))
        waits.append(protocol._wait_s())
    assert all(0.8 <= wait_s <= 1.2 for wait_s in waits)
    assert len(set(waits)) > 10


def test_bcs_takes_over_the_clock_that_forced_it() -> None:
    protocol = BCS(PLACE, 1.0, 0.0)
    ahead = frame(RIGHT, 1, (5).to_bytes(8, "little"))
    [ask] = protocol.checkpoint_first(ahead)
    assert isinstance(ask, TakeCheckpoint) and ask.forced
    assert protocol.piggyback(ROUND) == (5).to_bytes(8, "little")
    assert not protocol.checkpoint_first(ahead)
    protocol.take()
    assert protocol.lc == 6
