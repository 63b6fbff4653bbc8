"""A storm notices if a rule is missing: what is damaged, unsynced, hung, odd or set back.

Each mutant is the real code, or the simulated disk or sink, without one rule; one of the first
storms must go wrong. Those that few storms would meet have a storm of their own.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from everstream.core.checkpointing import manifest
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.coordinators import coordinated_strategy
from everstream.core.coordinators.coordinated_strategy import CoordinatedStrategy
from everstream.core.coordinators.restarts import BackOff
from everstream.core.ids import NO_EPOCH
from everstream.core.orders import Outcome, Policy
from everstream.errors import CorruptObject, StoreError
from everstream.pipeline.times import ForwardClock
from everstream.runtime import explaining, runner
from everstream.simulation import checks, disk
from everstream.simulation.disk import SimulatedDisk
from everstream.simulation.faults import NO_FAULTS, STORM, Faults
from everstream.simulation.happenings import History
from everstream.simulation.outside import Outside, OutsideTransaction
from everstream.simulation.shapes import alarms
from everstream.simulation.storm import histories
from everstream.simulation.world import World
from everstream.state import blobs
from everstream.state.objects import ObjectRef
from everstream.state.store import CheckpointStore, _object_path
from tests.sampling import first_of

from .counting import calm

Patch = pytest.MonkeyPatch
SEEDS = 400
"""Each mutant must be caught by one of this many storms."""

ROTTEN = replace(NO_FAULTS, rotten_objects=12, both_copies=0.1, worker_kills=4, until_s=1.5)
DAMAGED = replace(ROTTEN, both_copies=1.0)
ROTTEN_OUTPUT = replace(NO_FAULTS, rotten_outputs=6, worker_kills=6)
POWER = replace(NO_FAULTS, power_cuts=4)
CLOCKS = replace(NO_FAULTS, clock_jumps=4, worker_kills=2)
ERRORS = replace(NO_FAULTS, odd_errors=6, operator_errors=4, sink_errors=4)

MUTANTS: list[tuple[Callable[[Patch], None], Faults]] = []
Mutant = Callable[[Patch], None]


def mutant(faults: Faults = STORM) -> Callable[[Mutant], Mutant]:
    def note(function: Mutant) -> Mutant:
        MUTANTS.append((function, faults))
        return function

    return note


@mutant(DAMAGED)
def a_run_starts_over_when_all_its_checkpoints_are_damaged(patch: Patch) -> None:
    older = manifest._older_than_newest

    def or_the_start(manifests: Sequence[EpochManifest]) -> EpochManifest:
        return older(manifests) or replace(manifests[0], epoch=NO_EPOCH, records={}, final=False)

    patch.setattr(manifest, "_older_than_newest", or_the_start)


@mutant(ROTTEN)
def a_damaged_object_is_not_read_from_its_copy(patch: Patch) -> None:
    def get(self: CheckpointStore, ref: ObjectRef) -> bytes:
        data, problem = self._examine(ref, _object_path(ref))
        if problem is not None:
            raise CorruptObject(problem)
        return data

    patch.setattr(CheckpointStore, "get", get)


@mutant(POWER)
def folders_of_the_store_are_not_synced(patch: Patch) -> None:
    patch.setattr(SimulatedDisk, "sync", lambda self, folder: None)


@mutant(POWER)
def folders_of_sinks_are_not_synced(patch: Patch) -> None:
    patch.setattr(Outside, "sync", lambda self, place, operator: None)


@mutant(ROTTEN_OUTPUT)
def prepared_output_is_shown_without_a_look_at_its_checksum(patch: Patch) -> None:
    patch.setattr(OutsideTransaction, "require_whole", lambda self, records: None)


@mutant(CLOCKS)
def processing_time_goes_back_with_the_clock(patch: Patch) -> None:
    patch.setattr(ForwardClock, "__call__", lambda self: self._clock())


@mutant(ERRORS)
def only_errors_that_can_be_shown_are_expected_of_a_store(patch: Patch) -> None:
    patch.setattr(blobs, "said", str)


@mutant(ERRORS)
def only_exceptions_are_expected_of_a_store(patch: Patch) -> None:
    @contextmanager
    def narrow(what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise StoreError(what) from error

    patch.setattr(disk, "store_errors", narrow)


@mutant(ERRORS)
def only_exceptions_are_expected_of_operators(patch: Patch) -> None:
    def guarded(self: runner.ShardRunner, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:
            self._perform(self.shard.on_failure(self.chain.explain(error)))

    patch.setattr(runner.ShardRunner, "_guarded", guarded)


@mutant(ERRORS)
def every_error_of_ours_is_sent_as_it_is(patch: Patch) -> None:
    patch.setattr(explaining, "_travels", lambda error: True)


def runs(faults: Faults, seeds: int) -> Iterator[History]:
    """Where only clocks are set, of pipelines that look at one."""
    if faults is not CLOCKS:
        yield from histories("aligned", range(seeds), faults)
        return
    for seed in range(seeds):
        yield World(seed, alarms(random.Random(seed)), faults).run()


def caught(faults: Faults) -> bool:
    """Whether one of the first seeds shows that something is wrong."""
    try:
        return any(not history.right for history in runs(faults, SEEDS))
    except BaseException as error:
        if isinstance(error, pytest.fail.Exception):
            raise
        return True


@pytest.mark.parametrize(
    "breaks, faults", first_of(MUTANTS, 3), ids=[function.__name__ for function, _ in MUTANTS]
)
def test_one_of_the_first_storms_catches(
    breaks: Mutant, faults: Faults, monkeypatch: Patch
) -> None:
    breaks(monkeypatch)
    monkeypatch.setattr(checks, "LONGEST_CALM_STEPS", 10_000)
    assert caught(faults), f"{SEEDS} storms do not notice"


STORMS = {id(faults): faults for _, faults in MUTANTS}


@pytest.mark.parametrize("faults", STORMS.values(), ids=range(len(STORMS)))
def test_without_a_mutant_none_of_them_goes_wrong(faults: Faults) -> None:
    assert all(history.right for history in runs(faults, 8))


# A checkpoint that never ends.


def epochs_after_a_hung_upload() -> int:
    """How many epochs become stable although one of the first never will."""
    world = calm(3, policy=Policy(every_s=0.03, checkpoint_timeout_s=0.5))
    world.when("epoch 2 is stable", world.hang_upload)
    history = world.run()
    assert history.right
    return history.epochs


def test_an_epoch_that_never_completes_does_not_keep_later_ones_from_it(monkeypatch: Patch) -> None:
    monkeypatch.setattr(coordinated_strategy, "RETRY_S", 0.05)
    assert epochs_after_a_hung_upload() > 6
    monkeypatch.setattr(CoordinatedStrategy, "_give_up_if_late", lambda self, now_s: None)
    assert epochs_after_a_hung_upload() <= 3, "what was stable before, and the last one"


# A sink that is away for some seconds.


def outcome_of_an_outage(away_s: float) -> Outcome | None:
    world = calm(3, policy=Policy(every_s=0.03, max_restarts=3))
    outside, whole = world.outside, world.outside.may_fail

    def away() -> None:
        if 0.2 < world.scheduler.now_s < 0.2 + away_s:
            raise ConnectionError("the database is away")
        whole()

    outside.may_fail = away  # type: ignore[method-assign]
    history = world.run()
    assert not history.violations
    return history.outcome


def test_a_run_outlasts_a_sink_that_is_away_for_three_seconds(monkeypatch: Patch) -> None:
    assert outcome_of_an_outage(3.0) is Outcome.FINISHED
    monkeypatch.setattr(BackOff, "pause_s", lambda self, now_s: 0.0)
    assert outcome_of_an_outage(3.0) is Outcome.FAILED
