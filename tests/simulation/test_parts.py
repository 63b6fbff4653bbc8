"""Batches and frames that are taken in parts: exact between any two of them, and never for long.

Most runs here cut whatever they can, at random, among the usual faults. The last ones learn how
slow an operator is, in virtual time.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from everstream.core.frames import Frame
from everstream.core.instructions import Instruction
from everstream.core.messages import Recover
from everstream.core.orders import Outcome, Policy
from everstream.core.shard import Shard
from everstream.runtime.chain import ChainStages
from everstream.runtime.channel_state import ChannelState
from everstream.runtime.pace import Pace
from everstream.runtime.sent_frames import SourceLog
from everstream.simulation.faults import NO_FAULTS, Faults
from everstream.simulation.happenings import History
from everstream.simulation.shapes import EVENT_TIME_SHAPES, Shape, columns, shape_for
from everstream.simulation.storm import scheme_for
from everstream.simulation.world import World
from tests.simulation.slow_work import RandomParts, slow_line

Patch = pytest.MonkeyPatch
EXACT = ["aligned", "unaligned", "uncoordinated", "hmnr", "bcs"]
SEEDS = 60
"""Each rule that is taken out must be missed by one of this many seeds; the first few do."""
KILLS = replace(NO_FAULTS, worker_kills=3, ambushes=6, zombies=1)


def cut_at_random(protocol: str, seed: int, shape: Shape, faults: Faults | None = None) -> History:
    chance = random.Random(seed)
    scheme = scheme_for(protocol, seed)
    world = World(seed, shape, faults or Faults(), scheme, pace=lambda: RandomParts(chance))
    return world.run()


def shapes(protocol: str, seed: int) -> list[Shape]:
    """A shape, one with a cycle where the protocol can go round, and a source that is its own log."""
    found = [shape_for(seed), columns(random.Random(seed))]
    return found if protocol == "aligned" else [*found, shape_for(seed, cycles=True)]


def check(protocol: str, seeds: range) -> int:
    recoveries = 0
    for seed in seeds:
        for shape in shapes(protocol, seed):
            history = cut_at_random(protocol, seed, shape)
            assert history.right, f"{protocol}, seed {seed}, {shape.name}: {history.violations}"
            recoveries += history.recoveries
    return recoveries


@pytest.mark.parametrize("protocol", EXACT)
def test_whatever_is_cut_the_output_is_exactly_right_after_any_faults(protocol: str) -> None:
    assert check(protocol, range(2)) > 0, "they do fail"


@pytest.mark.long
@pytest.mark.parametrize("case", range(1, 11))
@pytest.mark.parametrize("protocol", EXACT)
def test_whatever_is_cut_the_output_is_right_for_hundreds_of_seeds(
    protocol: str, case: int
) -> None:
    check(protocol, range(case * 20, (case + 1) * 20))


@pytest.mark.parametrize("protocol", ["aligned", "hmnr"])
@pytest.mark.parametrize("shape", EVENT_TIME_SHAPES)
def test_the_same_records_are_late_whatever_is_cut(
    protocol: str, shape: Callable[[random.Random], Shape]
) -> None:
    history = cut_at_random(protocol, 3, shape(random.Random(3)))
    assert history.right, history.violations


# Each rule taken out is noticed.


def the_rest_of_a_sources_batch_is_not_saved(patch: Patch) -> None:
    patch.setattr(ChainStages, "build", _without_rest(ChainStages.build))


def _without_rest(build: Callable[..., None]) -> Callable[..., None]:
    def forgetful(self: ChainStages, extras: dict[str, dict[str, object]], *more: object) -> None:
        for extra in extras.values():
            extra.pop("rest", None)
        build(self, extras, *more)

    return forgetful


def the_rest_of_a_frame_is_not_in_the_checkpoint(patch: Patch) -> None:
    patch.setattr(Frame, "begun", property(lambda frame: False))


def a_begun_frame_is_saved_whole(patch: Patch) -> None:
    add = ChannelState.add
    patch.setattr(ChannelState, "add", lambda self, frame: add(self, replace(frame, start=0)))


def a_begun_frame_is_taken_for_one_that_comes_again(patch: Patch) -> None:
    on_recover = Shard.on_recover

    def clearing(self: Shard, command: Recover) -> list[Instruction]:
        instructions = on_recover(self, command)
        for inbox in self._inboxes.values():
            for frame in [frame for frame in inbox if frame.begun]:
                inbox.remove(frame)
        return instructions

    patch.setattr(Shard, "on_recover", clearing)


def a_log_of_offsets_does_not_know_of_parts(patch: Patch) -> None:
    patch.setattr(SourceLog, "forwarding", lambda self, start, records: None)


def seeded(seed: int) -> Shape:
    return shape_for(seed)


def logged(seed: int) -> Shape:
    return columns(random.Random(seed))


@pytest.mark.parametrize(
    ("mutant", "protocol", "shape"),
    [
        (the_rest_of_a_sources_batch_is_not_saved, "aligned", seeded),
        (the_rest_of_a_frame_is_not_in_the_checkpoint, "uncoordinated", seeded),
        (a_begun_frame_is_saved_whole, "unaligned", seeded),
        (a_begun_frame_is_taken_for_one_that_comes_again, "uncoordinated", seeded),
        (a_log_of_offsets_does_not_know_of_parts, "uncoordinated", logged),
    ],
)
def test_each_rule_is_missed_when_it_is_taken_out(
    mutant: Callable[[Patch], None],
    protocol: str,
    shape: Callable[[int], Shape],
    monkeypatch: Patch,
) -> None:
    mutant(monkeypatch)
    assert any(not cut_at_random(protocol, seed, shape(seed), KILLS).right for seed in range(SEEDS))


# Operators that take virtual time: 400 records of 10 ms each are four seconds.


def slow_run(protocol: str, fused: bool, pace: Callable[[], Pace]) -> tuple[World, History]:
    """Asked to stop after four seconds."""
    shape, policy = slow_line(2000, 400, 0.01, fused=fused), Policy(every_s=1.0)
    world = World(1, shape, NO_FAULTS, scheme_for(protocol, 1), policy, pace)
    world.scheduler.at(4.0, world.stop)
    return world, world.run()


@pytest.mark.parametrize("fused", [False, True], ids=["apart", "fused"])
@pytest.mark.parametrize("protocol", ["aligned", "unaligned", "at-least-once", "uncoordinated"])
def test_markers_and_stops_get_through_to_a_slow_operator(protocol: str, fused: bool) -> None:
    world, history = slow_run(protocol, fused, Pace)
    assert history.outcome is Outcome.STOPPED and history.epochs >= 4
    assert max(manifest.duration_s for manifest in world.coordinator.manifests) < 0.5
    assert history.virtual_s < 4.5 and not history.notes
    world.resume()
    assert world.run().right


@pytest.mark.parametrize("fused", [False, True], ids=["apart", "fused"])
def test_without_a_bound_they_wait_for_seconds(fused: bool) -> None:
    _, history = slow_run("aligned", fused, lambda: Pace(0.0))
    assert history.virtual_s > 10.0 and history.epochs < 4
