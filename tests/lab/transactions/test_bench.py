"""The bench kills a real process and comes back with checked facts."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
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
