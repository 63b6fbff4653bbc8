"""The bench of both engines, small: it runs, and every figure is there."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream.errors import RunFailed, UserError
from everstream_lab.bench import engine_losses, engine_starts, engines, native
from everstream_lab.bench.report import Figure, Report, with_earlier
from tests.spark import MASTER

STARTS = ("first run to first record", "later run to first record")
LATENCIES = tuple(f"latency {share} at 1,000/s" for share in ("p50", "p99", "p99.9"))


class Wrong(native.NativeWordCount):
    """As if one count were missing."""

    def expected(self) -> int:
        return super().expected() + 1


@pytest.mark.long
def test_lost_caches_and_killed_workers_are_measured_in_one_run() -> None:
    found = engine_losses.measure(state_bytes=4 << 20, master=MASTER)
    epoch, *longer = found
    assert epoch.value > 0 and all(figure.target is not None for figure in longer)


def test_native_windows_want_bids_that_fill_a_second() -> None:
    with pytest.raises(UserError, match="such as 250000"):
        native.NativeWindowedCount(300_000)


@pytest.mark.long
def test_native_counts_are_measured_and_wrong_ones_refused() -> None:
    assert native.measure(native.NativeWordCount(1000), MASTER) > 0
    assert native.measure(native.NativeWindowedCount(1000), MASTER) > 0
    assert native.measure(native.TransformedWordCount(1000), MASTER) > 0
    with pytest.raises(RunFailed, match="was expected"):
        native.measure(Wrong(1000), MASTER)


def test_parts_that_were_measured_one_by_one_make_one_file() -> None:
    floors = Report("engines", [Figure("epoch floor", 1.0), Figure("word_count", 8)]).to_json()
    words = Report("engines", [Figure("word_count", 9)], {"every_s": 1.0}).to_json()
    both = with_earlier(floors, words)
    values = {name: figure["value"] for name, figure in both["figures"].items()}
    assert values == {"epoch floor": 1.0, "word_count": 9}
    assert both["settings"]["every_s"] == 1.0


def test_a_part_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match="no part words: say one of starts"):
        engines.measure(parts=["words"])


def test_one_table_has_a_row_for_each_quantity_and_a_column_for_each_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "engines.json"
    values = {"tasks": 5.0, "microbatch": 6.0, "local": 7.0}

    def measured(quantity: str) -> Report:
        figures = [Figure(f"{quantity}, {engine}", value) for engine, value in values.items()]
        return Report("engines", [*figures, Figure("epoch floor, keyed", 9)])

    for part in ("first run to first record", "idle, all Python"):
        monkeypatch.setattr(engines, "measure", lambda part=part, **sizes: measured(part))
        done = CliRunner().invoke(
            app,
            ["bench", "engines", "--only", "starts", "--json", str(file)],
            env={"COLUMNS": "200"},
        )
        assert done.exit_code == 0, done.output
    table = done.output[done.output.index("by engine") :]
    cells = [[cell.strip() for cell in line.split("│")] for line in table.splitlines()]
    assert [*table.splitlines()[0].replace("┃", " ").split()][2:] == list(values)
    assert [row[1:5] for row in cells if len(row) > 4] == [
        ["first run to first record", "5", "6", "7"],  # measured before, and in the file
        ["idle, all Python", "5", "6", "7"],
    ]


def test_the_time_to_the_first_record_is_measured_in_a_new_python() -> None:
    first, later = engine_starts.measure("local", MASTER)
    assert first.value > 0 and later.value > 0
    assert len(later.repetitions) == engine_starts.LATER_RUNS


@pytest.mark.long
def test_the_command_compares_all_engines_and_native_streaming(tmp_path: Path) -> None:
    file = tmp_path / "engines.json"
    sizes = ["--bids", "50000", "--words", "20000", "--windowed-bids", "50000", "--state-mb", "4"]
    rounds = ["--rounds", "1", "--seconds", "1"]
    small = ["--native-words", "1000", "--native-bids", "1000"]
    done = CliRunner().invoke(
        app,
        ["bench", "engines", *rounds, *sizes, *small, "--json", str(file)],
    )
    assert done.exit_code == 0, done.output
    written = json.loads(file.read_text())
    figures = written["figures"]
    assert {"epoch floor, stateless", "epoch floor, keyed"} <= figures.keys()
    for engine in ("tasks", "microbatch", "local"):
        for quantity in (*STARTS, *LATENCIES, "worker killed until restored"):
            assert figures[f"{quantity}, {engine}"]["value"] > 0
        assert figures[f"idle, all Python, {engine}"]["value"] > 0
        assert (figures[f"idle, Java, {engine}"]["value"] > 0) is (engine != "local")
    for name in ("nexmark_2", "word_count", "windowed_count"):
        assert figures[f"{name}, microbatch"]["ratio"] > 0
        assert figures[f"{name}, local"]["ratio"] > 0
    against = {name for name in figures if name.endswith("against native")}
    assert against == {"word_count, against native", "windowed_count, against native"}
    assert written["settings"]["state_bytes"] == 4 << 20
    assert "against native" in done.output
