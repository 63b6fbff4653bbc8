"""Checkpoints with message logs and one rule taken out: each mutant is caught by a few seeds.

The seeds are those that were found to catch it; that the real code passes them is checked too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.checkpointing.recovery_line import START, ChannelEnds, Position
from everstream.core.coordinators import checkpoint_index
from everstream.core.coordinators.independent_strategy import IndependentStrategy
from everstream.core.coordinators.termination import TerminationDetector
from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, Generation
from everstream.core.instructions import Instruction
from everstream.core.messages import Recover, Stable
from everstream.core.protocols.uncoordinated import UncoordinatedProtocol
from everstream.core.shard import Shard
from everstream.runtime import sent_frames
from everstream.runtime.engine_api import Upload
from everstream.runtime.message_log import DurableLog, MemoryLog
from everstream.runtime.outlets import DemandOutlet, DirectOutlet
from everstream.simulation.outside import OutsideWriter
from everstream.state.backends import memory

from .catching import caught

Patch = pytest.MonkeyPatch
MUTANTS: list[tuple[Callable[[Patch], None], bool, tuple[int, ...]]] = []


def mutant(*seeds: int, cycles: bool = False) -> Callable[..., Callable[[Patch], None]]:
    def remember(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTANTS.append((function, cycles, seeds))
        return function

    return remember


def _replayed_after(patch: Patch, shift: int) -> None:
    after = DurableLog.after

    def shifted(self: DurableLog, channel: ChannelId, sequence: int) -> list[Frame]:
        return after(self, channel, sequence + shift)

    patch.setattr(DurableLog, "after", shifted)


@mutant(3, 5, 6)
def replay_starts_one_frame_too_late(patch: Patch) -> None:
    _replayed_after(patch, 1)


@mutant(0, 1, 3)
def replay_starts_one_frame_too_early(patch: Patch) -> None:
    _replayed_after(patch, -1)


@mutant(2, 3, 4)
def an_edge_is_drawn_when_received_equals_sent(patch: Patch) -> None:
    def strict(links: Sequence[ChannelEnds], histories: Mapping[Any, Sequence[Position]]) -> Any:
        line = {shard: len(history) - 1 for shard, history in histories.items()}

        def at(shard: Any) -> Position:
            return START if line[shard] < 0 else histories[shard][line[shard]]

        moved = True
        while moved:
            moved = False
            for name, sender, receiver in links:
                sent = at(sender).sent.get(name, 0)
                while line[receiver] >= 0 and at(receiver).received.get(name, 0) >= sent:
                    line[receiver] -= 1
                    moved = True
        return line

    patch.setattr(checkpoint_index, "recovery_line", strict)


@mutant(4, 7, 18)
def positions_are_forgotten_on_idle_channels(patch: Patch) -> None:
    record = Shard._record

    def forgetful(self: Shard, *arguments: Any, **options: Any) -> CheckpointRecord:
        made = record(self, *arguments, **options)
        before = self.__dict__.get("_before", ({}, {}))
        self.__dict__["_before"] = (made.received, made.sent)
        return replace(
            made,
            received={c: n for c, n in made.received.items() if before[0].get(c) != n},
            sent={c: n for c, n in made.sent.items() if before[1].get(c) != n},
        )

    patch.setattr(Shard, "_record", forgetful)


@mutant(1, 3, 19)
def the_protocols_variables_are_not_restored(patch: Patch) -> None:
    restore = UncoordinatedProtocol.restore
    patch.setattr(
        UncoordinatedProtocol, "restore", lambda self, variables, ended: restore(self, {}, ended)
    )


@mutant(29, 33, 34)
def the_log_is_not_cut_at_a_rollback(patch: Patch) -> None:
    """So the second failure replays ghosts: frames that were never sent, as it turned out."""
    restore = DurableLog.restore

    def keeping(self: DurableLog, generation: Generation, segments: Any, sent: Any) -> None:
        ghosts = self.seal()
        restore(self, generation, segments, sent)
        if ghosts:
            self._sealed = ghosts

    patch.setattr(DurableLog, "restore", keeping)


@mutant(0, 1, 5)
def a_checkpoint_counts_before_its_log_is_in_the_store(patch: Patch) -> None:
    patch.setattr(
        Upload, "perform", lambda self, put, reached: put(self.name, self.prepare(reached))
    )


@mutant(1, 3, 14)
def a_failed_shards_log_dies_with_it(patch: Patch) -> None:
    patch.setattr(sent_frames, "log_of", lambda kind, shard, channels, load: MemoryLog(channels))


@mutant(3, 25, 33)
def frames_that_wait_to_go_out_are_not_saved(patch: Patch) -> None:
    patch.setattr(DemandOutlet, "queued", lambda self: [])
    patch.setattr(DirectOutlet, "queued", lambda self: {})


@mutant(25, 40, 52)
def a_snapshot_is_encoded_after_later_updates(patch: Patch) -> None:
    patch.setattr(memory, "freeze", lambda entries, name: entries)


def _newest(self: IndependentStrategy) -> dict[Any, CheckpointRecord]:
    return {shard: history[-1] for shard, history in self._lines.histories.items() if history}


@mutant(0, 9, 12)
def sinks_commit_beyond_the_stable_line(patch: Patch) -> None:
    def eager(self: IndependentStrategy) -> None:
        numbers = {**self._stable_numbers, **{s: r.number for s, r in _newest(self).items()}}
        self._run.tell_all(Stable(self._run.stable_epoch, numbers))

    patch.setattr(IndependentStrategy, "_tell_stable", eager)


@mutant(20, 45, 93)
def logs_are_pruned_up_to_the_newest_checkpoints(patch: Patch) -> None:
    def eager(self: IndependentStrategy) -> None:
        received = {c: n for r in _newest(self).values() for c, n in r.received.items()}
        self._run.tell_all(Stable(self._run.stable_epoch, self._stable_numbers, received))

    patch.setattr(IndependentStrategy, "_tell_stable", eager)


@mutant(81, 108, 134)
def halted_shards_do_not_wait(patch: Patch) -> None:
    on_halt = Shard.on_halt

    def restless(self: Shard, generation: Generation) -> list[Instruction]:
        told = on_halt(self, generation)
        self._halted = False
        return told

    patch.setattr(Shard, "on_halt", restless)


@mutant(6, 31, 93)
def checkpoints_that_were_given_up_are_kept(patch: Patch) -> None:
    decide = IndependentStrategy._decide_when_known

    def hoarding(self: IndependentStrategy, now_s: float) -> None:
        before = {shard: list(history) for shard, history in self._lines.histories.items()}
        decide(self, now_s)
        self._lines.histories = before

    patch.setattr(IndependentStrategy, "_decide_when_known", hoarding)


@mutant(14, 20, 33)
def frames_of_one_who_went_back_stay_in_the_inbox(patch: Patch) -> None:
    on_recover = Shard.on_recover

    def keeping(self: Shard, command: Recover) -> list[Instruction]:
        waiting = {channel: list(inbox) for channel, inbox in self._inboxes.items()}
        told = on_recover(self, command)
        if self.id not in command.records:
            for channel, frames in waiting.items():
                if len(self._inboxes[channel]) < len(frames):
                    self._inboxes[channel].extend(frames)
        return told

    patch.setattr(Shard, "on_recover", keeping)


@mutant(0, 3, 18)
def sinks_forget_what_waits_for_a_later_permit(patch: Patch) -> None:
    recover = OutsideWriter.recover

    def forgetful(self: OutsideWriter, transactions: Any, permit: Any) -> list[Any]:
        recover(self, [t for t in transactions if t.checkpoint <= permit.checkpoint], permit)
        return []

    patch.setattr(OutsideWriter, "recover", forgetful)


@mutant(7, 35, 40, cycles=True)
def a_loop_is_over_after_one_round_of_questions(patch: Patch) -> None:
    on_census = TerminationDetector.on_census

    def hasty(self: TerminationDetector, answer: Any) -> None:
        if len(self.answers) == len(self.cycle) - 1:
            everybody = [*self.answers.values(), answer]
            self._received_before = sum(census.sent for census in everybody)
        on_census(self, answer)

    patch.setattr(TerminationDetector, "on_census", hasty)


@pytest.mark.parametrize("breaks, cycles, seeds", MUTANTS, ids=[m[0].__name__ for m in MUTANTS])
def test_a_few_seeds_catch(
    breaks: Callable[[Patch], None], cycles: bool, seeds: tuple[int, ...], monkeypatch: Patch
) -> None:
    assert not any(caught("uncoordinated", seed, cycles=cycles) for seed in seeds)
    breaks(monkeypatch)
    assert any(caught("uncoordinated", seed, cycles=cycles) for seed in seeds)
