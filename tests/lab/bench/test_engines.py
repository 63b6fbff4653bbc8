"""The bench of both engines, small: it runs, and every figure is there."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream.errors import RunFailed, UserError
from everstream_lab.bench import engine_losses, engines, native
from everstream_lab.bench.report import Figure, Report, with_earlier
from tests.spark import MASTER


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


@pytest.mark.long
def test_the_command_compares_all_engines_and_native_streaming(tmp_path: Path) -> None:
    file = tmp_path / "engines.json"
    sizes = ["--bids", "50000", "--words", "20000", "--windowed-bids", "50000", "--state-mb", "4"]
    small = ["--native-words", "1000", "--native-bids", "1000"]
    done = CliRunner().invoke(
        app, ["bench", "engines", "--rounds", "1", *sizes, *small, "--json", str(file)]
    )
    assert done.exit_code == 0, done.output
    written = json.loads(file.read_text())
    figures = written["figures"]
    assert {"epoch floor, stateless", "epoch floor, keyed"} <= figures.keys()
    for engine in ("tasks", "microbatch", "local"):
        assert figures[f"start, {engine}"]["value"] > 0
        assert figures[f"worker killed until restored, {engine}"]["value"] > 0
    for name in ("nexmark_2", "word_count", "windowed_count"):
        assert figures[f"{name}, microbatch"]["ratio"] > 0
        assert figures[f"{name}, local"]["ratio"] > 0
    against = {name for name in figures if name.endswith("against native")}
    assert against == {"word_count, against native", "windowed_count, against native"}
    assert written["settings"]["state_bytes"] == 4 << 20
    assert "against native" in done.output
