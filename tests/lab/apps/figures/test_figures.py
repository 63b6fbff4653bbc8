"""Every published figure can be drawn, from runs that are made up here."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from everstream.errors import RunFailed, UserError
from everstream_lab.apps.cycle.benchmarks import Benchmark
from everstream_lab.apps.cycle.execute import Hear, planned_runs
from everstream_lab.apps.cycle.outcome import Outcome
from everstream_lab.apps.figures import runs as figure_runs
from everstream_lab.apps.figures.catalogue import FIGURES, Figure, chosen, draw_figures
from everstream_lab.apps.figures.runs import Runs

MADE_UP = {
    "elapsed_s": 0.5, "cpu_percent": 90.0, "memory_kb": 4096.0, "throughput_instant": 12.0,
    "latency_instant_ms": 3.0, "target_frequency": 10.0, "batch_size": 4.0,
}  # fmt: skip


class MadeUp:
    """In place of real runs: as many as were asked for, each with figures."""

    def __init__(self) -> None:
        self.asked: list[Benchmark] = []

    def execute(self, benchmarks: Sequence[Benchmark], folder: Path, hear: Hear) -> list[Outcome]:
        self.asked += benchmarks
        folder.mkdir(parents=True)
        found = []
        for run in planned_runs(benchmarks):
            row = pl.DataFrame({"run": [run.number, run.number], **MADE_UP})
            row.write_parquet(folder / f"monitor-{run.number:04d}.parquet")
            speed = 10.0 * run.workers
            found.append(Outcome(run, 60, 60 / speed, speed, True, 2.0, cpu_percent=90.0))
        return found


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    made = MadeUp()
    monkeypatch.setattr(figure_runs, "execute", made.execute)
    return made


def test_all_figures_of_both_papers_are_drawn(made_up: MadeUp, tmp_path: Path) -> None:
    names = {f"spbench-{number}" for number in range(6, 17)}
    names |= {f"resipipe-5.{number}" for number in range(2, 14)} | {"resipipe-6.5", "resipipe-6.6"}
    assert {figure.name for figure in FIGURES} == names
    paths = draw_figures(chosen([]), Runs(tmp_path))
    for path in paths:
        assert "<svg" in path.read_text(), path
    index = (tmp_path / "index.html").read_text()
    assert all(f'href="{path.name}"' in index for path in paths)


def test_published_numbers_stand_beside_ours_and_runs_are_shared(
    made_up: MadeUp, tmp_path: Path
) -> None:
    draw_figures(chosen(["resipipe-5.4", "resipipe-5.5"]), Runs(tmp_path))
    assert len(made_up.asked) == 4  # one for each interface, though two figures show them
    page = (tmp_path / "resipipe-5.4.html").read_text()
    assert "published, on a cluster" in page and "DSParLib" in page and "here: throughput" in page


def test_a_pattern_is_calibrated_by_a_run_at_full_speed(made_up: MadeUp, tmp_path: Path) -> None:
    draw_figures(chosen(["spbench-12"]), Runs(tmp_path))
    patterns = [one.settings.pattern for one in made_up.asked if one.application == "compress"]
    # 20 items a second for 3 seconds: from 2 to 22, in three periods of a second.
    assert patterns == ["", "wave,1,2,22", "wave,1,2,22"]


def test_an_unknown_figure_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(UserError, match="did you mean 'spbench-"):
        chosen(["spbench-17"])


def test_a_figure_whose_runs_fail_does_not_hide_the_others(
    made_up: MadeUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made_up.execute

    def execute(benchmarks: Sequence[Benchmark], folder: Path, hear: Hear) -> list[Outcome]:
        if benchmarks[0].application == "prime":
            raise RunFailed("prime-threads: of no use")
        return whole(benchmarks, folder, hear)

    monkeypatch.setattr(figure_runs, "execute", execute)
    failures: list[tuple[Figure, RunFailed]] = []
    drawn: list[Path] = []
    wanted = chosen(["resipipe-5.2", "resipipe-5.4"])
    assert draw_figures(wanted, Runs(tmp_path), drawn.append, failures) == drawn
    assert [path.name for path in drawn] == ["resipipe-5.4.html"]
    assert [figure.name for figure, _ in failures] == ["resipipe-5.2"]
    assert "resipipe-5.2: prime, throughput: failed" in (tmp_path / "index.html").read_text()
    with pytest.raises(RunFailed, match="of no use"):
        draw_figures(wanted, Runs(tmp_path))
