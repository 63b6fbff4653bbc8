"""The compiled kernel against closed forms, against SimPy, and against itself."""

import dataclasses
import doctest
import math
from types import ModuleType

import pytest

from everstream_lab.queueing import model as m
from everstream_lab.queueing import reference, simulation
from everstream_lab.queueing.simulation import estimate, replicate, simulate
from tests.lab.queueing import closed_forms


def one_queue(service: m.Distribution, cpus: int, gap_s: float, tuples: int = 600_000) -> m.Model:
    return m.Model(
        (m.OperatorModel("only", service, cpus),),
        (m.SourceModel("only", m.exponential(gap_s)),),
        tuples,
    )


@pytest.mark.parametrize("cpus,load", [(1, 0.5), (1, 0.8), (3, 0.5), (3, 0.8), (8, 0.9)])
def test_waiting_time_is_that_of_erlang_c(cpus: int, load: float) -> None:
    gap_s = 1e-3 / (cpus * load)
    runs = replicate(one_queue(m.exponential(1e-3), cpus, gap_s), 4, seed=3)
    found = estimate([run.mean_wait_s[0] for run in runs])
    expected = closed_forms.mmc_wait_s(1 / gap_s, 1e-3, cpus)
    assert found.mean == pytest.approx(expected, rel=0.04)
    assert runs[0].utilisation[0] == pytest.approx(load, rel=0.01)


@pytest.mark.parametrize(
    "service",
    [
        m.constant(1e-3),
        m.normal(1e-3, 2e-4),
        m.uniform(5e-4, 15e-4),
        m.erlang(1e-3, 3),
        m.lognormal(1e-3, 5e-4),
    ],
    ids=lambda law: law.kind,
)
def test_waiting_time_with_one_cpu_is_that_of_pollaczek_and_khinchine(
    service: m.Distribution,
) -> None:
    gap_s = 1e-3 / 0.7
    run = simulate(one_queue(service, 1, gap_s, 1_500_000), seed=5)
    expected = closed_forms.mg1_wait_s(1 / gap_s, service.mean_s, service.variance_s2)
    assert run.mean_wait_s[0] == pytest.approx(expected, rel=0.03)


def test_batches_wait_as_the_batch_formula_says() -> None:
    source = m.SourceModel("only", m.exponential(0.01), entities=6)
    model = m.Model((m.OperatorModel("only", m.exponential(1e-3), 1),), (source,), 1_500_000)
    expected = closed_forms.batch_mm1_wait_s(100, 6, 1e-3)
    assert simulate(model, seed=1).mean_wait_s[0] == pytest.approx(expected, rel=0.03)


def test_a_tandem_of_exponential_queues_behaves_like_separate_ones() -> None:
    operators = m.line(("a", "b", "c"), m.exponential(1e-3), cpus=2)
    run = simulate(
        m.Model(operators, (m.SourceModel("a", m.exponential(1e-3 / 1.4)),), 1_500_000), 2
    )
    expected = closed_forms.mmc_wait_s(1400, 1e-3, 2)
    for wait_s in run.mean_wait_s:
        assert wait_s == pytest.approx(expected, rel=0.05)
    assert run.mean_latency_s == pytest.approx(3 * (expected + 1e-3), rel=0.04)


def test_a_graph_with_branches_and_feedback_is_a_jackson_network() -> None:
    operators = (
        m.OperatorModel("split", m.exponential(1e-3), 2, (("left", 0.3), ("right", 0.5))),
        m.OperatorModel("left", m.exponential(2e-3), 1, (("join", 1.0),)),
        m.OperatorModel("right", m.exponential(1e-3), 1, (("join", 1.0),)),
        m.OperatorModel("join", m.exponential(1e-3), 2, (("split", 0.25), (m.EXIT, 0.75))),
    )
    sources = (
        m.SourceModel("split", m.exponential(1 / 500)),
        m.SourceModel("join", m.exponential(1 / 200)),
    )
    model = m.Model(operators, sources, 1_500_000)
    run = simulate(model, seed=4)
    for operator, visits, wait_s in zip(operators, model.visits(), run.mean_wait_s, strict=True):
        expected = closed_forms.mmc_wait_s(700 * visits, operator.service.mean_s, operator.cpus)
        assert wait_s == pytest.approx(expected, rel=0.06), operator.name
    assert model.capacity_per_s == pytest.approx(
        min(o.cpus / o.service.mean_s / v for o, v in zip(operators, model.visits(), strict=True))
    )


def small_line(**changes: object) -> m.Model:
    """Four operators at 70 % load, with a checkpoint every 2 s; small enough for SimPy."""
    base = m.Model(
        m.line(("a", "b", "c", "d"), m.normal(8e-3, 2e-3), cpus=3),
        (
            m.SourceModel("a", m.normal(32e-3, 2e-3), entities=4),
            m.SourceModel("a", m.exponential(1 / 140), entities=1),
        ),
        window_tuples=8_000,
        checkpoints=m.Checkpoints(2.0, 0.25),
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def test_discard_agrees_with_simpy_on_a_failure_free_line() -> None:
    model = small_line()
    ours = replicate(model, 6, seed=1)
    theirs = [reference.simulate_with_simpy(model, seed) for seed in range(2)]
    for i, name in enumerate("abcd"):
        our_wait = estimate([run.mean_wait_s[i] for run in ours]).mean
        their_wait = estimate([run.mean_wait_s(name) for run in theirs]).mean
        assert our_wait == pytest.approx(their_wait, rel=0.12), name
    assert estimate([run.window_s for run in ours]).mean == pytest.approx(
        estimate([run.window_s for run in theirs]).mean, rel=0.03
    )
    assert estimate([run.lost for run in ours]).mean == pytest.approx(
        estimate([run.lost for run in theirs]).mean, rel=0.06
    )


def test_discard_agrees_with_simpy_when_two_operators_fail() -> None:
    failures = m.Failures(("a", "c"), m.poisson(6.0), recovery_s=0.8)
    model = small_line(failures=failures, window_tuples=6_000)
    ours = replicate(model, 40, seed=1)
    theirs = [reference.simulate_with_simpy(model, seed) for seed in range(8)]
    for field in ("window_s", "lost", "unprocessed"):
        our = estimate([float(getattr(run, field)) for run in ours])
        their = estimate([float(getattr(run, field)) for run in theirs])
        assert abs(our.mean - their.mean) < our.half_width + their.half_width, field
        assert our.mean == pytest.approx(their.mean, rel=0.2), field


def test_backlog_agrees_with_simpy_on_catch_up_and_replay() -> None:
    failures = m.Failures(("b",), m.constant(1.0), 1.5, detection_s=0.3, at_s=(5.1, 15.3))
    model = small_line(failures=failures, behaviour="backlog", in_flight_limit=64)
    ours, theirs = simulate(model, 1), reference.simulate_with_simpy(model, 1)
    our_catch_up = [p.catch_up_s for p in ours.pauses if p.kind == "recovery"]
    assert len(our_catch_up) == len(theirs.catch_up_s) == 2
    assert ours.replayed == pytest.approx(theirs.replayed, rel=0.1)
    assert sum(c for c in our_catch_up if c) == pytest.approx(sum(theirs.catch_up_s), rel=0.25)
    assert ours.mean_latency_s == pytest.approx(theirs.mean_latency_s, rel=0.15)


def test_the_same_seed_gives_the_same_result_and_another_seed_another() -> None:
    model = small_line(failures=m.Failures(("a",), m.exponential(5.0), 0.5))
    assert simulate(model, 7) == simulate(model, 7)
    assert simulate(model, 7).window_s != simulate(model, 8).window_s


def test_progress_and_growing_buffers_do_not_change_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small_line(behaviour="backlog", failures=m.Failures(("a",), m.exponential(5.0), 0.5))
    whole = simulate(model, 1)
    seen: list[int] = []
    monkeypatch.setattr(simulation, "_EVENTS_PER_CALL", 1000)
    assert simulate(model, 1, seen.append) == whole
    assert seen == sorted(seen) and seen[-1] == model.window_tuples and len(seen) > 10


def test_an_overloaded_queue_grows_past_its_first_buffer() -> None:
    model = one_queue(m.constant(2e-3), 1, 1e-3, 20_000)
    run = simulate(model, 1)
    assert run.delivered == 20_000
    assert run.arrived > 35_000
    assert run.window_s == pytest.approx(40.0, rel=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_backlog_loses_nothing_and_delivers_nothing_twice(seed: int) -> None:
    failures = m.Failures(("a", "d"), m.exponential(4.0), 0.5, detection_s=0.1)
    checkpoints = m.Checkpoints(1.0, 0.05, upload_s=0.4)
    model = small_line(behaviour="backlog", failures=failures, checkpoints=checkpoints)
    run = simulate(model, seed)
    assert run.recoveries > 0 and run.replayed > 0
    assert run.lost == 0 and run.unprocessed == 0
    assert run.delivered == model.window_tuples <= run.arrived
    assert sum(p.replayed for p in run.pauses) == run.replayed


def test_every_arrival_is_delivered_lost_or_still_inside() -> None:
    run = simulate(small_line(failures=m.Failures(("a",), m.exponential(5.0), 0.5)), 3)
    inside = run.arrived - run.lost - run.delivered
    assert 0 <= inside < 200


def test_a_failure_before_the_upload_ends_replays_from_the_checkpoint_before() -> None:
    failures = m.Failures(("a",), m.constant(1.0), 0.5, at_s=(5.0,))
    quick = m.Checkpoints(2.0, 0.0, upload_s=0.1)
    slow = m.Checkpoints(2.0, 0.0, upload_s=1.5)
    replayed = [
        simulate(small_line(behaviour="backlog", failures=failures, checkpoints=c), 1).replayed
        for c in (quick, slow)
    ]
    # Checkpoints start at 2 s and 4 s; at 5 s the slow one of 4 s is not stable yet.
    assert replayed[0] == pytest.approx(265 * 1.0, rel=0.15)
    assert replayed[1] == pytest.approx(265 * 3.0, rel=0.15)


def test_both_behaviours_see_the_same_first_failure() -> None:
    failures = m.Failures(("a",), m.exponential(5.0), 0.5)
    discard = simulate(small_line(failures=failures), 11)
    backlog = simulate(small_line(failures=failures, behaviour="backlog"), 11)
    struck_s = next(p.start_s for p in backlog.pauses if p.kind == "recovery")
    found_s = next(p.start_s for p in discard.pauses if p.kind == "recovery")
    assert 0 <= found_s - struck_s <= 2.25


def test_models_that_cannot_work_are_refused_with_advice() -> None:
    with pytest.raises(m.ModelError, match="add CPUs"):
        dataclasses.replace(one_queue(m.constant(2e-3), 1, 1e-3), behaviour="backlog")
    with pytest.raises(m.ModelError, match="unknown"):
        m.Model((m.OperatorModel("a", m.constant(1)),), (m.SourceModel("b", m.constant(1)),), 1)
    with pytest.raises(m.ModelError, match="add checkpoints"):
        small_line(checkpoints=None, failures=m.Failures(("a",), m.exponential(5.0), 0.5))


def test_an_estimate_of_one_value_claims_no_certainty() -> None:
    assert estimate([3.0]).half_width == math.inf
    assert estimate([1.0, 2.0, 3.0]).half_width == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)


@pytest.mark.parametrize("behaviour", ["discard", "backlog"])
def test_operators_with_a_shared_clock_fail_at_the_same_moment(behaviour: m.Behaviour) -> None:
    shared = m.Failures(("a", "c"), m.poisson(6.0), recovery_s=0.8, clocks="shared")
    run = simulate(small_line(failures=shared, behaviour=behaviour), 3)
    assert run.failures > 0 and run.failures % 2 == 0
    if behaviour == "discard":
        # Both are down when the checkpoint finds them, and are repaired one after the other.
        pauses = [p for p in run.pauses if p.kind == "recovery"]
        assert all(p.end_s - p.start_s == pytest.approx(0.25 + 2 * 0.8) for p in pauses)
    else:
        assert run.recoveries == run.failures / 2 and run.lost == 0


def test_a_system_that_never_gets_on_is_given_up_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulation, "_EVENTS_PER_CALL", 20_000)
    # No checkpoint is ever stable before the next failure, so every replay starts at the start.
    hopeless = small_line(
        behaviour="backlog",
        window_tuples=2_000,
        failures=m.Failures(("a",), m.constant(1.0), recovery_s=0.1),
    )
    with pytest.raises(m.ModelError, match="failures come faster"):
        simulate(hopeless, 1)


@pytest.mark.parametrize("module", [m, simulation])
def test_examples_give_what_they_say(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert tried and not failed
