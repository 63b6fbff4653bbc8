"""`everstream model run`: answers before anything runs."""

import json
from pathlib import Path

from typer.testing import CliRunner

from everstream.cli.app import app


def test_model_run_shows_both_behaviours_and_writes_json(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    outcome = CliRunner().invoke(
        app,
        ["model", "run", "--tuples", "20000", "--interval", "1s", "--commit", "100ms",
         "--between-failures", "exponential:2s", "--recovery", "300ms", "--replications", "3",
         "--figure", str(tmp_path / "both.png"), "--json", str(out)],
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.output
    assert "tuples lost" in outcome.output and "catch-up" in outcome.output
    runs = json.loads(out.read_text())
    assert sum(run["lost"] for run in runs["discard"]) > 0
    assert sum(run["lost"] for run in runs["backlog"]) == 0


def test_model_run_takes_a_graph(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    graph = {
        "operators": [
            {"name": "split", "service": "constant:1ms", "next": {"a": 0.5, "b": 0.5}},
            {"name": "a", "service": "exponential:1ms", "cpus": 2},
            {"name": "b", "service": "uniform:1ms,2ms"},
        ],
        "sources": [{"to": "split", "gap": "exponential:2ms"}],
    }
    path.write_text(json.dumps(graph))
    arguments = ["model", "run", "--graph", str(path), "--tuples", "5000"]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 0, outcome.output
    assert "mean wait, split" in outcome.output
    path.write_text(json.dumps({**graph, "sources": [{"to": "nowhere", "gap": "constant:1ms"}]}))
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 2 and "nowhere" in outcome.output
