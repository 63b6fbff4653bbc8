"""Operators that join, ask and rank, in simulated runs with faults: the right output, every time."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from everstream.core.registry import PROTOCOLS
from everstream.core.scheme import ALIGNED, Scheme
from everstream.events import PlanChanged
from everstream.simulation.faults import NO_FAULTS, Faults
from everstream.simulation.language_shapes import LANGUAGE_SHAPES, versioned
from everstream.simulation.shapes import Shape
from everstream.simulation.storm import policy_for, scheme_for
from everstream.simulation.world import World

Make = Callable[[random.Random], Shape]
CHECKPOINTING = [name for name, protocol in PROTOCOLS.items() if protocol.choice is not None]
CALM_RESCALES = replace(NO_FAULTS, rescales=3)
RESCALES = Faults(rescales=6, worker_kills=2, ambushes=1)

each_shape = pytest.mark.parametrize("make", LANGUAGE_SHAPES)


def check(make: Make, seeds: range, scheme: Scheme = ALIGNED) -> int:
    """Run them all; how many failures the runs recovered from."""
    recoveries = 0
    for seed in seeds:
        history = World(seed, make(random.Random(seed)), Faults(), scheme).run()
        assert history.right, f"seed {seed}: {history.violations} {history.notes[:3]}"
        recoveries += history.recoveries
    return recoveries


def rescaled(make: Make, seed: int, protocol: str, faults: Faults) -> int:
    """How often shards were changed in this run, which must be right."""
    shape = make(random.Random(seed))
    history = World(seed, shape, faults, scheme_for(protocol, seed), policy_for(protocol)).run()
    assert history.right, f"seed {seed} under {protocol}: {history.violations} {history.notes[:3]}"
    changes = [event for event in history.events if isinstance(event, PlanChanged)]
    return sum(not change.explained for change in changes)


@each_shape
def test_the_output_is_right_after_any_faults(make: Make) -> None:
    assert check(make, range(5)) > 0


@each_shape
@pytest.mark.parametrize("protocol", CHECKPOINTING)
def test_so_it_is_under_each_protocol(make: Make, protocol: str) -> None:
    check(make, range(100, 101), scheme_for(protocol, 0))


@each_shape
def test_state_goes_to_other_shards(make: Make) -> None:
    protocols = ("aligned", "hmnr", "unaligned")
    changes = [rescaled(make, s, p, CALM_RESCALES) for s, p in enumerate(protocols * 2)]
    assert sum(changes) > 0


def test_a_shard_that_had_ended_and_gets_input_again_does_not_end_event_time() -> None:
    assert rescaled(versioned, 6, "aligned", CALM_RESCALES) > 0


@pytest.mark.long
@pytest.mark.timeout(7200)
@each_shape
@pytest.mark.parametrize("case", range(10))
def test_the_output_is_right_for_a_thousand_seeds(make: Make, case: int) -> None:
    assert check(make, range(case * 100 + 5, case * 100 + 105)) > 50


@pytest.mark.long
@pytest.mark.timeout(7200)
@each_shape
@pytest.mark.parametrize("protocol", CHECKPOINTING)
def test_state_goes_to_other_shards_while_everything_goes_wrong(make: Make, protocol: str) -> None:
    assert sum(rescaled(make, seed, protocol, RESCALES) for seed in range(100)) > 10
