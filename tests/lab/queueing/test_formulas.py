"""Each formula against the simulation, within the tolerance its test states."""

import dataclasses
import math

import pytest

from everstream.planning import analytic
from everstream_lab.queueing import equations, formulas
from everstream_lab.queueing import model as m
from everstream_lab.queueing.simulation import estimate, replicate, simulate
from tests.lab.queueing import closed_forms

RATE = 50.0


def system(tuples: int, service_s: float = 2e-3, **parts: object) -> m.Model:
    """One operator with one CPU (capacity 500/s) fed at 50/s, unless told otherwise."""
    operators = (m.OperatorModel("only", m.normal(service_s, service_s / 10), 1),)
    sources = (m.SourceModel("only", m.normal(1 / RATE, 1e-4)),)
    return m.Model(operators, sources, tuples, **parts)  # type: ignore[arg-type]


def test_equation_four_gives_35_and_24_8_seconds_and_not_the_74_and_45_of_the_study() -> None:
    assert analytic.ccrr_interval_s(1, 600) == pytest.approx(35.0, abs=0.05)
    assert analytic.ccrr_interval_s(1, 300) == pytest.approx(24.8, abs=0.05)


def test_dalys_interval_stays_below_youngs_and_meets_it_for_rare_failures() -> None:
    assert analytic.daly_interval_s(1, 600) < analytic.young_interval_s(1, 600)
    assert analytic.daly_interval_s(1, 1e9) == pytest.approx(
        analytic.young_interval_s(1, 1e9), rel=1e-3
    )
    assert analytic.daly_interval_s(50, 20) == 20


@pytest.mark.parametrize("interval_s", [21.0, 74.0])
def test_equations_one_and_five_hold_within_one_per_cent(interval_s: float) -> None:
    run = simulate(system(100_000, checkpoints=m.Checkpoints(interval_s, 1.0)))
    work_s = 100_000 / RATE
    assert run.window_s == pytest.approx(
        equations.run_time_without_failures_s(work_s, interval_s, 1.0), rel=0.01
    )
    assert run.lost == pytest.approx(
        equations.loss_without_failures(RATE, work_s, interval_s, 1.0), rel=0.01
    )


def test_equation_three_holds_within_twelve_per_cent_and_six_counts_up_to_thirty_too_many() -> None:
    failures = m.Failures(("only",), m.exponential(600), recovery_s=60)
    model = system(200_000, checkpoints=m.Checkpoints(74, 1), failures=failures)
    runs = replicate(model, 20)
    work_s = 200_000 / RATE
    assert estimate([run.window_s for run in runs]).mean == pytest.approx(
        equations.run_time_with_failures_s(work_s, 74, 1, 60, 600), rel=0.12
    )
    lost = estimate([run.lost for run in runs]).mean
    assert lost < equations.loss_with_failures(RATE, work_s, 74, 1, 60, 600) < 1.3 * lost


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_exact_discard_forecast_holds_within_five_per_cent(nodes: int) -> None:
    names = ("a", "b")
    operators = m.line(names, m.constant(2e-3), cpus=1)
    model = m.Model(
        operators,
        (m.SourceModel("a", m.constant(1 / 20)),),
        20_000,
        m.Checkpoints(45, 1),
        m.Failures(names[:nodes], m.exponential(300), recovery_s=20),
    )
    runs = replicate(model, 150, seed=5)
    forecast = closed_forms.discard_forecast(20, 20_000, 45, 1, 20, 300, nodes)
    for field in ("window_s", "lost", "unprocessed", "recoveries"):
        found = estimate([float(getattr(run, field)) for run in runs])
        assert found.mean == pytest.approx(getattr(forecast, field), rel=0.06), field


def backlog_pair(
    load: float, upload_s: float, interval_s: float = 20.0, commit_s: float = 0.5
) -> tuple[m.Model, analytic.Backlog]:
    service_s = load / RATE
    model = system(
        75_000,
        service_s,
        checkpoints=m.Checkpoints(interval_s, commit_s, upload_s),
        failures=m.Failures(("only",), m.exponential(300), 5.0, detection_s=1.0),
        behaviour="backlog",
        # At these low rates a longer queue would hide seconds of backlog from the source.
        in_flight_limit=2,
        latency_target_s=3.0,
    )
    return model, analytic.Backlog(RATE, RATE / load, interval_s, commit_s, upload_s, 6.0)


@pytest.mark.parametrize("load,upload_s", [(0.3, 0.0), (0.5, 4.0), (0.7, 0.0)])
def test_catch_up_time_is_predicted_within_ten_per_cent(load: float, upload_s: float) -> None:
    model, formula = backlog_pair(load, upload_s)
    found: list[float] = []
    replayed: list[float] = []
    for run in replicate(model, 80, seed=2):
        recoveries = [pause for pause in run.pauses if pause.kind == "recovery"]
        starts_s = [0.0, *(pause.start_s for pause in recoveries), math.inf]
        for before_s, pause, after_s in zip(starts_s, recoveries, starts_s[2:], strict=False):
            # Failures in a row share one long catch-up, which is another story.
            if pause.caught_up_s is None or after_s < pause.caught_up_s:
                continue
            if pause.start_s > before_s + 120:
                found.append(pause.catch_up_s or 0.0)
                replayed.append(pause.replayed / RATE)
    assert len(found) > 200
    assert estimate(found).mean == pytest.approx(formula.catch_up_s(), rel=0.1)
    assert estimate(replayed).mean == pytest.approx(formula.mean_age_s, rel=0.1)


def test_one_catch_up_is_predicted_within_five_per_cent_when_the_age_is_known() -> None:
    model, formula = backlog_pair(0.7, 0.0)
    failures = m.Failures(("only",), m.constant(1), 5.0, detection_s=1.0, at_s=(100.0,))
    run = simulate(dataclasses.replace(model, window_tuples=15_000, failures=failures))
    (pause,) = (p for p in run.pauses if p.kind == "recovery")
    last_s = max(p.start_s for p in run.pauses if p.end_s < 100)
    assert pause.catch_up_s == pytest.approx(formula.catch_up_s(100 - last_s), rel=0.05)
    worst_s = max(worst for _, _, worst in run.curve_s)
    assert worst_s == pytest.approx(formula.peak_latency_s(100 - last_s), rel=0.05)


@pytest.mark.parametrize("load,upload_s", [(0.3, 0.0), (0.5, 4.0)])
def test_time_above_target_utilisation_and_delay_are_predicted_within_fifteen_per_cent(
    load: float, upload_s: float
) -> None:
    model, formula = backlog_pair(load, upload_s)
    runs = replicate(model, 16, seed=9)
    # A failure does not strike during an outage, so failures are mtbf + outage apart.
    late = estimate([run.above_target_fraction for run in runs])
    assert late.mean == pytest.approx(formulas.above_target_fraction(formula, 3.0, 306), rel=0.15)
    busy = estimate([run.utilisation[0] for run in runs])
    demand = formulas.utilisation(formula, 300) * formula.processing_share * 300 / 306
    assert busy.mean == pytest.approx(demand, rel=0.05)
    delay = estimate([run.mean_latency_s for run in runs])
    assert delay.mean == pytest.approx(formulas.mean_delay_s(formula, 306), rel=0.15)


def test_without_spare_capacity_nothing_is_ever_caught_up() -> None:
    assert analytic.Backlog(100, 100, 10, 0.1).catch_up_s() == math.inf
    assert analytic.Backlog(99.9, 100, 10, 0.1).catch_up_s() == math.inf
    assert analytic.Backlog(50, 100, 10, 0.1, outage_s=1).catch_up_s() < math.inf
