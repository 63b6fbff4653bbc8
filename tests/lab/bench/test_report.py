"""One form for all figures: what a target means, what is shown, what is written."""

import json
from pathlib import Path

import pytest
import typer

from everstream_lab.bench.report import Figure, Report, Target, at_least, at_most, exactness, shown
from everstream_lab.cli.showing import run_benchmark


@pytest.mark.parametrize(
    ("figure", "reached"),
    [
        (Figure("cost", 0.03, target=at_most(0.03)), True),
        (Figure("cost", 0.031, target=at_most(0.03)), False),
        (Figure("rate", 0.9, target=at_least(0.9)), True),
        (Figure("rate", 5.0, target=at_least(0.8, of="ratio"), ratio=0.7), False),
        (Figure("difference", -0.2, target=Target("within", 0.25)), True),
        (Figure("difference", -0.3, target=Target("within", 0.25)), False),
        (Figure("rate", 1.0), None),
    ],
)
def test_a_figure_reaches_its_target_or_not(figure: Figure, reached: bool | None) -> None:
    assert figure.reached is reached


def test_the_median_is_a_round_and_the_spread_is_of_all_of_them() -> None:
    figure = Figure.median("took", [3.0, 1.0, 2.0, 8.0], "s")
    assert (figure.value, figure.spread) == (3.0, 7.0)
    assert Figure.median("took", [3.0]).spread is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (3.0, "3"), (0.01234567, "0.01235"), (20_000.4, "20,000"), (64_200_000, "64.20 M")],
)
def test_a_number_is_shown_with_the_digits_that_mean_something(value: float, text: str) -> None:
    assert shown(value) == text


def test_a_report_is_printed_and_written_and_lost_records_fail_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    good = Report("good", [Figure("rate", 2e6, "records/s"), *exactness(0, 0)], {"rounds": 3})
    run_benchmark(lambda progress: good, file)
    written = json.loads(file.read_text())
    assert written["figures"]["rate"]["value"] == 2e6 and written["settings"]["rounds"] == 3
    output = capsys.readouterr().out
    assert "2.00 M records/s" in output and "spread" not in output
    with pytest.raises(typer.Exit) as ended:
        run_benchmark(lambda progress: Report("bad", exactness(lost=1, duplicated=0)), file)
    assert ended.value.exit_code == 1
    assert "lost: 1, must be at most 0" in capsys.readouterr().out


def test_parts_that_were_measured_before_stay_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    for name in ("first", "second"):
        run_benchmark(
            lambda progress, name=name: Report("r", [Figure(name, 1)]), file, keep_earlier=True
        )  # type: ignore[misc]
    assert json.loads(file.read_text())["figures"].keys() == {"first", "second"}


def test_two_figures_of_one_name_are_refused() -> None:
    with pytest.raises(AssertionError, match="two figures"):
        Report("r", [Figure("a", 1), Figure("a", 2)]).to_json()
