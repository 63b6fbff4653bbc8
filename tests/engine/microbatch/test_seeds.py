"""Runs without Spark and with faults: every seed ends, with exactly the right output."""

import random
from collections.abc import Callable

import pytest

from everstream.core.orders import Outcome
from everstream.events import EpochRepeated
from everstream.simulation.language_shapes import LANGUAGE_SHAPES
from everstream.simulation.shapes import (
    EVENT_TIME_SHAPES,
    SHAPES,
    Shape,
    alarms,
    columns,
    shape_for,
)
from tests.engine.microbatch.world import CALM, LocalWorld

SEEDS = 25
MORE_SEEDS = 2000
SEEDS_AT_ONCE = 100


def check(world: LocalWorld, seed: int) -> None:
    check_ended(world, world.run(), seed)


def check_ended(world: LocalWorld, outcome: Outcome, seed: int) -> None:
    problems = world.violations[:2] or world.notes[-3:]
    assert outcome is Outcome.FINISHED and not world.violations, f"seed {seed}: {problems}"


@pytest.fixture(scope="module")
def ended() -> list[tuple[LocalWorld, Outcome]]:
    """The first seeds, and how each of them ended."""
    worlds = [LocalWorld(seed, shape_for(seed)) for seed in range(SEEDS)]
    return [(world, world.run()) for world in worlds]


def test_every_seed_ends_with_exactly_the_right_output(
    ended: list[tuple[LocalWorld, Outcome]],
) -> None:
    for seed, (world, outcome) in enumerate(ended):
        check_ended(world, outcome, seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, MORE_SEEDS, SEEDS_AT_ONCE))
def test_two_thousand_seeds_end_with_exactly_the_right_output(first: int) -> None:
    for seed in range(first, first + SEEDS_AT_ONCE):
        check(LocalWorld(seed, shape_for(seed)), seed)


@pytest.mark.parametrize("make", [*EVENT_TIME_SHAPES, *LANGUAGE_SHAPES, columns])
def test_columns_windows_late_records_and_joins_survive_faults(
    make: Callable[[random.Random], Shape],
) -> None:
    for seed in range(3):
        check(LocalWorld(seed, make(random.Random(seed))), seed)


@pytest.mark.long
@pytest.mark.parametrize("make", [*EVENT_TIME_SHAPES, *LANGUAGE_SHAPES, columns])
def test_columns_windows_late_records_and_joins_survive_faults_with_many_seeds(
    make: Callable[[random.Random], Shape],
) -> None:
    for seed in range(100):
        check(LocalWorld(seed, make(random.Random(seed))), seed)


def test_timers_of_the_clock_fire_in_epochs() -> None:
    for seed in range(3):
        check(LocalWorld(seed, alarms(random.Random(seed))), seed)


def test_without_faults_nothing_is_run_again() -> None:
    seen = set()
    for seed in range(20):
        world = LocalWorld(seed, shape_for(seed), CALM)
        check(world, seed)
        assert (world.drivers, world.notes) == (1, [])
        seen.add(world.layout.plan.graph.name)
    assert len(seen) == len(SHAPES), "every shape has its turn"


def test_the_seeds_meet_every_kind_of_trouble(ended: list[tuple[LocalWorld, Outcome]]) -> None:
    repeated: list[EpochRepeated] = []
    drivers = 0
    for world, _ in ended:
        repeated += [event for event in world.events if isinstance(event, EpochRepeated)]
        drivers += world.drivers - 1
    assert drivers > 5
    for trouble in ("do not agree on", "an executor is gone", "trouble"):
        assert any(trouble in event.reason for event in repeated), trouble
