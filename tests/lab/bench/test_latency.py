"""Latency at the sink: what is noted survives a kill, and the figures are those of the records."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstream.connectors.collect import Collect
from everstream.connectors.files.json_lines import JsonLines
from everstream.connectors.files.parts import owner_of
from everstream.core.permits import permit
from everstream.errors import UserError
from everstream.pipeline.sink import Delivery, SinkShard
from everstream.testing.sinks import check_sink
from everstream_lab.bench.latency import (
    Arrivals,
    Timed,
    quantiles,
    read_arrivals,
    wall_clock_s,
)
from everstream_lab.bench.recovery.recovery_time import recovery
from tests.lab.bench.arrivals import steady, with_outage


def records_in(sink_shard: SinkShard) -> list[Any]:
    folder = Path(sink_shard.store).parent / "out"
    parts = folder.glob(
        f"part-{owner_of(sink_shard.pipeline, sink_shard.operator)}-????-????????-g*.jsonl"
    )
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def sink_shard(folder: Path, shard: int = 0, generation: int = 1) -> SinkShard:
    return SinkShard("timed", "out", shard, 2, generation, str(folder / "store"))


def test_a_timed_sink_is_still_the_sink_it_wraps() -> None:
    check_sink(
        lambda place: Timed(JsonLines(f"{place}/out"), f"{place}/times", due="n", keep=True),
        lambda _, sink_shard: records_in(sink_shard),
    )


def test_arrivals_of_all_shards_and_generations_are_read_back_even_if_torn(tmp_path: Path) -> None:
    sink = Timed(Collect(), tmp_path / "times")
    sink.check()
    assert sink.delivery is Delivery.EXACTLY_ONCE
    began_s = time.time()
    for shard, generation, rows in ((0, 1, 5), (1, 1, 100), (1, 2, 3)):
        writer = sink.open(sink_shard(tmp_path, shard, generation))
        writer.recover((), permit(0))
        due_us = np.full(rows, round((began_s - 2.0) * 1e6))
        writer.write(pl.DataFrame({"n": range(rows), "due_us": due_us}))
        writer.close()
    with (tmp_path / "times" / "out-0000-1.arrivals").open("ab") as file:
        file.write(b"torn")
    arrivals = read_arrivals(tmp_path / "times")
    assert arrivals.records.sum() == pytest.approx(108)
    assert len(arrivals.at_s) == 5 + 16 + 3
    assert (arrivals.latency_s >= 2.0 - 1e-5).all()
    assert (np.diff(arrivals.at_s) >= 0).all()
    assert arrivals.latency().records == pytest.approx(108)


def test_the_due_column_is_dropped_before_the_sink_and_missed_if_it_is_not_there(
    tmp_path: Path,
) -> None:
    sink = Timed(Collect(), tmp_path / "times")
    sink.check()
    writer = sink.open(sink_shard(tmp_path))
    writer.recover((), permit(0))
    writer.write(pl.DataFrame({"n": [1], "due_us": [5]}))
    with pytest.raises(UserError, match="due_us"):
        writer.write(pl.DataFrame({"n": [1]}))
    transaction = writer.prepare(1)
    assert transaction is not None
    transaction.commit(permit(1))
    assert sink.results("timed", "out", str(tmp_path / "store"))[0].columns == ["n"]  # type: ignore[index, union-attr]
    sink.start_fresh("timed", "out", str(tmp_path / "store"), True)
    assert len(read_arrivals(tmp_path / "times").at_s) == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), min_size=1, max_size=40))
def test_quantiles_are_those_of_the_records_one_by_one(pairs: list[tuple[int, int]]) -> None:
    values = np.array([value for value, _ in pairs], dtype=np.float64)
    weights = np.array([weight for _, weight in pairs], dtype=np.float64)
    every = np.repeat(values, weights.astype(int))
    shares = (0.01, 0.5, 0.95, 0.99, 1.0)
    plain = np.quantile(every, shares, method="inverted_cdf")
    assert quantiles(values, weights, shares) == pytest.approx(list(plain))


def test_recovery_ends_when_the_backlog_is_worked_off() -> None:
    # Down for 2 s at full load, then at four times the rate: the backlog of 2 s is gone 2/3 s
    # later.
    run = with_outage(steady(0.05, 20), killed_s=10.0, back_s=12.0, speed=4.0)
    found = recovery(run, 10.0)
    assert found.before_s == pytest.approx(0.05, rel=0.01)
    assert found.worst_s > 1.8
    assert found.recovery_s == pytest.approx(2 + 2 / 3, abs=0.15)


def test_a_run_that_ends_before_it_is_back_has_no_recovery_time() -> None:
    run = with_outage(steady(0.05, 13), killed_s=10.0, back_s=12.9, speed=1.1)
    assert recovery(run, 10.0).recovery_s is None


def test_a_kill_nobody_notices_costs_as_long_as_a_record_usually_takes() -> None:
    assert recovery(steady(0.05, 20), 10.0).recovery_s == pytest.approx(0.05, rel=0.05)


def test_output_in_beats_is_judged_beat_by_beat() -> None:
    beats = np.arange(0, 40, 1.0)
    at_s = beats + 0.2
    late = (beats >= 20) & (beats < 25)
    at_s[late] = 25.2
    run = Arrivals(at_s, beats, np.full(len(beats), 30.0))
    found = recovery(run, 19.9, step_s=1.0, hold_s=2.0)
    assert found.recovery_s == pytest.approx(25.2 - 19.9, abs=1.0)


def test_without_output_before_the_kill_there_is_nothing_to_compare() -> None:
    with pytest.raises(UserError, match="kill later"):
        recovery(steady(0.05, 5), -1.0)


def test_a_curve_has_every_record_in_its_step() -> None:
    run = with_outage(steady(0.05, 20), killed_s=10.0, back_s=12.0, speed=4.0)
    curve = run.curve(0.5, 5.0, 18.0)
    assert len(curve.start_s) == 26
    assert (curve.records_per_s * 0.5).sum() == pytest.approx(run.between(5.0, 18.0).records.sum())
    down = (curve.start_s >= 10.5) & (curve.start_s < 12.0)
    assert (curve.records_per_s[down] == 0).all()
    assert np.isnan(curve.mean_s[down]).all()
    assert curve.records_per_s.max() == pytest.approx(4_000, rel=0.1)


def test_clocks_of_one_machine_can_be_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 5_000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    assert wall_clock_s(90.0) == 4_990.0


def test_a_difference_of_milliseconds_is_noise_unless_it_is_said_not_to_be() -> None:
    quick, slower = steady(0.002, 10), steady(0.006, 10)
    both = Arrivals(
        np.concatenate([quick.at_s, slower.at_s + 10]),
        np.concatenate([quick.due_s, slower.due_s + 10]),
        np.concatenate([quick.records, slower.records]),
    )
    assert recovery(both, 10.0).recovery_s == pytest.approx(0.006, rel=0.1)
    assert recovery(both, 10.0, slack_s=0.0).recovery_s is None
