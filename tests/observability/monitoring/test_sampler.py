"""The monitor in virtual time: what it says follows from the sums it was given, to the digit."""

import os
from pathlib import Path

import polars as pl
import pytest

import everstream as es
from everstream.core.measuring import Histogram, Meter
from everstream.observability.monitoring.sheet import Sheet, read_sheet
from tests.spark import MASTER

SPBENCH = {
    *("timestamp", "cpu_percent", "memory_used_kb", "throughput_average", "throughput_instant"),
    *("latency_average_ms", "latency_instant_ms", "target_frequency", "batch_size"),
}
SPOT = {
    *("machine", "process", "memory_total_kb", "memory_free_kb", "memory_available_kb"),
    *("core_0_percent", "process_cpu_percent", "process_memory_kb"),
}


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def watched(clock: Clock, **options: object) -> es.Monitor:
    return es.Monitor("100ms", clock=clock, **options)  # type: ignore[arg-type]


def test_a_row_has_the_columns_of_spbench_and_of_spot() -> None:
    monitor = watched(Clock())
    monitor.sample()
    row = monitor.table().row(0, named=True)
    assert row.keys() >= SPBENCH | SPOT
    assert 0 <= row["cpu_percent"] <= 100
    assert row["process"] == os.getpid()
    assert 0 < row["process_memory_kb"] < row["memory_total_kb"]
    assert row["memory_available_kb"] <= row["memory_total_kb"]


def test_instant_values_are_of_the_window_and_averages_of_the_whole_time() -> None:
    clock = Clock()
    monitor = watched(clock, window="200ms")
    monitor.sample()
    for step in range(1, 11):
        clock.now_s = step / 10
        slow = step > 8
        monitor.done(records=10 if slow else 50, latency_s=0.2 if slow else 0.01)
        monitor.sample()
    last = monitor.table().row(-1, named=True)
    assert last["records"] == 8 * 50 + 2 * 10
    assert last["throughput_average"] == pytest.approx(420)
    assert last["throughput_instant"] == pytest.approx(100)
    assert last["latency_instant_ms"] == pytest.approx(200)
    assert last["latency_average_ms"] == pytest.approx(
        1000 * (400 * 0.01 + 20 * 0.2) / 420, abs=1e-3
    )
    assert last["batch_size"] == pytest.approx(10)


def test_a_part_that_begins_anew_takes_nothing_back() -> None:
    clock = Clock()
    monitor = watched(clock)
    monitor.heard("sink/0", Meter(batches=4, records=400, timed=400, waited_s=4.0))
    monitor.heard("sink/1", Meter(batches=1, records=7))
    monitor.heard("sink/0", Meter(batches=1, records=30, timed=30, waited_s=3.0))
    clock.now_s = 1.0
    monitor.sample()
    last = monitor.table().row(-1, named=True)
    assert last["records"] == 437
    assert last["latency_average_ms"] == pytest.approx(7000 / 430, abs=1e-3)


def test_quantiles_are_of_what_came_out_just_now() -> None:
    clock = Clock()
    monitor = watched(clock)
    monitor.done(records=100, latency_s=5.0)
    clock.now_s = 1.0
    monitor.sample()
    before = Histogram()
    before.add(0.002, 50)
    monitor.heard("sink/0", Meter(records=50, timed=50, latency={"out": before}))
    after = Histogram()
    after.add(0.010, 90)
    after.add(0.300, 10)
    monitor.heard("sink/0", Meter(records=40, timed=40, latency={"out": after}))  # began anew
    clock.now_s = 2.0
    monitor.sample()
    last = monitor.table().row(-1, named=True)
    assert last["latency_p50_ms"] == pytest.approx(10, rel=0.1)
    assert last["latency_p95_ms"] == pytest.approx(300, rel=0.1)
    assert last["latency_p99_ms"] == pytest.approx(300, rel=0.1)


def test_loads_of_the_sources_are_added_up() -> None:
    monitor = watched(Clock())
    monitor.heard("a", Meter(target_per_s=100.0, behind=3.0))
    monitor.heard("b", Meter(target_per_s=50.0, behind=4.0, forfeited=2.0))
    monitor.sample()
    last = monitor.table().row(-1, named=True)
    assert (last["target_frequency"], last["behind"], last["forfeited"]) == (150.0, 7.0, 2.0)


@pytest.mark.parametrize("name", ["run.csv", "run.parquet"])
def test_the_file_has_the_rows_of_the_table(name: str, tmp_path: Path) -> None:
    path = tmp_path / "figures" / name
    with es.Monitor("50ms", path) as monitor:
        monitor.done(records=5, latency_s=0.001)
    assert (
        read_sheet(path)
        .select("records", "elapsed_s")
        .equals(monitor.table().select("records", "elapsed_s"))
    )
    assert [file.name for file in path.parent.iterdir()] == [name]


def test_a_successor_goes_on_behind_the_last_whole_row(tmp_path: Path) -> None:
    for name in ("a.csv", "a.parquet"):
        first = Sheet(tmp_path / name)
        first.write({"t": 1, "x": 2})
        written = tmp_path / (name if name == "a.csv" else "a.parquet.rows")
        with written.open("a") as file:
            file.write("3,")  # killed in the middle of a row
        second = Sheet(tmp_path / name, append=True)
        second.write({"t": 5, "x": 6})
        second.close()
        assert read_sheet(tmp_path / name).rows() == [(1, 2), (5, 6)]


def test_a_new_monitor_replaces_what_an_earlier_run_left(tmp_path: Path) -> None:
    for _ in range(2):
        with es.Monitor("50ms", tmp_path / "run.csv"):
            pass
    began = read_sheet(tmp_path / "run.csv")["elapsed_s"].to_list()
    assert began == sorted(began)


def test_wrong_periods_windows_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(es.UserError, match="50ms"):
        es.Monitor("49ms")
    with pytest.raises(es.UserError, match="shorter"):
        es.Monitor("1s", window="500ms")
    with pytest.raises(es.UserError, match=r"\.csv or \.parquet"):
        es.Monitor(file=tmp_path / "run.txt")
    used = es.Monitor()
    with used:
        pass
    with pytest.raises(es.UserError, match="new one"):
        used.start()


def test_a_run_on_spark_fills_its_monitor(tmp_path: Path) -> None:
    pipeline = es.Pipeline("watched")
    numbers = pipeline.source(es.Paced(es.Range(1_000), rate=2_000), name="numbers")
    numbers.on_demand().map(abs).collect()
    result = pipeline.run(
        master=MASTER, workers=2, monitor=es.Monitor("50ms", tmp_path / "run.csv")
    )
    seen = result.monitored
    assert isinstance(seen, pl.DataFrame)
    assert seen["records"][-1] == 1_000
    assert seen["latency_average_ms"][-1] > 0
    assert seen["process_cpu_percent"].drop_nulls().max() > 0  # type: ignore[operator]
    assert seen["processes"].max() > 2, "Java and the workers are ours"  # type: ignore[operator]
    assert len(read_sheet(tmp_path / "run.csv")) == len(seen)
