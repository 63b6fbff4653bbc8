"""The live choice of an interval: facts in, a decision out."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstream.planning import analytic
from everstream.planning.auto import (
    AutoInterval,
    AutoSettings,
    CheckpointSeen,
    Decision,
    FailureSeen,
    RateSeen,
)


def feed(
    auto: AutoInterval, checkpoints: int, pause_s: float, start_s: float, duration_s: float = 0.0
) -> list[Decision]:
    """Checkpoints one interval apart, as an engine would take them."""
    decisions = []
    at_s = start_s
    for _ in range(checkpoints):
        at_s += auto.interval_s
        decisions.append(auto.see(CheckpointSeen(at_s, pause_s, max(pause_s, duration_s))))
    return decisions


def test_before_any_measurement_the_initial_interval_stands() -> None:
    auto = AutoInterval(AutoSettings(initial_s=7))
    decision = auto.see(RateSeen(1.0, 100, 500))
    assert (decision.interval_s, decision.changed) == (7, False)
    assert "no checkpoint has been measured" in decision.reason


def test_it_settles_near_dalys_interval() -> None:
    auto = AutoInterval(AutoSettings(expected_mtbf_s=3600))
    feed(auto, 12, pause_s=0.2, start_s=0)
    best_s = analytic.daly_interval_s(0.2, auto.mtbf_s)
    assert best_s / 1.25 <= auto.interval_s <= best_s * 1.25


def test_each_change_says_from_where_to_where_and_why() -> None:
    changed = [d for d in feed(AutoInterval(), 12, 0.2, 0) if d.changed]
    assert changed
    assert all(d.reason.startswith("from ") and "failure is expected" in d.reason for d in changed)


def test_noise_in_the_cost_does_not_make_it_flap() -> None:
    auto = AutoInterval(AutoSettings(expected_mtbf_s=3600))
    feed(auto, 20, 0.2, 0)
    rng = random.Random(4)
    at_s, changes = 10_000.0, 0
    for _ in range(200):
        at_s += auto.interval_s
        pause_s = 0.2 * rng.uniform(0.7, 1.3) * (20 if rng.random() < 0.02 else 1)
        changes += auto.see(CheckpointSeen(at_s, pause_s, pause_s)).changed
    assert changes <= 3


def test_a_lasting_change_of_cost_moves_it_and_a_single_stall_does_not() -> None:
    auto = AutoInterval(AutoSettings(expected_mtbf_s=3600))
    feed(auto, 25, 0.1, 0)
    before_s = auto.interval_s
    assert not auto.see(CheckpointSeen(5000, 30.0, 30.0)).changed
    feed(auto, 25, 1.6, 5000)
    assert auto.interval_s > 2 * before_s


def test_failures_shorten_the_interval_at_once_and_quiet_lengthens_it_again() -> None:
    auto = AutoInterval(AutoSettings(expected_mtbf_s=24 * 3600))
    feed(auto, 12, 0.5, 0)
    calm_s = auto.interval_s
    decisions = [auto.see(FailureSeen(5000.0 + i, 2.0)) for i in range(8)]
    assert any(d.changed for d in decisions)
    assert auto.interval_s < calm_s / 2
    feed(auto, 400, 0.5, 6000)
    assert auto.interval_s < calm_s
    feed(auto, 20, 0.5, 5e6)
    assert auto.interval_s > calm_s / 1.6


def test_the_interval_never_leaves_the_bounds_of_the_user() -> None:
    auto = AutoInterval(AutoSettings(initial_s=100, shortest_s=5, longest_s=20))
    assert auto.interval_s == 20
    decisions = feed(auto, 10, 30.0, 0)
    assert auto.interval_s == 20
    assert "upper bound of 20 s" in decisions[-1].reason


def test_a_recovery_target_caps_the_interval_so_that_the_worst_recovery_meets_it() -> None:
    settings = AutoSettings(recovery_target_s=10.0)
    auto = AutoInterval(settings)
    auto.see(RateSeen(0.0, 1000.0, 3000.0))
    feed(auto, 3, 0.05, 0, duration_s=0.5)
    auto.see(FailureSeen(100.0, outage_s=1.5))
    feed(auto, 12, 0.05, 100, duration_s=0.5)
    system = analytic.Backlog(1000, 3000, auto.interval_s, 0.05, 0.45, 1.5)
    assert system.recovery_s(system.worst_age_s) <= 10 * 1.25
    assert auto.interval_s < analytic.daly_interval_s(0.05, auto.mtbf_s)
    assert "recovery must end within 10 s" in auto.wanted()[1]
    capped_s, _ = auto.wanted()
    exact = analytic.Backlog(1000, 3000, capped_s, 0.05, 0.45, 1.5)
    assert exact.recovery_s(exact.worst_age_s) == pytest.approx(10, rel=0.1)


def test_a_target_that_no_interval_can_meet_is_said_plainly() -> None:
    auto = AutoInterval(AutoSettings(recovery_target_s=1.0))
    feed(auto, 3, 0.05, 0)
    auto.see(FailureSeen(500.0, outage_s=5.0))
    wanted_s, why = auto.wanted()
    assert wanted_s == auto.settings.shortest_s
    assert "no interval can meet" in why


def test_the_recovery_target_wins_over_the_overhead_limit() -> None:
    both = AutoSettings(recovery_target_s=5.0, max_overhead=0.001)
    only_overhead = AutoSettings(max_overhead=0.001)
    short, long = AutoInterval(both), AutoInterval(only_overhead)
    for auto in (short, long):
        auto.see(RateSeen(0.0, 1000.0, 3000.0))
        feed(auto, 20, 0.2, 0)
    assert long.interval_s == pytest.approx(0.2 * 0.999 / 0.001, rel=0.3)
    assert short.interval_s < 12


def test_the_interval_is_never_shorter_than_a_checkpoint_takes() -> None:
    auto = AutoInterval(AutoSettings(expected_mtbf_s=60))
    feed(auto, 30, 0.001, 0, duration_s=8.0)
    assert auto.interval_s >= 8.0 / 1.25


def test_facts_out_of_order_are_refused() -> None:
    auto = AutoInterval()
    auto.see(CheckpointSeen(10, 0.1, 0.1))
    with pytest.raises(ValueError, match="order of time"):
        auto.see(CheckpointSeen(9, 0.1, 0.1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"shortest_s": 0.0},
        {"shortest_s": 5.0, "longest_s": 1.0},
        {"recovery_target_s": 0.0},
        {"max_overhead": 1.5},
        {"largest_step": 1.0},
        {"patience": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        AutoSettings(**wrong)  # type: ignore[arg-type]


facts = st.lists(
    st.one_of(
        st.tuples(st.just("checkpoint"), st.floats(0, 100), st.floats(0, 100)),
        st.tuples(st.just("failure"), st.floats(0, 100), st.none()),
        st.tuples(st.just("load"), st.floats(1, 1e6), st.floats(1, 1e6)),
    ),
    max_size=40,
)


@given(
    facts, st.one_of(st.none(), st.floats(0.1, 1000)), st.one_of(st.none(), st.floats(0.001, 0.5))
)
def test_whatever_happens_the_interval_is_finite_in_bounds_and_explained(
    history: list[tuple[str, float, float | None]], target_s: float | None, overhead: float | None
) -> None:
    settings = AutoSettings(recovery_target_s=target_s, max_overhead=overhead)
    auto = AutoInterval(settings)
    at_s = 0.0
    for kind, first, second in history:
        at_s += first
        before_s = auto.interval_s
        if kind == "checkpoint":
            decision = auto.see(CheckpointSeen(at_s, first, first + (second or 0)))
        elif kind == "failure":
            decision = auto.see(FailureSeen(at_s, first))
        else:
            decision = auto.see(RateSeen(at_s, first, second or 1.0))
        assert math.isfinite(decision.interval_s)
        assert settings.shortest_s <= decision.interval_s <= settings.longest_s
        assert decision.changed == (decision.interval_s != before_s)
        assert 1 / settings.largest_step - 1e-9 <= decision.interval_s / before_s
        assert decision.interval_s / before_s <= settings.largest_step + 1e-9
        assert decision.reason
