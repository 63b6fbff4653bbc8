"""Arrivals that follow a load, and windows of time, in the kernel and in the SimPy version."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream.connectors.generate.load import PATTERNS, Load
from everstream_lab.queueing import model as m
from everstream_lab.queueing.graphs import parse_graph
from everstream_lab.queueing.reference import simulate_with_simpy
from everstream_lab.queueing.simulation import simulate

LINE = m.line(("clean", "count"), m.constant(1e-4), cpus=1)
LOADS = {
    **{name: Load(name, period=2.0, min=100, max=2000) for name in PATTERNS},
    "steady": Load(800),
    "function": Load(lambda at_s: 200 + 100 * at_s),
}


def under(load: Load, **more: Any) -> m.Model:
    return m.Model(LINE, (m.SourceModel("clean", load=load),), **more)


@pytest.mark.parametrize("name", LOADS)
def test_tuples_arrive_when_the_load_says_under_every_pattern(name: str) -> None:
    load = LOADS[name]
    run = simulate(under(load, window_tuples=3_000))
    assert run.delivered == 3_000 and run.lost == 0
    # Two operators take 0.1 ms each, and one at a time: the last leaves soon after it arrived.
    assert load.due_s(3_000) <= run.window_s <= load.due_s(3_000) + 0.2
    plain = simulate_with_simpy(under(load, window_tuples=3_000))
    assert run.window_s == pytest.approx(plain.window_s)
    assert run.mean_latency_s == pytest.approx(plain.mean_latency_s)


def test_a_window_of_time_has_what_arrives_in_it() -> None:
    load = Load("wave", period=4.0, min=100, max=1000)
    run = simulate(under(load, window_s=10.0))
    assert run.arrived == run.delivered == int(load.items(10.0))
    plain = simulate_with_simpy(under(load, window_s=10.0))
    assert (run.delivered, run.window_s) == (plain.delivered, pytest.approx(plain.window_s))
    gaps = m.Model(LINE, (m.SourceModel("clean", m.constant(0.01), 3),), window_s=1.005)
    assert simulate(gaps).delivered == simulate_with_simpy(gaps).delivered == 3 * 101


@pytest.mark.parametrize("behaviour", ["discard", "backlog"])
def test_a_window_of_time_ends_with_checkpoints_and_a_failure_in_it(behaviour: m.Behaviour) -> None:
    failures = m.Failures(("clean",), m.constant(1e9), 1.0, at_s=(3.0,))
    model = under(
        Load("binary", period=2.0, min=100, max=2000),
        window_s=8.0,
        checkpoints=m.Checkpoints(1.5, 0.2),
        failures=failures,
        behaviour=behaviour,
    )
    run = simulate(model)
    arrived = int(Load("binary", period=2.0, min=100, max=2000).items(8.0))
    assert run.arrived == arrived
    if behaviour == "discard":
        assert run.lost > 0 and run.delivered + run.lost == arrived
    else:
        assert run.lost == 0 and run.delivered == arrived and run.replayed > 0
        plain = simulate_with_simpy(model)
        assert plain.delivered == arrived


def test_more_arrivals_than_were_foreseen_at_first_are_as_exact() -> None:
    run = simulate(under(Load(50_000), window_tuples=200_000, in_flight_limit=16))
    assert run.window_s >= 4.0 and run.delivered == 200_000


def test_the_mean_wait_rises_with_the_swing_of_a_load() -> None:
    waits = [
        simulate(under(Load("wave", period=5.0, min=6000 - d, max=6000 + d), window_s=20.0))
        for d in (0, 4500, 5900)
    ]
    means = [run.mean_latency_s for run in waits]
    assert means == sorted(means)


def test_what_cannot_be_is_refused() -> None:
    falling = Load("decreasing", period=1.0, min=0, max=100)
    with pytest.raises(m.ModelError, match="ends before it has given the 1,000 tuples"):
        under(falling, window_tuples=1_000)
    assert simulate(under(falling, window_s=5.0)).delivered == 50
    with pytest.raises(m.ModelError, match="a gap between arrivals or a load"):
        m.Model(LINE, (m.SourceModel("clean"),), 10)
    with pytest.raises(m.ModelError, match="a window of tuples or of time"):
        under(Load(10), window_tuples=5, window_s=1.0)
    with pytest.raises(m.ModelError, match="a window of tuples or of time"):
        under(Load(10), window_s=0.0)
    with pytest.raises(m.ModelError, match="at least 1"):
        under(Load(10))
    with pytest.raises(m.ModelError, match="a backlog would grow"):
        replace(under(Load(20_000), window_s=1.0), behaviour="backlog")


def test_graphs_and_the_command_take_loads_and_times() -> None:
    operators, [source] = parse_graph(
        {
            "operators": [{"name": "one", "service": "constant:1ms"}],
            "sources": [{"to": "one", "load": "spike,1s,10,100"}],
        }
    )
    assert source.load is not None and source.load.text == "spike,1,10,100,10"
    assert np.isclose(source.rate_per_s, 14.5)
    assert simulate(m.Model(operators, (source,), window_s=2.0)).delivered == 29
    command = "model run --load wave,2s,100,500 --window 4s --sources 1 --replications 2"
    result = CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert result.exit_code == 0 and "tuples lost" in result.output
    wrong = CliRunner().invoke(app, ["model", "run", "--load", "wavy,2s,100,500"])
    assert wrong.exit_code != 0
