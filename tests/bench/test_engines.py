"""The bench of both engines, small: it runs, and every figure is there."""

import json
from pathlib import Path

from typer.testing import CliRunner

from everstream.cli import app


def test_the_command_compares_both_engines_and_native_streaming(tmp_path: Path) -> None:
    file = tmp_path / "engines.json"
    sizes = ["--bids", "50000", "--words", "20000", "--windowed-bids", "50000", "--state-mb", "4"]
    native = ["--native-words", "2000", "--native-bids", "2000"]
    done = CliRunner().invoke(
        app, ["bench", "engines", "--rounds", "1", *sizes, *native, "--json", str(file)]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    assert set(found["floor_ms"]) == {"stateless", "keyed"}
    assert set(found["ratio"]) == {"nexmark_2", "word_count", "windowed_count"}
    assert all(ratio > 0 for ratio in found["ratio"].values())
    assert set(found["times_native"]) == {"word_count", "windowed_count"}
    assert found["losses"]["state_bytes"] == 4 << 20
    assert "against native" in done.output
