"""The simulator can fail: each known way to get checkpoints wrong is caught by one of its first seeds.

A mutant is the real code with one rule taken out. If one survives here, the shapes, the faults or
the timing of the simulation have a blind spot.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.coordinators.coordinated_strategy import CoordinatedStrategy, EpochLedger
from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import Epoch, Generation, ShardId
from everstream.core.instructions import Capture, Instruction
from everstream.core.permits import permit
from everstream.core.protocols.aligned import Aligned
from everstream.core.protocols.base import Ask, FrameAction
from everstream.core.shard import Shard
from everstream.errors import StoreError
from everstream.runtime.engine_api import Upload
from everstream.runtime.outlets import DemandOutlet, DirectOutlet
from everstream.runtime.runner import ShardRunner
from everstream.runtime.waiting import Item
from everstream.simulation import disk
from everstream.simulation.faults import NO_FAULTS, Faults
from everstream.simulation.outside import OutsideWriter
from everstream.simulation.shapes import shape_for
from everstream.simulation.workers import SimulatedWorker
from everstream.simulation.world import World
from everstream.state.backends import memory
from everstream.state.objects import ObjectRef
from tests.sampling import first_of

Patch = pytest.MonkeyPatch
SEEDS = 1000
"""Each mutant must be caught by one of this many seeds."""

FAULTS = (Faults(), replace(NO_FAULTS, worker_kills=3, ambushes=6, zombies=1))
"""Everything, and in turn kills alone: a run that is busy with its store rarely meets rare moments."""

MUTANTS: list[Callable[[Patch], None]] = []


def mutant(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS.append(function)
    return function


@mutant
def alignment_does_not_hold_channels(patch: Patch) -> None:
    def admit(self: Aligned, frame: Frame) -> FrameAction:
        return FrameAction.CONSUME if frame.kind is FrameKind.MARKER else FrameAction.DELIVER

    patch.setattr(Aligned, "admit", admit)


@mutant
def a_marker_overtakes_queued_frames(patch: Patch) -> None:
    queue_on_demand, queue_direct = DemandOutlet._to_all, DirectOutlet._to_all

    def on_demand(self: DemandOutlet, item: Item) -> None:
        if item[0] is FrameKind.MARKER:
            self._waiting.appendleft(item)
        else:
            queue_on_demand(self, item)

    def direct(self: DirectOutlet, item: Item) -> None:
        if item[0] is FrameKind.MARKER:
            for waiting in self._waiting.values():
                waiting.appendleft(item)
        else:
            queue_direct(self, item)

    patch.setattr(DemandOutlet, "_to_all", on_demand)
    patch.setattr(DirectOutlet, "_to_all", direct)


@mutant
def state_is_encoded_after_later_updates(patch: Patch) -> None:
    patch.setattr(memory, "freeze", lambda entries, name: entries)


@mutant
def an_epoch_is_complete_before_its_uploads_are_durable(patch: Patch) -> None:
    def upload(self: SimulatedWorker, upload: Upload) -> None:
        data = upload.prepare(self.reached)
        ref = ObjectRef.of(upload.name, data)
        self._later(0.01, lambda: self.world.store.put(upload.name, data) and None)
        runner = self.runners[upload.shard]
        self.world.scheduler.after(0.0, lambda: runner.on_uploaded(upload, ref, 0.0))

    patch.setattr(SimulatedWorker, "upload", upload)


@mutant
def frames_of_an_older_generation_are_taken(patch: Patch) -> None:
    patch.setattr(Shard, "accepts", lambda self, frame: True)


@mutant
def reports_of_an_older_generation_are_taken(patch: Patch) -> None:
    patch.setattr(CoordinatedStrategy, "is_current", lambda self, report: True)


@mutant
def grants_of_an_older_generation_are_taken(patch: Patch) -> None:
    on_grant = ShardRunner.on_grant

    def trusting(self: ShardRunner, channel: Any, _: Generation, frames: int, most: int) -> None:
        if self.shard.generation >= 0:
            on_grant(self, channel, self.shard.generation_of(channel), frames, most)

    patch.setattr(ShardRunner, "on_grant", trusting)


@mutant
def a_rollback_does_not_wait_for_the_manifest_under_way(patch: Patch) -> None:
    roll_back = CoordinatedStrategy._roll_back

    def hasty(self: CoordinatedStrategy) -> None:
        writing, self._run.writing = self._run.writing, None
        roll_back(self)
        self._run.writing = writing

    patch.setattr(CoordinatedStrategy, "_roll_back", hasty)


@mutant
def sinks_commit_when_they_prepare(patch: Patch) -> None:
    prepare = OutsideWriter.prepare

    def eager(self: OutsideWriter, checkpoint: int) -> Any:
        transaction = prepare(self, checkpoint)
        if transaction is not None:
            transaction.persist()
            transaction.commit(permit(checkpoint))
        return transaction

    patch.setattr(OutsideWriter, "prepare", eager)


@mutant
def the_record_is_made_after_the_delivery_that_follows(patch: Patch) -> None:
    step = Shard.step

    def late(self: Shard, most: int) -> list[Instruction]:
        return [
            Capture(self._record(i.record.number, i.record.final)) if isinstance(i, Capture) else i
            for i in step(self, most)
        ]

    patch.setattr(Shard, "step", late)


@mutant
def a_last_checkpoint_stands_for_an_epoch_its_shard_took_part_in(patch: Patch) -> None:
    def complete(self: EpochLedger) -> dict[ShardId, CheckpointRecord] | None:
        if self.in_flight is None:
            return None
        chosen = {**self.finals, **self.records}
        return chosen if len(chosen) == len(self.shards) else None

    patch.setattr(EpochLedger, "complete", complete)


@mutant
def an_ended_input_is_waited_for(patch: Patch) -> None:
    def on_input_ended(self: Aligned, channel: Any) -> list[Ask]:
        return []

    patch.setattr(Aligned, "on_input_ended", on_input_ended)


@mutant
def an_aborted_epochs_number_is_used_again(patch: Patch) -> None:
    abort = EpochLedger.abort

    def forgetful(self: EpochLedger) -> None:
        if self.in_flight is not None:
            self.started = Epoch(self.in_flight - 1)
        abort(self)

    patch.setattr(EpochLedger, "abort", forgetful)


@mutant
def a_corrupt_checkpoint_is_tried_again_and_again(patch: Patch) -> None:
    def stubborn(self: CoordinatedStrategy, shard: ShardId, reason: str) -> None:
        self._roll_back()

    patch.setattr(CoordinatedStrategy, "_fall_back", stubborn)


@mutant
def only_some_errors_of_the_store_are_expected(patch: Patch) -> None:
    @contextmanager
    def narrow(what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(what) from error

    patch.setattr(disk, "store_errors", narrow)


def caught(seed: int) -> bool:
    """Whether this seed shows that something is wrong, in the output or by an exception."""
    try:
        return not World(seed, shape_for(seed), FAULTS[seed % len(FAULTS)]).run().right
    except Exception:
        return True


@pytest.mark.parametrize("breaks", first_of(MUTANTS, 3), ids=lambda function: function.__name__)
def test_one_of_the_first_seeds_catches(
    breaks: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    assert any(caught(seed) for seed in range(SEEDS)), f"{SEEDS} seeds do not notice"
