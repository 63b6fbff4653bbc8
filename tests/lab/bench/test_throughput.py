"""The throughput bench, small: it runs, its checks pass on right output and fail on wrong."""

import dataclasses
import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream.engine.run import run
from everstream.errors import RunFailed
from everstream_lab.bench.throughput import (
    Load,
    Selection,
    WindowedCount,
    WordCount,
    measure_one,
)
from tests.spark import MASTER

LOADS = [Selection(50_000), Selection(50_000, divisor=2), WordCount(50_000), WindowedCount(250_000)]


@pytest.mark.parametrize("load", LOADS, ids=lambda load: type(load).__name__)
def test_a_load_is_measured_and_its_output_is_right(load: Load) -> None:
    took_s, checkpoints = measure_one(load, every_s=1.0, master=MASTER)
    assert took_s > 0
    assert checkpoints >= 1


@pytest.mark.parametrize("load", LOADS, ids=lambda load: type(load).__name__)
def test_output_that_lacks_a_row_or_has_one_twice_is_refused(load: Load) -> None:
    result = run(load.pipeline(), master=MASTER, workers=2)
    rows = result.to_polars()
    for wrong in (rows[1:], pl.concat([rows, rows[:1]])):
        with pytest.raises(RunFailed, match="wrong"):
            load.check(dataclasses.replace(result, outputs={"collect": [wrong]}))


def test_the_word_counts_check_finds_counts_that_only_add_up() -> None:
    load = WordCount(50_000)
    result = run(load.pipeline(), master=MASTER, workers=2)
    rows = result.to_polars()
    # 3 and 5 become 4 and 4: as many rows, the same greatest count, the same sum.
    swapped = rows.with_columns(
        pl.when((pl.col("word") == "w0") & pl.col("count").is_in([3, 5]))
        .then(pl.lit(4, pl.Int64))
        .otherwise("count")
        .alias("count")
    )
    with pytest.raises(RunFailed, match="wrong"):
        load.check(dataclasses.replace(result, outputs={"collect": [swapped]}))


@pytest.mark.long  # ten runs, half of them on Spark
def test_the_command_prints_the_peers_beside_and_writes_the_figures(tmp_path: Path) -> None:
    file = tmp_path / "throughput.json"
    sizes = ["--bids", "100000", "--words", "20000", "--windowed-bids", "100000"]
    done = CliRunner().invoke(
        app, ["bench", "throughput", "--rounds", "1", *sizes, "--json", str(file)]
    )
    assert done.exit_code == 0, done.output
    assert "PyFlink" in done.output
    figures = json.loads(file.read_text())["figures"]
    for name in ("nexmark_2", "nexmark_2_half", "word_count", "word_count_long", "windowed_count"):
        assert figures[name]["value"] > 0 and figures[name]["unit"] == "records/s"
        assert figures[name]["repetitions"] == [figures[name]["value"]]
        assert figures[f"{name}, microbatch"]["ratio"] > 0
