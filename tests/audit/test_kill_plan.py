"""The kills of an audit: drawn from the seed alone, possible in the plan, of every kind."""

from everstream.audit.kill_plan import A_FEW, KillSchedule, Target, targets_of
from everstream.core.fault_points import Point
from everstream.engine.faults.kills import Kill
from tests.audit.plans import plan_of_three

COUNTS = {"numbers": (0, 600), "count": (600, 600), "out": (600, 0)}


def targets(drivers: bool = False) -> list[Target]:
    return targets_of(plan_of_three(), COUNTS, drivers)


def kills(count: int, seed: int, drivers: bool = False) -> list[Kill]:
    rounds = KillSchedule(targets(drivers), seed).rounds(count)
    return [Kill.parse(text) for drawn in rounds for text in drawn]


def test_the_same_seed_draws_the_same_kills_and_another_seed_others() -> None:
    assert kills(20, 7) == kills(20, 7)
    assert kills(20, 7) != kills(20, 8)


def test_as_many_as_asked_for_are_drawn_a_few_for_each_run_and_all_different_in_it() -> None:
    rounds = KillSchedule(targets(), 7).rounds(12)
    assert [len(drawn) for drawn in rounds] == [A_FEW, A_FEW, 2]
    assert all(len(set(drawn)) == len(drawn) for drawn in rounds)


def test_every_kill_has_a_target_and_can_happen_there() -> None:
    plan = plan_of_three()
    at_sinks = {Point.AFTER_PREPARE, Point.IN_COMMIT, Point.AFTER_COMMIT}
    for kill in kills(500, 1):
        kill.check(plan)
        assert kill.operator == "out" or kill.at not in at_sinks
        assert kill.after_records is None or kill.after_records <= 600


def test_every_shard_every_point_and_every_kind_of_kill_comes_up() -> None:
    drawn = kills(500, 1)
    assert {(kill.operator, kill.shard) for kill in drawn} == {
        *(("numbers", 0), ("count", 0), ("count", 1), ("out", 0))
    }
    assert {kill.at for kill in drawn} == {None, *Point}
    assert any(kill.after_records is not None for kill in drawn)
    assert any(kill.after_s is not None for kill in drawn)


def test_the_driver_is_killed_only_if_that_was_asked_for() -> None:
    plan = plan_of_three()
    assert not any(kill.of_driver(plan) for kill in kills(500, 1))
    of_driver = [kill for kill in kills(500, 1, drivers=True) if kill.of_driver(plan)]
    assert {kill.at for kill in of_driver} == {None, *Point} - {Point.AFTER_COMMIT}
    assert all(kill.after_records is None for kill in of_driver)


def test_a_shard_takes_its_part_of_the_records() -> None:
    assert {target.name: target.records for target in targets()} == {
        "numbers:0": 600,
        "count:0": 300,
        "count:1": 300,
        "out:0": 600,
    }
