"""The recovery line against two other ways to find it: reachability in a graph, and trying all."""

import random
from collections import deque
from itertools import pairwise, product

from hypothesis import given, settings
from hypothesis import strategies as st

from everstream.core.checkpointing.recovery_line import (
    START,
    ChannelEnds,
    Position,
    cycles,
    descendants,
    recovery_line,
)

Histories = dict[str, list[Position]]
CHANCE = st.integers(0, 2**32).map(random.Random)


@st.composite
def graphs(draw: st.DrawFn, most: int = 4) -> tuple[list[str], list[ChannelEnds]]:
    """Some shards and channels between them: cycles, double channels and loops included."""
    shards = [f"s{number}" for number in range(draw(st.integers(1, most)))]
    one = st.sampled_from(shards)
    ends = draw(st.lists(st.tuples(one, one), max_size=7))
    return shards, [ChannelEnds(f"c{n}", a, b) for n, (a, b) in enumerate(ends)]


@st.composite
def histories(
    draw: st.DrawFn, most: int = 4, steps: int = 80
) -> tuple[list[str], list[ChannelEnds], Histories]:
    """What really can have happened: frames are sent, received in order, and checkpoints taken."""
    shards, links = draw(graphs(most))
    chance = draw(CHANCE)
    sent = {link.name: 0 for link in links}
    received = dict(sent)
    found: Histories = {shard: [] for shard in shards}
    for _ in range(draw(st.integers(0, steps))):
        what = chance.random()
        if what < 0.25:
            shard = chance.choice(shards)
            found[shard].append(_position(shard, links, sent, received))
        elif links:
            link = chance.choice(links)
            if what < 0.6:
                sent[link.name] += 1
            elif received[link.name] < sent[link.name]:
                received[link.name] += 1
    for shard in shards:
        if chance.random() < 0.5:  # it lives: its present state is the newest
            found[shard].append(_position(shard, links, sent, received))
    return shards, links, found


def _position(
    shard: str, links: list[ChannelEnds], sent: dict[str, int], received: dict[str, int]
) -> Position:
    return Position(
        {k.name: received[k.name] for k in links if k.receiver == shard},
        {k.name: sent[k.name] for k in links if k.sender == shard},
    )


def at(found: Histories, shard: str, index: int) -> Position:
    return START if index < 0 else found[shard][index]


def agree(links: list[ChannelEnds], found: Histories, line: dict[str, int]) -> bool:
    return all(
        at(found, str(b), line[str(b)]).received.get(name, 0)
        <= at(found, str(a), line[str(a)]).sent.get(name, 0)
        for name, a, b in links
    )


def line_by_reachability(links: list[ChannelEnds], found: Histories) -> dict[str, int]:
    """The rollback-dependency graph: (s, k) stands for 's cannot keep its position k'.

    Nobody has a position after the newest. Who cannot keep a position cannot keep later ones, and
    then nobody can keep what was received and only sent after the position before.
    """
    gone = {(shard, len(history)) for shard, history in found.items()}
    waiting = deque(gone)
    while waiting:
        shard, k = waiting.popleft()
        next_ones = {(shard, k + 1)} if k < len(found[shard]) else set()
        for name, sender, receiver in links:
            if sender == shard:
                kept = at(found, shard, k - 1).sent.get(name, 0)
                next_ones |= {
                    (str(receiver), j)
                    for j, position in enumerate(found[str(receiver)])
                    if position.received.get(name, 0) > kept
                }
        waiting.extend(next_ones - gone)
        gone |= next_ones
    return {shard: min(k for s, k in gone if s == shard) - 1 for shard in found}


@given(histories())
@settings(max_examples=300)
def test_the_fixpoint_finds_what_reachability_finds(
    made: tuple[list[str], list[ChannelEnds], Histories],
) -> None:
    _, links, found = made
    line = recovery_line(links, found)
    assert line == line_by_reachability(links, found)
    assert agree(links, found, line)


@given(histories(most=3, steps=35))
@settings(max_examples=200)
def test_no_other_positions_that_agree_are_newer_for_any_shard(
    made: tuple[list[str], list[ChannelEnds], Histories],
) -> None:
    shards, links, found = made
    line = recovery_line(links, found)
    choices = [range(-1, len(found[shard])) for shard in shards]
    agreeing = [
        chosen
        for indices in product(*choices)
        if agree(links, found, chosen := dict(zip(shards, indices, strict=True)))
    ]
    assert line in agreeing
    for shard in shards:
        assert line[shard] == max(chosen[shard] for chosen in agreeing)


@given(histories())
@settings(max_examples=100)
def test_more_checkpoints_never_move_the_line_back(
    made: tuple[list[str], list[ChannelEnds], Histories],
) -> None:
    _, links, found = made
    fewer = {shard: history[:-1] for shard, history in found.items()}
    before, after = recovery_line(links, fewer), recovery_line(links, found)
    assert all(before[shard] <= after[shard] for shard in found)


def test_the_start_agrees_with_everything() -> None:
    links = [ChannelEnds("c", "a", "b")]
    assert recovery_line(links, {"a": [], "b": [Position({"c": 1})]}) == {"a": -1, "b": -1}
    assert recovery_line(links, {"a": [Position(sent={"c": 5})], "b": []}) == {"a": 0, "b": -1}
    assert recovery_line([], {"a": [], "b": []}) == {"a": -1, "b": -1}


def test_no_edge_is_drawn_when_received_equals_sent() -> None:
    links = [ChannelEnds("c", "a", "b")]
    equal = {"a": [Position(sent={"c": 3})], "b": [Position({"c": 3})]}
    assert recovery_line(links, equal) == {"a": 0, "b": 0}
    one_more = {"a": [Position(sent={"c": 3})], "b": [Position({"c": 4})]}
    assert recovery_line(links, one_more) == {"a": 0, "b": -1}


def test_checkpoints_on_a_cycle_can_fall_back_one_after_the_other_to_the_start() -> None:
    links = [ChannelEnds("there", "a", "b"), ChannelEnds("back", "b", "a")]
    found = {
        "a": [Position({"back": n}, {"there": n}) for n in (1, 2, 3)],
        "b": [Position({"there": n + 1}, {"back": n}) for n in (0, 1, 2)],
    }
    assert recovery_line(links, found) == {"a": -1, "b": -1}


@given(graphs(most=6), CHANCE)
@settings(max_examples=200)
def test_descendants_are_those_a_walk_can_reach(
    graph: tuple[list[str], list[ChannelEnds]], chance: random.Random
) -> None:
    shards, links = graph
    chosen = [shard for shard in shards if chance.random() < 0.4]
    reached = set(chosen)
    for _ in shards:
        reached |= {str(link.receiver) for link in links if link.sender in reached}
    assert descendants(links, chosen) == reached


@given(graphs(most=6))
@settings(max_examples=200)
def test_cycles_are_the_largest_groups_in_which_everybody_comes_back_to_everybody(
    graph: tuple[list[str], list[ChannelEnds]],
) -> None:
    shards, links = graph
    walks = {(str(link.sender), str(link.receiver)) for link in links}
    for middle in shards:
        walks |= {(a, b) for a in shards for b in shards if {(a, middle), (middle, b)} <= walks}
    found = cycles(links, shards)
    for group in found:
        assert all((a, b) in walks for a in group for b in group)
        assert [shards.index(a) < shards.index(b) for a, b in pairwise(group)] == [True] * (
            len(group) - 1
        )
    members = [shard for group in found for shard in group]
    assert len(members) == len(set(members))
    assert set(members) == {shard for shard in shards if (shard, shard) in walks}
    for a, b in product(members, members):
        together = any({a, b} <= set(group) for group in found)
        assert together == ((a, b) in walks and (b, a) in walks)
