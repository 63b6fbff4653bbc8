"""The bench kills a real process and comes back with checked facts."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream.errors import RunFailed
from everstream_lab.bench.transactions import sharded, studies
from everstream_lab.bench.transactions.child import peak_bytes
from everstream_lab.bench.transactions.journal import InputJournal
from everstream_lab.bench.transactions.measure import Bench, Untrue
from everstream_lab.bench.transactions.sink import OutcomeSink, read_outcomes
from everstream_lab.bench.transactions.studies import Plan, base_of


def plan(folder: Path) -> Plan:
    return Plan(
        folder=folder,
        workloads=["toll"],
        schemes=["delta"],
        events=1_200,
        threads=2,
        epoch_events=200,
        operation_cost_s=0.0,
        recoveries=1,
        runs=1,
        verify=True,
        spare=False,
        patience=1,
        seed=3,
        knobs={"keys": 20},
    )


def test_a_wrong_recovery_would_be_noticed(tmp_path: Path) -> None:
    base = replace(base_of(plan(tmp_path), "toll"), scheme="fast")
    bench = Bench(base, verify=True, progress=lambda text: None)
    facts = bench.measure(base, recoveries=1)
    assert facts["recovery"]["true"]
    assert facts["recovery"]["resumed_at"] <= base.crash_event
    assert bench._truth is not None
    bench._truth.verdicts[5] ^= True
    report = tmp_path / "toll" / "recover.json"
    with pytest.raises(Untrue, match="outcomes differ"):
        bench._check(base, report)
    bench._truth.tables["vehicles"][0] = -1
    with pytest.raises(Untrue, match="table vehicles"):
        bench._check(base, report)


def test_the_command_writes_facts_and_a_page(tmp_path: Path) -> None:
    command = (
        "bench transactions --workload toll --scheme none --scheme delta --events 1200 --keys 20 "
        f"--epoch-events 200 --operation-cost-us 0 --recoveries 1 --patience 1 --spare --study compare "
        f"--json {tmp_path}/f.json --html {tmp_path}/f.html"
    )
    result = CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    facts = json.loads((tmp_path / "f.json").read_text())
    assert [row["scheme"] for row in facts["compare"]] == ["none", "delta"]
    assert all(row["recovery"]["true"] for row in facts["compare"])
    assert {"reload_s", "construct_s", "execute_s", "abort_s", "explore_s", "wait_s"} == set(
        facts["compare"][1]["recovery"]["breakdown"]
    )
    page = (tmp_path / "f.html").read_text()
    assert page.count("data:image/png") == 2


def test_the_sink_cuts_what_was_not_committed_and_what_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "outcomes"
    sink = OutcomeSink(path)
    for first in (0, 10, 20):
        sink.prepare(first, np.arange(10) % 2 == 0)
    sink.close()
    path.write_bytes(path.read_bytes()[:-1])
    sink = OutcomeSink(path)
    sink.keep_until(20)
    sink.prepare(20, np.ones(10, np.bool_))
    sink.keep_until(30)
    sink.close()
    events, verdicts = read_outcomes(path)
    assert events.tolist() == list(range(30))
    assert verdicts[20:].all() and not verdicts[1]


def test_input_events_are_durable_and_a_torn_batch_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "inputs.journal"
    events = pl.DataFrame({"key": range(30), "name": [f"n{n}" for n in range(30)]})
    journal = InputJournal(path)
    assert journal.read(0, 1) is None
    for first in (0, 10, 20):
        journal.append(first, events[first : first + 10])
    journal.close()
    path.write_bytes(path.read_bytes()[:-1])
    journal = InputJournal(path)
    assert journal.next_event == 20 and journal.read(5, 21) is None
    found = journal.read(5, 20)
    assert found is not None and found.equals(events[5:20])
    journal.append(15, events[15:30])
    journal.close()
    found = InputJournal(path).read(0, 30)
    assert found is not None and found.equals(events)


@pytest.mark.parametrize(
    ("scheme", "kept"),
    [
        ("fast", True),
        pytest.param("checkpoint", True, marks=pytest.mark.long),
        pytest.param("wal", False, marks=pytest.mark.long),
    ],
)
def test_schemes_that_process_events_again_persist_them(
    scheme: str, kept: bool, tmp_path: Path
) -> None:
    base = replace(base_of(plan(tmp_path), "toll"), scheme=scheme)
    facts = Bench(base, verify=True, progress=lambda text: None).measure(base, recoveries=1)
    assert facts["recovery"]["true"]
    journal = tmp_path / "toll" / "own" / "inputs.journal"
    assert journal.exists() is kept
    if kept:
        assert InputJournal(journal).next_event == base.events


def test_the_memory_of_a_process_is_not_that_of_the_one_that_started_it() -> None:
    ballast = bytearray(600 << 20)
    code = (
        "from everstream_lab.bench.transactions.child import peak_bytes; "
        "held = bytearray(50 << 20); print(peak_bytes())"
    )
    found = int(subprocess.check_output([sys.executable, "-c", code]))
    assert peak_bytes() > len(ballast)
    assert 50 << 20 < found < 600 << 20


@pytest.mark.long
def test_epochs_and_selective_logging_are_studied(tmp_path: Path) -> None:
    small = replace(plan(tmp_path), knobs={"keys": 200})
    rows = studies.commit_epochs(small, lambda text: None, ["HSMD"], [100, 200])
    assert [row["epoch_events"] for row in rows] == [100, 200]
    assert all(row["recovery"]["true"] and row["recovered_per_s"] > 0 for row in rows)
    rows = studies.selective_logging(small, lambda text: None, [0.5])
    assert [row["logging"] for row in rows] == ["full", "selective"]
    assert all(row["efficiency"] > 0 and row["recovery"]["true"] for row in rows)


def test_transactions_over_shards_are_measured_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(plan(tmp_path), events=300)
    one, two = sharded.shards(small, (1, 2), (0.5,), lambda text: None)
    assert (one["over_shards"], one["busiest_share"]) == (0.0, 1.0)
    assert 0.1 < two["over_shards"] < 0.5
    assert two["busiest_share"] < 0.8
    monkeypatch.setattr(sharded.Interpreter, "run", lambda self, events: [])
    with pytest.raises(RunFailed, match="differ from those of a loop"):
        sharded.shards(small, (1,), (0.0,), lambda text: None)
