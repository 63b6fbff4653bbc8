"""When a run takes which plan: rescale, pack, spread again, and return to the former plan."""

from collections.abc import Mapping
from typing import Any, TypeVar

import pytest

from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.ids import TaskNumber, first_generation
from everstream.core.messages import Restored
from everstream.core.orders import Phase, Policy
from everstream.core.plan import Plan, shard_counts, spread
from everstream.core.plan_change import (
    PLAN_MOVES,
    Decision,
    Facts,
    FailRun,
    GiveUp,
    PlanChange,
    PlanState,
    ReturnToFormer,
    StartQuiesce,
    TakePlan,
)
from everstream.core.scheme import ALIGNED
from everstream.errors import InternalError, ShareRefused
from tests.core.redistributing import manifest, plan

T = TypeVar("T")
PACK_AFTER_S = 30.0
REFUSED = ShareRefused("count", 2, 3, "my counts stay together")


class Changing:
    """A coordinator whose shards answer at once, and the plan change that decides for it."""

    def __init__(
        self, first: Plan | None = None, *, unwritten: bool = False, **options: Any
    ) -> None:
        self.policy = Policy(checkpoint_timeout_s=60.0)
        first = first or plan()
        self.coordinator: Coordinator = ALIGNED.coordinator(
            first, self.policy, first_generation(1), [manifest(first)], unwritten=unwritten
        )
        self.it = PlanChange(
            ALIGNED, self.policy, self.coordinator, pack_after_s=PACK_AFTER_S, **options
        )
        self.present: set[TaskNumber] = set()

    def join(self, *numbers: int) -> "Changing":
        for number in map(TaskNumber, numbers):
            self.present.add(number)
            self.coordinator.on_process_joined(number, number, 0.0)
        return self

    def restored(self) -> "Changing":
        generation = self.coordinator.generation
        for shard in self.coordinator.plan.shards:
            self.coordinator.on_report(Restored(shard, generation), 0.0)
        return self

    def running(self) -> "Changing":
        self.join(*range(len(self.coordinator.plan.workers))).restored()
        if self.coordinator.unwritten is not None:
            self.coordinator.on_manifest_written(0.0)
        assert self.coordinator.phase is Phase.RUNNING
        return self

    def lose(self, number: int, now_s: float) -> None:
        self.present.discard(TaskNumber(number))
        self.coordinator.on_process_lost(TaskNumber(number), "killed", now_s)

    def look(self, now_s: float, wanted: Mapping[str, int] | None = None) -> list[Decision]:
        facts = Facts(len(self.present), wanted or {})
        return self.performed(self.it.look(self.coordinator, facts, now_s), now_s)

    def performed(self, decisions: list[Decision], now_s: float = 0.0) -> list[Decision]:
        for decision in decisions:
            if isinstance(decision, StartQuiesce):
                self.coordinator.on_quiesce(decision.reason, now_s)
            elif isinstance(decision, TakePlan | ReturnToFormer):
                self.coordinator = decision.successor
        return decisions

    def quiesced(self) -> list[Decision]:
        return self.performed(self.it.on_quiesced(self.coordinator))

    def refused(self) -> list[Decision]:
        return self.performed(self.it.on_refused(self.coordinator, REFUSED))

    def rescale(self, shards: int) -> "Changing":
        assert only(self.look(0.0, {"count": shards}), StartQuiesce)
        assert only(self.quiesced(), TakePlan)
        return self

    @property
    def shards(self) -> int:
        return shard_counts(self.coordinator.plan)["count"]

    @property
    def workers(self) -> int:
        return len(self.coordinator.plan.workers)


def only(decisions: list[Decision], kind: type[T]) -> list[T]:
    return [decision for decision in decisions if isinstance(decision, kind)]


def test_nothing_changes_while_the_plan_has_what_is_wanted() -> None:
    run = Changing().running()
    assert run.look(0.0) == [] and run.look(100.0, {"count": 2}) == []
    assert run.it.state is PlanState.STEADY


def test_a_rescale_quiesces_takes_the_plan_and_is_over_when_its_shares_are_stored() -> None:
    run = Changing().running()
    assert [d.reason for d in only(run.look(0.0, {"count": 3}), StartQuiesce)] == [
        "a change of shards (count 2 to 3)"
    ]
    assert run.it.state is PlanState.QUIESCING and run.coordinator.is_quiescing
    assert only(run.quiesced(), TakePlan)
    assert (run.it.state, run.shards) == (PlanState.STARTING, 3)
    assert run.coordinator.unwritten is not None
    run.running()
    assert run.look(1.0, {"count": 3}) == []
    assert run.it.state is PlanState.STEADY


def test_a_plan_given_at_the_start_is_taken_before_what_is_wanted() -> None:
    run = Changing(plan(2), target=plan(4)).running()
    assert only(run.look(0.0, {"count": 3}), StartQuiesce)
    run.quiesced()
    assert run.shards == 4


def test_a_change_that_was_given_up_waits_until_something_else_is_wanted() -> None:
    run = Changing().running()
    run.look(0.0, {"count": 3})
    run.coordinator.on_tick(61.0)
    assert not run.coordinator.is_quiescing
    assert only(run.look(61.0, {"count": 3}), GiveUp)
    assert run.it.state is PlanState.STEADY
    assert run.look(62.0, {"count": 3}) == []
    assert only(run.look(63.0, {"count": 4}), StartQuiesce)


def test_a_stop_ends_the_wait_for_a_change() -> None:
    run = Changing().running()
    run.look(0.0, {"count": 3})
    run.coordinator.on_stop("asked to", 1.0)
    assert only(run.look(1.0, {"count": 3}), GiveUp)
    assert run.look(2.0, {"count": 4}) == []


def test_a_share_that_is_refused_brings_the_former_plan_back() -> None:
    run = Changing().running().rescale(3)
    [returned] = only(run.refused(), ReturnToFormer)
    assert returned.error is REFUSED
    assert (run.shards, run.it.state) == (2, PlanState.STEADY)
    assert run.coordinator.unwritten is None
    assert run.look(1.0, {"count": 3}) == []
    assert only(run.look(2.0, {"count": 4}), StartQuiesce)


def test_a_state_that_cannot_be_redistributed_brings_the_former_plan_back() -> None:
    run = Changing(plan(silent=True)).running()
    assert only(run.look(0.0, {"count": 3}), StartQuiesce)
    [returned] = only(run.quiesced(), ReturnToFormer)
    assert "'count' cannot go from 2 shard(s) to 3" in returned.error.message
    assert (run.shards, run.it.state) == (2, PlanState.STEADY)


def test_a_share_that_is_refused_when_there_was_no_former_plan_ends_the_run() -> None:
    run = Changing(unwritten=True)
    run.join(0)
    run.look(0.0)
    assert only(run.look(PACK_AFTER_S, {}), TakePlan)
    assert run.it.state is PlanState.STARTING
    assert [failed.error for failed in only(run.refused(), FailRun)] == [REFUSED]


def test_a_worker_that_stays_away_leaves_its_shards_to_those_that_are_present() -> None:
    run = Changing().running()
    run.lose(1, 10.0)
    assert run.look(10.0) == [] and run.look(9.9 + PACK_AFTER_S) == []
    decisions = run.look(10.0 + PACK_AFTER_S)
    assert only(decisions, TakePlan)
    assert (run.workers, run.shards, run.it.state) == (1, 2, PlanState.STEADY)
    assert run.coordinator.plan.shards == plan().shards


def test_a_worker_that_comes_back_in_time_is_waited_for_anew_the_next_time() -> None:
    run = Changing().running()
    run.lose(1, 10.0)
    run.look(10.0)
    run.join(1)
    run.look(20.0)
    run.lose(1, 30.0)
    run.look(30.0)
    assert run.look(29.0 + PACK_AFTER_S) == []
    assert only(run.look(30.0 + PACK_AFTER_S), TakePlan)


def test_nothing_is_packed_while_a_process_is_there_for_every_worker() -> None:
    """It has not said hello with the present plan yet: packing would only delay it."""
    run = Changing().running()
    run.lose(1, 0.0)
    run.present.add(TaskNumber(1))
    run.look(0.0)
    assert run.look(10 * PACK_AFTER_S) == []
    run.present.clear()
    assert run.look(20 * PACK_AFTER_S) == [], "nobody is left to be packed onto"


def test_the_wait_for_workers_begins_when_the_first_of_them_is_present() -> None:
    """A cluster that starts slowly, or comes back after a power cut, is not packed at its first sign."""
    run = Changing()
    assert run.look(0.0) == [] and run.look(10 * PACK_AFTER_S) == []
    run.join(0)
    assert run.look(10 * PACK_AFTER_S + 1) == []
    assert only(run.look(11 * PACK_AFTER_S + 1), TakePlan)


def test_what_was_packed_is_spread_again_when_slots_are_back() -> None:
    run = Changing().running()
    run.lose(1, 0.0)
    run.look(0.0)
    run.look(PACK_AFTER_S)
    run.running()
    assert run.look(40.0) == []
    run.present.add(TaskNumber(1))
    assert only(run.look(41.0), StartQuiesce)
    run.quiesced()
    assert (run.workers, run.shards) == (2, 2)


def test_spares_are_no_slots_to_spread_over() -> None:
    run = Changing(spares=1).running()
    run.lose(1, 0.0)
    run.look(0.0)
    run.look(PACK_AFTER_S)
    run.running()
    run.present.add(TaskNumber(1))
    assert run.look(41.0) == []
    run.present.add(TaskNumber(2))
    assert only(run.look(42.0), StartQuiesce)


def test_a_pack_while_quiescing_does_not_lose_what_was_wanted() -> None:
    run = Changing(plan(2), target=plan(4)).running()
    assert only(run.look(0.0), StartQuiesce)
    run.lose(1, 1.0)
    run.look(1.0)
    assert only(run.look(1.0 + PACK_AFTER_S), TakePlan)
    assert (run.workers, run.shards) == (1, 2)
    assert only(run.look(40.0), StartQuiesce)
    run.quiesced()
    assert (run.workers, run.shards) == (1, 4)


def test_a_pack_while_new_shards_start_can_still_return_to_the_former_plan() -> None:
    run = Changing().running().rescale(3)
    run.join(0)
    run.present = {TaskNumber(0)}
    run.look(0.0)
    assert only(run.look(PACK_AFTER_S), TakePlan)
    assert (run.workers, run.shards, run.it.state) == (1, 3, PlanState.STARTING)
    assert only(run.refused(), ReturnToFormer)
    assert run.shards == 2


def test_an_illegal_move_is_an_error_that_names_both_states() -> None:
    run = Changing(plan(2), target=spread(plan(4), 2)).running()
    assert PlanState.STARTING not in PLAN_MOVES[PlanState.STEADY]
    with pytest.raises(InternalError, match="from STEADY to STARTING"):
        run.quiesced()
