"""Unaligned checkpoints with one rule taken out: each such mutant is caught by a few seeds.

The seeds are those that were found to catch it; that the real code passes them is checked too.
"""

from collections.abc import Callable
from typing import Any

import pytest

from everstream.core.coordinators.termination import TerminationDetector
from everstream.core.frames import Frame, FrameKind
from everstream.core.instructions import Instruction, RecordArrival
from everstream.core.protocols.unaligned import Unaligned
from everstream.core.shard import Shard
from everstream.runtime.outlets import DemandOutlet, DirectOutlet, Outlet
from everstream.simulation.workers import SimulatedWorker
from everstream.state.backends import memory

from .catching import caught

Patch = pytest.MonkeyPatch
MUTANTS: list[tuple[Callable[[Patch], None], bool, tuple[int, ...]]] = []


def mutant(*seeds: int, cycles: bool = False) -> Callable[..., Callable[[Patch], None]]:
    def remember(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTANTS.append((function, cycles, seeds))
        return function

    return remember


@mutant(41, 113, 139)
def frames_that_arrive_before_their_marker_are_not_recorded(patch: Patch) -> None:
    on_frame = Shard.on_frame

    def careless(self: Shard, frame: Frame) -> list[Instruction]:
        return [i for i in on_frame(self, frame) if not isinstance(i, RecordArrival)]

    patch.setattr(Shard, "on_frame", careless)


@mutant(24, 25, 84)
def a_checkpoint_is_closed_before_every_input_has_shown_its_marker(patch: Patch) -> None:
    patch.setattr(Unaligned, "recorded", ())


@mutant(25, 34, 48)
def frames_that_wait_to_go_out_are_not_saved(patch: Patch) -> None:
    patch.setattr(DemandOutlet, "queued", lambda self: [])
    patch.setattr(DirectOutlet, "queued", lambda self: {})


@mutant(25, 34, 48)
def saved_frames_are_not_put_back(patch: Patch) -> None:
    patch.setattr(DemandOutlet, "requeue", lambda self, saved: None)
    patch.setattr(DirectOutlet, "requeue", lambda self, saved: None)


@mutant(34, 55, 87)
def the_marker_waits_behind_frames_that_are_saved_as_overtaken(patch: Patch) -> None:
    marker = Outlet.marker
    patch.setattr(Outlet, "marker", lambda self, number, overtaking=False: marker(self, number))


@mutant(0, 2, 5)
def a_message_overtakes_a_marker(patch: Patch) -> None:
    send = SimulatedWorker.send

    def slow_markers(self: SimulatedWorker, frame: Frame) -> None:
        if frame.kind is FrameKind.MARKER:
            self.world.scheduler.after(0.01, lambda: send(self, frame))
        else:
            send(self, frame)

    patch.setattr(SimulatedWorker, "send", slow_markers)


@mutant(4, 14, 16)
def frames_before_everybody_has_resumed_are_taken_at_once(patch: Patch) -> None:
    def take(self: Shard) -> list[Frame]:
        self._early = []
        return []

    patch.setattr(Shard, "take_early", take)


@mutant(45, 68, 132)
def a_snapshot_is_encoded_after_later_updates(patch: Patch) -> None:
    patch.setattr(memory, "freeze", lambda entries, name: entries)


@mutant(33, 44, 124, cycles=True)
def a_loop_is_over_after_one_round_of_questions(patch: Patch) -> None:
    on_census = TerminationDetector.on_census

    def hasty(self: TerminationDetector, answer: Any) -> None:
        if len(self.answers) == len(self.cycle) - 1:
            everybody = [*self.answers.values(), answer]
            self._received_before = sum(census.sent for census in everybody)
        on_census(self, answer)

    patch.setattr(TerminationDetector, "on_census", hasty)


@mutant(29, 32, 33, cycles=True)
def a_loop_that_was_over_stays_over_when_somebody_goes_back(patch: Patch) -> None:
    reset = TerminationDetector.reset

    def stubborn(self: TerminationDetector) -> None:
        over = self.over
        reset(self)
        self.over = over

    patch.setattr(TerminationDetector, "reset", stubborn)


@pytest.mark.parametrize("breaks, cycles, seeds", MUTANTS, ids=[m[0].__name__ for m in MUTANTS])
def test_a_few_seeds_catch(
    breaks: Callable[[Patch], None], cycles: bool, seeds: tuple[int, ...], monkeypatch: Patch
) -> None:
    assert not any(caught("unaligned", seed, cycles=cycles) for seed in seeds)
    breaks(monkeypatch)
    assert any(caught("unaligned", seed, cycles=cycles) for seed in seeds)
