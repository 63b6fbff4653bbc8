"""When a cycle counts as run dry, and that one cycle's end says nothing about another's."""

import random

import pytest

from everstream.core.coordinators.termination import TerminationDetector
from everstream.core.ids import Generation, ShardId
from everstream.core.messages import Census, EndLoop, Probe
from everstream.core.plan import make_plan
from everstream.core.scheme import scheme_of
from everstream.pipeline.checkpointing import CommunicationInduced, Coordinated
from everstream.simulation.faults import NO_FAULTS, Faults
from everstream.simulation.shapes import two_loops
from everstream.simulation.world import World
from tests.runtime.workbench import WORLD, Bench

A, B = ShardId("a", 0), ShardId("b", 0)
G = Generation(1)


def answered(watch: TerminationDetector, *facts: tuple[ShardId, bool, int, int]) -> bool:
    number = watch.next_round()
    for shard, passive, sent, received in facts:
        watch.on_census(Census(shard, G, 0, number, passive, sent, received))
    return watch.over


def test_two_quiet_rounds_that_agree_end_a_loop() -> None:
    watch = TerminationDetector((A, B))
    assert not answered(watch, (A, True, 3, 2), (B, True, 2, 3))
    assert not watch.waits
    assert answered(watch, (A, True, 3, 2), (B, True, 2, 3))


def test_a_frame_on_its_way_keeps_a_loop_going() -> None:
    watch = TerminationDetector((A, B))
    assert not answered(watch, (A, True, 3, 2), (B, True, 2, 2))
    assert not answered(watch, (A, True, 3, 2), (B, True, 2, 2))
    assert not answered(watch, (A, True, 3, 2), (B, False, 2, 3))
    assert not answered(watch, (A, True, 3, 2), (B, True, 2, 3)), "only once quiet"
    assert answered(watch, (A, True, 3, 2), (B, True, 2, 3))


def test_answers_to_other_questions_and_from_other_cycles_do_not_count() -> None:
    watch = TerminationDetector((A,))
    number = watch.next_round()
    watch.on_census(Census(B, G, 0, number, True, 0, 0))
    watch.on_census(Census(A, G, 0, number - 1, True, 0, 0))
    assert watch.waits
    watch.on_census(Census(A, G, 0, number, True, 0, 0))
    assert not watch.waits


def test_whoever_goes_back_makes_the_question_open_again() -> None:
    watch = TerminationDetector((A,))
    answered(watch, (A, True, 0, 0))
    assert answered(watch, (A, True, 0, 0))
    watch.reset()
    assert not watch.over and not watch.waits
    assert not answered(watch, (A, True, 0, 0)), "two rounds are needed again"


def test_a_shard_answers_and_ends_for_its_own_cycle_only() -> None:
    plan = make_plan(two_loops(random.Random(1)).pipeline(WORLD), 1)
    first, second = (cycle[0] for cycle in plan.cycles)
    bench = Bench(plan, second).restore()
    own = plan.cycles.index(plan.cycle_of(second))
    other = plan.cycles.index(plan.cycle_of(first))
    bench.runner.on_command(Probe(other, 1))
    bench.runner.on_command(EndLoop(other, G))
    assert not bench.engine.reported(Census) and not bench.runner.shard._loops_ended
    bench.runner.on_command(Probe(own, 1))
    bench.runner.on_command(EndLoop(own, G))
    assert len(bench.engine.reported(Census)) == 1 and bench.runner.shard._loops_ended


@pytest.mark.parametrize(
    "checkpoint", [Coordinated(mode="unaligned"), CommunicationInduced(every=0.03)]
)
def test_cycles_behind_each_other_end_in_their_order(
    checkpoint: Coordinated | CommunicationInduced,
) -> None:
    for seed in range(10):
        faults = Faults() if seed % 2 else NO_FAULTS
        shape = two_loops(random.Random(seed))
        history = World(seed, shape, faults, scheme=scheme_of(checkpoint)).run()
        assert history.right, f"seed {seed}: {history.violations}"
