"""The restart budget: how many failures are too many."""

from everstream.core.coordinators.restarts import TOGETHER_S, RestartBudget
from everstream.core.ids import WorkerId


def test_failures_within_the_window_are_counted_up_to_the_limit() -> None:
    budget = RestartBudget(2, window_s=10.0)
    assert [budget.spend(at_s) for at_s in (0.0, 5.0, 9.0)] == [True, True, False]


def test_failures_before_the_window_are_forgotten() -> None:
    budget = RestartBudget(2, window_s=10.0)
    assert all(budget.spend(at_s) for at_s in (0.0, 6.0, 12.0, 18.0))


def test_workers_that_fail_together_count_once() -> None:
    budget = RestartBudget(1, window_s=10.0)
    assert all(budget.spend(worker / 100, WorkerId(worker)) for worker in range(50))
    assert not budget.spend(TOGETHER_S, WorkerId(50))


def test_a_worker_that_fails_again_counts_again_however_soon() -> None:
    budget = RestartBudget(2, window_s=10.0)
    assert [budget.spend(at_s, WorkerId(1)) for at_s in (0.0, 0.1, 0.2)] == [True, True, False]


def test_a_shards_own_failures_all_count() -> None:
    budget = RestartBudget(1, window_s=10.0)
    assert [budget.spend(0.0), budget.spend(0.1, WorkerId(1))] == [True, False]
