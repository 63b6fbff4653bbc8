"""From runs to tables, comparisons, charts and pages."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from everstream.errors import UserError
from everstream_lab.apps.cycle.benchmarks import Planned
from everstream_lab.apps.cycle.charts import Chart, Series, ticks
from everstream_lab.apps.cycle.outcome import Outcome, latency_table, outcome_of, watched_table
from everstream_lab.apps.cycle.page import common, labels, report, verdict
from everstream_lab.apps.cycle.results import names, read_tables, sides, write_tables
from everstream_lab.apps.cycle.settings import Settings
from everstream_lab.apps.interfaces.job import Done, Stamps

SEEN = {
    "timestamp": [100.0, 101.0, 102.0], "elapsed_s": [1.0, 2.0, 3.0], "records": [0, 0, 1],
    "process_cpu_percent": [None, 90.0, 110.0], "process_memory_kb": [1000, 3000, 2000],
    "cpu_percent": [50.0, 60.0, 70.0], "memory_used_kb": [5000, 5000, 5000],
    "memory_baseline_used_kb": [4000, 4000, 4000],
    "throughput_average": [None, None, 0.3], "throughput_instant": [None, None, 1.0],
    "latency_average_ms": [None, None, None], "latency_instant_ms": [None, None, None],
    "target_frequency": [None, 2.0, 2.0], "batch_size": [None, 2.0, 2.0],
}  # fmt: skip


def stamps() -> Stamps:
    """Four items: two done in the second second, two in the third."""
    began = np.array([0.0, 0.5, 1.0, 1.5]) * 1e9
    ended = np.array([1.5, 2.0, 2.5, 3.0]) * 1e9
    took = np.array([[1e6, 2e6]] * 4)
    return Stamps(
        ("source", "square"), began.astype(np.int64), took.astype(np.int64), ended.astype(np.int64)
    )


def outcome(
    items_per_s: float, interface: str = "everstream", repeat: int = 0, **more: Any
) -> Outcome:
    planned = Planned(
        more.pop("number", repeat), f"tiny-{interface}", "tiny", interface, "test",
        more.pop("workers", 2), 1, repeat, Settings(),
    )  # fmt: skip
    return Outcome(planned, 60, 60 / items_per_s, items_per_s, more.pop("exact", True), **more)


def test_an_outcome_tells_latency_cpu_and_memory() -> None:
    done = Done(4, 2.0, stamps=stamps(), monitored=pl.DataFrame(SEEN))
    planned = outcome(1.0).planned
    found = outcome_of(planned, done, True)
    assert found.items_per_s == 2.0
    assert (found.latency_min_ms, found.latency_ms, found.latency_max_ms) == (1500, 1500, 1500)
    assert found.operators_ms == {"source": 1.0, "square": 2.0}
    assert (found.cpu_percent, found.memory_kb) == (100.0, 3000)
    assert Outcome.from_json(found.to_json()) == found


def test_a_latency_table_has_a_row_per_item_and_a_column_per_operator() -> None:
    table = latency_table(3, stamps(), 0)
    assert table.columns == [
        *("run", "item", "began_s", "ended_s", "source_ms", "square_ms", "latency_ms"),
        "overtaken",
    ]
    assert table.height == 4 and table["latency_ms"].to_list() == [1500.0] * 4


def test_items_that_a_sink_sees_only_as_a_sum_are_counted_by_their_times() -> None:
    done = Done(4, 2.0, stamps=stamps(), monitored=pl.DataFrame(SEEN))
    table = watched_table(0, done)
    assert table["throughput_instant"].to_list() == [0.0, 2.0, 2.0]
    assert table["throughput_average"].to_list() == pytest.approx([0.0, 1.0, 4 / 3])
    assert table["latency_instant_ms"].to_list() == [None, 1500.0, 1500.0]
    assert table["memory_kb"].to_list() == [1000.0, 3000.0, 2000.0]
    assert table["machine_cpu_percent"].to_list() == [50.0, 60.0, 70.0]
    assert table["elapsed_s"].to_list() == [0.0, 1.0, 2.0]


def test_what_the_monitor_saw_before_the_workers_were_ready_does_not_count() -> None:
    done = Done(4, 1.0, stamps=stamps(), monitored=pl.DataFrame(SEEN))
    assert watched_table(0, done)["elapsed_s"].to_list() == [0.0, 1.0]
    begun = Done(4, 1.0, monitored=pl.DataFrame(SEEN), began_s=1.5)
    assert watched_table(0, begun)["elapsed_s"].to_list() == [0.5, 1.5], "if that is known"
    assert outcome_of(outcome(1.0).planned, done, True).memory_kb == 3000


def test_tables_are_written_as_csv_and_parquet_and_their_pieces_are_gone(tmp_path: Path) -> None:
    done = Done(4, 2.0, stamps=stamps(), monitored=pl.DataFrame(SEEN))
    for run in (0, 1):
        latency_table(run, stamps(), 0).write_parquet(tmp_path / f"latency-{run:04d}.parquet")
        watched_table(run, done).write_parquet(tmp_path / f"monitor-{run:04d}.parquet")
    outcomes = [outcome(9.0), outcome(11.0, repeat=1)]
    tables = write_tables(outcomes, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{kind}"
        for name in ("general", "parallelism", "monitor", "latency")
        for kind in ("csv", "parquet")
    }
    (row,) = tables["parallelism"].to_dicts()
    assert row["throughput"] == 10.0 and row["repeats"] == 2
    assert row["throughput_deviation"] == pytest.approx(math.sqrt(2))
    assert tables["latency"]["run"].to_list() == [0] * 4 + [1] * 4
    assert read_tables(tmp_path)["general"].equals(tables["general"])
    assert pl.read_csv(tmp_path / "general.csv")["throughput"].to_list() == [9.0, 11.0]


def test_sides_are_compared_with_their_base_with_intervals() -> None:
    runs = [outcome(10.0 + n, "sequential", n, workers=1) for n in range(3)]
    runs += [outcome(20.0 + 2 * n, repeat=n) for n in range(3)]
    base, ours = sides(runs)
    assert base.is_base and base.against.ratio == 1.0
    assert ours.against.ratio == pytest.approx(2.0)
    low, high = ours.against.low, ours.against.high
    assert low is not None and high is not None and low < 2.0 < high
    assert ours.to_json()["throughput"]["mean"] == 22.0
    assert sides(runs, "everstream-2")[0].against.ratio == pytest.approx(0.5)
    with pytest.raises(UserError, match="everstream-2"):
        sides(runs, "threads")
    assert names([base, ours]) == ["sequential", "everstream"]
    more = sides([*runs, outcome(30.0, workers=4, number=9)])
    called = ["sequential", "everstream, 2 worker(s)", "everstream, 4 worker(s)"]
    assert names(more) == called


def test_a_wrong_result_is_never_called_right() -> None:
    assert verdict([outcome(1.0), outcome(1.0, exact=False)]) == (
        "1 of 2 results differ from the sequential program's",
        False,
    )
    assert verdict([outcome(1.0)])[1] is True
    assert "not compared" in verdict([outcome(1.0, exact=None)])[0]


def test_a_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    outcomes = [outcome(10.0 * n, workers=n, number=n - 1, latency_ms=1.0 / n) for n in (1, 2)]
    done = Done(4, 2.0, stamps=stamps(), monitored=pl.DataFrame(SEEN))
    for run in (0, 1):
        watched_table(run, done).write_parquet(tmp_path / f"monitor-{run:04d}.parquet")
    text = report("tiny & more", outcomes, write_tables(outcomes, tmp_path)).html()
    assert "tiny &amp; more" in text and "prefers-color-scheme: dark" in text
    assert not re.search(r"(src|href)=|https?://|url\(|@import", text)
    titles = re.findall(r'aria-label="(.*?)"', text)
    over_time = ["throughput over time", "latency over time", "CPU over time", "memory over time"]
    assert titles == ["throughput by workers", "latency by workers", *over_time]


def test_a_page_of_several_applications_has_charts_for_each_and_marks_their_kills(
    tmp_path: Path,
) -> None:
    steps = dict.fromkeys(("detected_ms", "restarted_ms", "restored_ms", "replayed_ms"), 12.0)
    kill = {"at_s": 1.5, **steps, "caught_up_ms": None, "records_replayed": 1_234}
    outcomes = [outcome(10.0, number=n, notes=["it said so"]) for n in (0, 1)]
    outcomes[0].recoveries = [kill]
    outcomes[1].planned = replace(outcomes[1].planned, application="other", batch=100)
    done = Done(4, 2.0, stamps=stamps(), monitored=pl.DataFrame(SEEN))
    for run in (0, 1):
        watched_table(run, done).write_parquet(tmp_path / f"monitor-{run:04d}.parquet")
    text = report("two", outcomes, write_tables(outcomes, tmp_path)).html()
    assert re.findall("<h3>(.*?)</h3>", text) == ["tiny", "other"]
    assert text.count('aria-label="throughput over time"') == 2
    assert "By batch" not in text, "each application has one"
    assert text.count('class="mark"') == 4, "one in each chart of the application that was killed"
    row = "<td>tiny</td><td>1.50</td>" + 4 * "<td>12</td>" + "<td>-</td><td>1,234</td>"
    assert row in text, "a step that never came is no zero"
    assert "tiny: it said so" in text and "other: it said so" in text


def test_runs_are_called_by_what_tells_them_apart() -> None:
    same = [outcome(1.0), outcome(1.0, repeat=1)]
    assert labels(same) == {0: "tiny", 1: "tiny, repeat 2"}
    assert common(same) == "Everstream, 2 workers, batch 1, input test."
    other = outcome(1.0, number=1)
    other.planned = replace(other.planned, application="other", batch=100)
    assert labels([same[0], other]) == {0: "tiny", 1: "other"}, "the batch is the application's"
    differ = [outcome(1.0, number=0, workers=1), outcome(1.0, "threads", number=1)]
    assert labels(differ) == {0: "tiny, everstream, 1 worker", 1: "tiny, threads, 2 workers"}


def test_a_chart_has_a_curve_for_each_series_and_bars_for_deviations() -> None:
    series = [Series("a", [(1, 5.0), (2, 8.0)], [1.0, 0.0]), Series("b", [(1, math.nan)])]
    drawn = Chart("t", "workers", "items", series).svg()
    assert drawn.count("<polyline") == 1 and drawn.count("<circle") == 2
    assert len(re.findall(r'<line stroke="var\(--s0\)"', drawn)) == 1
    steps = [(float(at), 1.0) for at in (0, 1, 2, 3, 30, 31)]
    drawn = Chart("t", "seconds", "items", [Series("a", steps)]).svg()
    assert drawn.count('<polyline class="curve" ') == 2
    assert drawn.count('<polyline class="curve gap" ') == 1
    assert "nothing was measured" in Chart("t", "x", "y", [Series("a", [])]).svg()
    assert ticks(0, 0.03)[-1] >= 0.03 and ticks(1, 4, whole=True) == [1, 2, 3, 4]
