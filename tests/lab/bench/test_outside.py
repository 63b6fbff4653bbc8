"""Output that is timed outside the pipeline, by a real Kafka broker."""

import time
from pathlib import Path

import polars as pl
import pytest

import everstream as es
from everstream.errors import UserError
from everstream_lab.bench.connectors.kafka_server import LocalKafka
from everstream_lab.bench.protocols.grid import Cell, Setting
from everstream_lab.bench.protocols.measure import Measured, measure
from everstream_lab.bench.protocols.outside import observer
from everstream_lab.bench.workloads.inputs import DUE
from tests.kafka_server import install_kafka

LATE_S = 30


def test_a_broker_times_every_record_from_when_it_was_due(tmp_path: Path) -> None:
    install_kafka()
    due_us = int((time.time() - LATE_S) * 1e6)
    with observer(tmp_path / "kafka") as outside:
        began_s = time.time()
        pipeline = es.Pipeline("observed")
        rows = pipeline.source(es.Range(1_000, column="n", batch=100))
        due = rows.with_columns(pl.lit(due_us).alias(DUE))
        due.select("n").collect()
        outside.watch(due)
        result = pipeline.run(engine="local", store=tmp_path / "store")
        found = outside.arrivals()
        ended_s = time.time()
    assert len(result.collected()) == 1_000
    assert found.records.sum() == 1_000
    assert (found.due_s == due_us / 1e6).all()
    assert (found.at_s >= began_s - 1).all() and (found.at_s <= ended_s + 1).all()
    assert found.latency().mean_s > LATE_S - 1


def test_without_a_broker_the_error_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalKafka, "missing", staticmethod(lambda: "install Kafka"))
    with pytest.raises(UserError, match="needs a broker: install Kafka"), observer(tmp_path):
        pass


@pytest.mark.long
def test_a_protocol_with_a_kill_is_measured_outside_and_its_output_is_exact() -> None:
    install_kafka()
    short = Setting(run_s=4.0, kill_s=2.0, warm_up_s=0.5, speed=0.1)
    cell = Cell("nexmark-2-half", "uncoordinated", 0.5, failure=True, at="kafka")
    assert cell.key.endswith("/kafka")
    found = measure(cell, short, "local[2]")
    assert (found.lost, found.duplicated, found.untrue) == (0, 0, 0)
    assert found.output_per_s > 0
    assert Measured.from_json(found.to_json()) == found
