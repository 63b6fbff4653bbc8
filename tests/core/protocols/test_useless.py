"""Communication-induced checkpoints: under both rules, none is ever useless."""

import json
import random
from typing import Any

import pytest

from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, ShardId
from everstream.core.protocols.base import Ask, ShardPosition
from everstream.core.protocols.induced import BCS, HMNR
from everstream.core.protocols.uncoordinated import UncoordinatedProtocol

from .harness import Make, Net, frame, make_bcs, make_hmnr, make_uncoordinated, random_net

HISTORIES = 320
STEPS = 120
Patch = pytest.MonkeyPatch


def history(seed: int, make: Make, *, cyclic: bool = True) -> Net:
    """The same seed gives every rule the same graph and the same chances."""
    chance = random.Random(seed)
    net = random_net(chance, make, cyclic=cyclic)
    net.run(chance, STEPS)
    return net


def useless(make: Make) -> int:
    return sum(len(history(seed, make).useless()) for seed in range(HISTORIES))


@pytest.mark.parametrize("make", [make_hmnr, make_bcs])
def test_no_checkpoint_is_useless(make: Make) -> None:
    for seed in range(HISTORIES):
        assert history(seed, make).useless() == [], f"history {seed}"


def test_without_a_rule_many_checkpoints_are_useless() -> None:
    assert useless(make_uncoordinated) > HISTORIES


def test_hmnr_forces_fewer_checkpoints_than_bcs_and_both_force_some() -> None:
    hmnr = sum(history(seed, make_hmnr).forced for seed in range(HISTORIES))
    bcs = sum(history(seed, make_bcs).forced for seed in range(HISTORIES))
    assert 0 < hmnr < 0.9 * bcs


def test_hmnr_counts_the_empty_start_as_a_checkpoint_and_forces_fewer_for_it() -> None:
    with_start = sum(history(seed, make_hmnr).forced for seed in range(HISTORIES))

    class WithoutStart(HMNR):
        def __init__(self, place: ShardPosition, every_s: float, jitter: float) -> None:
            super().__init__(place, every_s, jitter)
            self.clock[:] = self.ckpt[:] = self.taken[:] = 0

    def make(place: ShardPosition) -> HMNR:
        return WithoutStart(place, 1.0, 0.0)

    assert with_start < 0.95 * sum(history(seed, make).forced for seed in range(HISTORIES))


def test_a_shard_is_not_forced_by_one_that_never_heard_of_it() -> None:
    a, b = ShardId("a", 0), ShardId("b", 0)
    there, back = ChannelId(0, a, b), ChannelId(1, b, a)
    first = HMNR(ShardPosition(a, (back,), (there,), (a, b)), 1.0, 0.0)
    second = HMNR(ShardPosition(b, (there,), (back,), (a, b)), 1.0, 0.0)
    first.take()
    for protocol in (second, _again(second)):
        assert not protocol.checkpoint_first(frame(there, 1, first.piggyback(there)))


def _again(protocol: HMNR) -> HMNR:
    """Back at the empty start."""
    protocol.restore({}, ())
    return protocol


@pytest.mark.parametrize("make", [make_hmnr, make_bcs])
def test_where_there_is_no_cycle_nothing_is_forced_and_nothing_rides_along(make: Make) -> None:
    for seed in range(60):
        net = history(seed, make, cyclic=False)
        assert net.forced == 0
        assert all(not net.send(channel).piggyback for channel in net.channels)


@pytest.mark.parametrize("make", [make_hmnr, make_bcs])
def test_only_what_goes_round_carries_anything(make: Make) -> None:
    carried = 0
    for seed in range(60):
        net = history(seed, make)
        for channel in net.channels:
            inside = channel.receiver in net.members[channel.sender].protocol.place.cycle
            assert bool(net.send(channel).piggyback) == inside
            carried += inside
        for shard, member in net.members.items():
            if not member.protocol.place.cycle:
                assert member.forced == 0, f"{shard} is on no cycle"
    assert carried


def test_hmnr_without_its_first_condition_leaves_useless_checkpoints(monkeypatch: Patch) -> None:
    def only_returned(self: HMNR, frame: Frame) -> list[Ask]:
        if not frame.piggyback:
            return []
        _, m_ckpt, m_taken = self._parse(frame)
        i = self.i
        return [self.take(forced=True)] if m_taken[i] and m_ckpt[i] == self.ckpt[i] else []

    monkeypatch.setattr(HMNR, "checkpoint_first", only_returned)
    assert useless(make_hmnr) > 0


def test_hmnr_without_its_second_condition_leaves_useless_checkpoints(monkeypatch: Patch) -> None:
    whole = HMNR.checkpoint_first

    def only_zigzag(self: HMNR, frame: Frame) -> list[Ask]:
        if frame.piggyback:
            self.taken[self.i] = 0
            body = self._parse(frame).copy()
            body[2, self.i] = 0
            frame = Frame(
                frame.channel,
                frame.kind,
                frame.generation,
                frame.sequence,
                piggyback=body.tobytes(),
            )
        return list(whole(self, frame))

    monkeypatch.setattr(HMNR, "checkpoint_first", only_zigzag)
    assert useless(make_hmnr) > 0


def restarted(seed: int, make: Make) -> Net:
    """A history in which whoever takes a checkpoint is restored from it by another process."""
    chance = random.Random(seed)
    net = random_net(chance, make)
    taken = dict.fromkeys(net.members, 0)
    for _ in range(STEPS):
        net.run(chance, 1)
        for shard, member in net.members.items():
            if len(member.checkpoints) > taken[shard] and member.position == member.checkpoints[-1]:
                saved = json.loads(json.dumps(member.protocol.variables()))
                member.protocol = make(member.protocol.place)
                member.protocol.restore(saved, ())
            taken[shard] = len(member.checkpoints)
    return net


@pytest.mark.parametrize("make", [make_hmnr, make_bcs])
def test_no_checkpoint_is_useless_though_shards_are_restored_from_them(make: Make) -> None:
    for seed in range(HISTORIES // 2):
        assert restarted(seed, make).useless() == [], f"history {seed}"


@pytest.mark.parametrize(("make", "kind"), [(make_hmnr, HMNR), (make_bcs, BCS)])
def test_vectors_that_are_not_restored_leave_useless_checkpoints(
    make: Make, kind: type[UncoordinatedProtocol], monkeypatch: Patch
) -> None:
    restore = kind.restore

    def forgetful(self: UncoordinatedProtocol, variables: dict[str, Any], ended: Any) -> None:
        restore(self, {"number": variables.get("number", 0)}, ended)

    monkeypatch.setattr(kind, "restore", forgetful)
    assert sum(len(restarted(seed, make).useless()) for seed in range(HISTORIES // 2)) > 0
