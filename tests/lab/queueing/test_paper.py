"""The CCRR study in small: cases, claims, the grid on Spark, the commands."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream_lab.queueing import grid, paper, report
from everstream_lab.queueing.figures import behaviours
from everstream_lab.queueing.simulation import simulate

TUPLES = 10_000_000
COARSE = 1000


def test_four_sources_of_one_entity_make_1250_tuples_per_second() -> None:
    for rate in paper.RATES_PER_S:
        model = paper.case_model(paper.CASES[0], rate)
        assert model.rate_per_s == pytest.approx(rate)
        assert model.capacity_per_s == pytest.approx(37_500)


def test_the_cases_use_the_intervals_of_the_study_and_can_use_those_of_its_equation() -> None:
    used = [paper.case_model(case, 1250).checkpoints for case in paper.CASES[1:]]
    assert [c.interval_s for c in used if c] == [74, 74, 45]
    equation = [
        paper.case_model(case, 1250, intervals="equation").checkpoints for case in paper.CASES[1:]
    ]
    assert [round(c.interval_s, 1) for c in equation if c] == [35.0, 35.0, 24.8]


def test_case_two_loses_what_the_study_says_within_two_per_cent() -> None:
    lost = [
        simulate(paper.case_model(paper.CASES[1], rate, TUPLES, coarse=200), 1).lost * 200
        for rate in paper.RATES_PER_S
    ]
    assert sum(lost) / len(lost) == pytest.approx(133_000, rel=0.02)


def test_a_coarse_run_has_the_times_and_losses_of_a_fine_one() -> None:
    case = paper.CASES[2]
    fine = simulate(paper.case_model(case, 5000, TUPLES, coarse=10), 1)
    rough = simulate(paper.case_model(case, 5000, TUPLES, coarse=200), 1)
    assert rough.window_s == pytest.approx(fine.window_s, rel=0.005)
    assert rough.lost * 200 == pytest.approx(fine.lost * 10, rel=0.02)
    assert rough.unprocessed * 200 == pytest.approx(fine.unprocessed * 10, rel=0.03)


@pytest.fixture(scope="module")
def long_series() -> list[grid.Row]:
    """Cases 1 and 2 once; the failing cases many times, because their counts vary."""
    tasks = [
        grid.Task("paper", case, rate, 0, TUPLES, 200)
        for case in (1, 2)
        for rate in paper.RATES_PER_S
    ]
    tasks += [
        grid.Task("long", case, rate, 100, TUPLES, COARSE, batch=batch)
        for case, batch in ((3, 100), (4, 40))
        for rate in paper.RATES_PER_S
    ]
    return [grid.run_task(task) for task in tasks]


def test_every_claim_with_a_tolerance_holds(long_series: list[grid.Row]) -> None:
    """A margin of one per cent for chance: this is a small version of the full series."""
    for compared in paper.compare(report.judged_grid(long_series, TUPLES), TUPLES):
        if compared.claim.tolerance is not None:
            assert abs(compared.difference) <= compared.claim.tolerance + 0.01, compared


def test_a_claim_that_is_missed_is_reported_as_missed(long_series: list[grid.Row]) -> None:
    found = report.judged_grid(long_series, TUPLES)
    wrong = {
        key: paper.Point(point.window_s * 1.2, point.lost * 1.2, point.unprocessed)
        for key, point in found.items()
    }
    assert any(compared.within is False for compared in paper.compare(wrong, TUPLES))


def test_the_growth_of_waits_is_among_the_claims_of_a_grid_that_has_waits() -> None:
    grown = {2: 1.0, 3: 1.12, 4: 1.27}
    points = {
        (case, rate): paper.Point(
            1.0, 0.0, 0.0, tuple(grown.get(case, 1.0) * 1e-4 for _ in range(4))
        )
        for case in (1, 2, 3, 4)
        for rate in paper.RATES_PER_S
    }
    claims = [one for one in paper.compare(points, TUPLES, waits=True) if one.claim.waits]
    percents = [round((one.claim.paper - 1) * 100) for one in claims]
    assert percents == [12, 121, 8, 29, 27, 125, 14, 8]
    assert [one.measured for one in claims] == pytest.approx([1.12] * 4 + [1.27] * 4)
    assert claims[0].within and not claims[1].within
    assert not [one for one in paper.compare(points, TUPLES) if one.claim.waits]
    # Its tables have operator 2 wait three times as long at 2500/s, not at most 2.25 times.
    assert "its tables give 3.00" in claims[5].claim.note


def test_the_printed_waits_are_multiples_of_36_microseconds() -> None:
    for case in paper.CASES:
        for rate in paper.RATES_PER_S:
            for operator in range(4):
                wait_s = paper.paper_wait_s(case.number, rate, operator)
                if wait_s is not None:
                    assert wait_s / 36e-6 == pytest.approx(round(wait_s / 36e-6))


def test_the_study_waits_longer_than_even_one_cpu_with_all_sources_in_step() -> None:
    bound = simulate(paper.busiest_model(10_000, 100_000)).mean_wait_s[0]
    printed = paper.paper_wait_s(1, 10_000, 0)
    assert bound == pytest.approx(15.5 * 80e-6, rel=0.02)
    assert printed is not None and printed > bound


def test_the_full_grid_has_4_cases_8_rates_and_10_replications_of_10_million_tuples() -> None:
    tasks = grid.paper_tasks()
    full = [t for t in tasks if t.variant == "paper" and t.tuples == TUPLES and t.coarse == 1]
    assert len(full) == 4 * 8 * 10
    assert len({task.name for task in tasks}) == len(tasks)
    assert len({task.seed for task in full}) == len(full)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    import os
    import sys

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    if SparkContext._active_spark_context is not None:
        # One of ours, from another test: in it a failing task would be tried for ever.
        SparkContext._active_spark_context.stop()
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def test_the_grid_runs_on_spark_and_goes_on_where_it_was(spark: Any, tmp_path: Path) -> None:
    tasks = [grid.Task("paper", case, 5000, i, TUPLES, 2000) for case in (2, 3) for i in range(2)]
    results = str(tmp_path / "results")
    seen: list[tuple[int, int]] = []
    rows = grid.run(tasks[:3], results, spark, lambda done, total: seen.append((done, total)))
    assert rows[0].window_s == grid.run_task(tasks[0]).window_s
    assert seen[0] == (0, 3) and seen[-1] == (3, 3)

    kept = tmp_path / "results" / f"{tasks[0].name}.json"
    before = kept.stat().st_mtime_ns
    seen.clear()
    assert len(grid.run(tasks, results, spark, lambda done, total: seen.append((done, total)))) == 4
    assert seen[0] == (3, 4) and seen[-1] == (4, 4)
    assert kept.stat().st_mtime_ns == before
    assert not list((tmp_path / "results").glob(".*"))


def test_a_failing_spark_job_is_reported_in_one_sentence(spark: Any, tmp_path: Path) -> None:
    impossible = [grid.Task("paper", 2, 1300, 0, TUPLES, 2000)]
    with pytest.raises(grid.GridError, match="multiples of 1250"):
        grid.run(impossible, str(tmp_path / "results"), spark)


def test_missing_and_damaged_results_are_named(tmp_path: Path) -> None:
    task = grid.Task("paper", 2, 5000, 0, TUPLES, 2000)
    with pytest.raises(grid.GridError, match="1 of 1 results are missing"):
        grid.load([task], str(tmp_path))
    (tmp_path / f"{task.name}.json").write_text("{}")
    with pytest.raises(grid.GridError, match="is damaged: delete it"):
        grid.load([task], str(tmp_path))


def test_figures_are_drawn(tmp_path: Path, long_series: list[grid.Row]) -> None:
    found = report.judged_grid(long_series, TUPLES)
    path = report.by_rate(found, "lost", "lost", "tuples", 1e-6, tmp_path / "a" / "lost.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    case = paper.CASES[2]
    discard, backlog = (
        simulate(paper.case_model(case, 5000, TUPLES, behaviour=b, coarse=COARSE), 3)
        for b in ("discard", "backlog")
    )
    path = behaviours(discard, backlog, tmp_path / "both.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_model_bench_compares_with_simpy(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    outcome = CliRunner().invoke(
        app,
        ["model", "bench", "--tuples", "100000", "--simpy-tuples", "1000", "--json", str(out)],
    )
    assert outcome.exit_code == 0, outcome.output
    written = json.loads(out.read_text())
    assert written["settings"]["kernel_tuples"] == 100_000
    assert written["figures"]["kernel"]["ratio"] > 1
