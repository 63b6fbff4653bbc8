"""The bench of both engines, small: it runs, and every figure is there."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everstream.bench import engine_losses, engines, native
from everstream.cli import app
from everstream.errors import RunFailed, UserError

MASTER = "local[2]"


class Wrong(native.NativeWordCount):
    """As if one count were missing."""

    def expected(self) -> int:
        return super().expected() + 1


@pytest.mark.long
def test_lost_caches_and_killed_workers_are_measured_in_one_run() -> None:
    found = engine_losses.measure(state_bytes=4 << 20, master=MASTER)
    assert found.epoch_s > 0
    assert set(found.to_json()) == {"epoch_s", "caches_lost_s", "worker_killed_s", "state_bytes"}


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
    floors = {"floor_ms": {"keyed": 1.0}, "cores": 2}
    words = {"ratio": {"word_count": 0.8}, "details": {"word_count": {"records": 5}}, "cores": 2}
    bids = {"ratio": {"nexmark_2": 0.9}, "details": {"nexmark_2": {"records": 7}}, "cores": 2}
    assert engines.together(engines.together(floors, words), bids) == {
        "floor_ms": {"keyed": 1.0},
        "ratio": {"word_count": 0.8, "nexmark_2": 0.9},
        "details": {"word_count": {"records": 5}, "nexmark_2": {"records": 7}},
        "cores": 2,
    }


def test_a_part_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match="no part words: say one of floors"):
        engines.measure(parts=["words"])


@pytest.mark.long
def test_the_command_compares_both_engines_and_native_streaming(tmp_path: Path) -> None:
    file = tmp_path / "engines.json"
    sizes = ["--bids", "50000", "--words", "20000", "--windowed-bids", "50000", "--state-mb", "4"]
    small = ["--native-words", "1000", "--native-bids", "1000"]
    done = CliRunner().invoke(
        app, ["bench", "engines", "--rounds", "1", *sizes, *small, "--json", str(file)]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    assert set(found["floor_ms"]) == {"stateless", "keyed"}
    assert set(found["ratio"]) == {"nexmark_2", "word_count", "windowed_count"}
    assert all(ratio > 0 for ratio in found["ratio"].values())
    assert set(found["times_native"]) == {"word_count", "windowed_count"}
    assert found["losses"]["state_bytes"] == 4 << 20
    assert "against native" in done.output
