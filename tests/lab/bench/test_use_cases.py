"""ResiPipe's use cases, small: they run, survive their failures, and are drawn."""

from pathlib import Path

from everstream_lab.bench.papers.use_cases import (
    INTERVALS_S,
    USE_CASES,
    Measured,
    measure_one,
    report_of,
)
from everstream_lab.bench.papers.use_cases_figure import draw
from everstream_lab.bench.state import disk_state, large_state
from tests.spark import MASTER


def test_the_third_use_case_survives_both_of_its_failures() -> None:
    found = measure_one(USE_CASES[2], 15.0, True, factor=100.0, master=MASTER)
    assert len(found.restarted_from) == 2
    assert found.records_per_s > 0


def test_a_large_state_is_measured_with_checkpoints_on_and_off() -> None:
    found = large_state.measure(
        state_bytes=4 << 20, factor=150.0, batches=600, rounds=1, master=MASTER
    )
    assert len(found["with"].repetitions) == len(found["without"].repetitions) == 1
    assert found["checkpoints_per_run"].value >= 1


def test_a_state_of_which_little_changes_is_measured_too() -> None:
    found = large_state.measure(
        state_bytes=50 << 20, changed=0.02, factor=150.0, batches=600, rounds=2, master=MASTER
    )
    assert found.settings["changed"] == 0.02 and found.settings["state_bytes"] == 50 << 20
    assert found["saved"].value < 50 << 20, "all of it was saved each time"


def test_state_on_disk_is_measured_with_checkpoints_on_and_off_and_with_a_kill() -> None:
    found = disk_state.measure(
        keys=20_000, updates=300_000, interval_s=0.2, rounds=1, master=MASTER
    )
    assert found["state"].value > 0 and found["recovery"].value > 0
    assert len(found["with"].repetitions) == len(found["without"].repetitions) == 1


def test_the_figure_shows_every_interval_without_and_with_the_failure(tmp_path: Path) -> None:
    found = [
        Measured(case.number, interval_s, failure, 10.0, 1.0, [])
        for case in USE_CASES
        for interval_s in INTERVALS_S
        for failure in (False, True)
    ]
    report = report_of(found, 20.0)
    killed = report["use case 2, every 15 s, failure"]
    assert killed.ratio == 1.0 and killed.beside == "thesis: 1.33 records/s, ratio 0.86"
    assert report["use case 2, no checkpoints"].ratio is None
    draw(found, 20.0, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5_000
