"""The faulty world can fail: each known way to get micro-batches wrong is caught by a seed.

A mutant is the real code with one rule taken out.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.orders import Outcome
from everstream.engine.microbatch import checking, task
from everstream.engine.microbatch.checking import Complete
from everstream.engine.microbatch.epochs import Epochs
from everstream.engine.microbatch.orders import Order
from everstream.engine.microbatch.resident import Cache
from everstream.errors import EverstreamError
from everstream.runtime.chain import ChainStages
from everstream.simulation.shapes import shape_for
from tests.engine.microbatch.world import CALM, LocalWorld, Rates
from tests.sampling import first_of

Patch = pytest.MonkeyPatch
SEEDS = 60
RATES = (Rates(), replace(CALM, failed_put=0.08))
"""Everything, and in turn a store that often refuses: then shards are given up that still live."""
MOST_FAILURES = 60
MUTANTS: list[Callable[[Patch], None]] = []


def mutant(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS.append(function)
    return function


def caught(seed: int) -> bool:
    """In the output, or because the run cannot end."""
    world = LocalWorld(seed, shape_for(seed), RATES[seed % 2], max_restarts=MOST_FAILURES)
    try:
        return world.run() is not Outcome.FINISHED or bool(world.violations)
    except EverstreamError:
        return True


@mutant
def what_is_cached_is_taken_whatever_its_version(patch: Patch) -> None:
    patch.setattr(Cache, "_is_current", lambda self, resident, order: True)


@mutant
def a_shard_stays_in_the_cache_while_its_task_runs(patch: Patch) -> None:
    take = Cache.take

    def leave(self: Cache, order: Order, shard: object) -> object:
        resident = take(self, order, shard)  # type: ignore[arg-type]
        if resident is not None:
            self.keep(order, resident)
        return resident

    patch.setattr(Cache, "take", leave)


@mutant
def frames_are_taken_as_they_come(patch: Patch) -> None:
    patch.setattr(task, "in_order", list)


@mutant
def senders_and_receivers_are_not_compared(patch: Patch) -> None:
    patch.setattr(checking, "_differing", lambda layout, reports: [])


@mutant
def output_is_committed_before_the_manifest(patch: Patch) -> None:
    make = Epochs._manifest

    def commit_first(self: Epochs, order: Order, verdict: Complete) -> EpochManifest:
        self.output.commit(order.epoch, verdict.reports, self.watcher.reached)
        return make(self, order, verdict)

    patch.setattr(Epochs, "_manifest", commit_first)


@mutant
def tasks_put_sinks_right(patch: Patch) -> None:
    make = ChainStages.__init__

    def recovering(
        self: ChainStages, *arguments: object, recovers: bool = True, times: bool = True
    ) -> None:
        make(self, *arguments, times=times)  # type: ignore[arg-type]

    patch.setattr(ChainStages, "__init__", recovering)


def test_without_a_mutant_nothing_is_caught() -> None:
    assert not any(caught(seed) for seed in range(8))


@pytest.mark.parametrize("change", first_of(MUTANTS, 2), ids=lambda change: change.__name__)
def test_a_mutant_is_caught(change: Callable[[Patch], None], monkeypatch: Patch) -> None:
    change(monkeypatch)
    assert any(caught(seed) for seed in range(SEEDS)), "no seed has noticed"
