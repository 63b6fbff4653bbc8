"""What Prometheus reads: it parses, never falls, and has what dashboards and alerts ask for."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.engine.reporting.building import RecoveryUpdates
from everstream.observability.history.run_view import RunView
from everstream.observability.ui.metrics import exposition
from tests.observability.history.telling import START, checkpoint, run, sample

FILES = Path(__file__).parents[3] / "deploy"
ALWAYS_THERE = {"ALERTS", "up"}


def samples(run_view: RunView) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text, kind = exposition(run_view)
    assert kind.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def told() -> RunView:
    run_view = RunView()
    for entry in (
        run(),
        sample(0, 0, 0),
        sample(
            1, 100, 80, latency_s=0.01, meter={"watermark": 5000, "state_bytes": 7, "state_keys": 2}
        ),
        checkpoint(1, 1),
    ):
        run_view.take(entry)
    return run_view


def test_the_text_parses_and_names_pipeline_operator_shard_and_worker() -> None:
    found = samples(told())
    worker = str(dict(run().shards)["fold:0"])
    place = (("operator", "fold"), ("pipeline", "told"), ("shard", "0"), ("worker", worker))
    assert found["everstream_num_records_in_total", place] == 80
    assert found["everstream_busy_time_seconds_total", place] == 0.5
    assert found["everstream_current_input_watermark_seconds", place] == 5.0
    assert found["everstream_number_of_completed_checkpoints_total", (("pipeline", "told"),)] == 1
    assert found["everstream_last_checkpoint_duration_seconds", (("pipeline", "told"),)] == 0.25
    of_sink = (("operator", "out"), ("pipeline", "told"))
    assert found["everstream_latency_seconds_count", of_sink] == 80
    assert found["everstream_latency_seconds_sum", of_sink] == pytest.approx(0.8, rel=0.1)
    below = found["everstream_latency_seconds_bucket", (("le", "0.01024"), *of_sink)]
    assert below == 80


def test_counters_never_fall_though_processes_begin_anew_and_go_back() -> None:
    run_view = told()
    before = samples(run_view)
    report = RecoveryReport("worker 1", ("fold:0",), False, detected_s=1.0)
    for entry in (
        *RecoveryUpdates("x").changed([report], 1.0, START),
        sample(2, 40, 30, attempt=1, meter={"busy_s": 0.1}),
        run(START + 3, run="b" * 32),
        sample(4, 30, 20, attempt=0, meter={"busy_s": 0.0}),
    ):
        run_view.take(entry)
        after = samples(run_view)
        fallen = {
            key: (before[key], after.get(key))
            for key in before
            if key[0].endswith("_total") and after.get(key, 0.0) < before[key]
        }
        assert not fallen
        before = after
    assert before["everstream_num_restarts_total", (("pipeline", "told"),)] == 1


def test_nothing_is_told_before_a_run_and_nothing_that_is_not_known() -> None:
    assert exposition(RunView())[0] == b""
    run_view = RunView()
    run_view.take(run())
    names = {name for name, _ in samples(run_view)}
    assert "everstream_last_checkpoint_duration_seconds" not in names
    assert "everstream_state_size_bytes" not in names


def expressions() -> list[str]:
    rules = (FILES / "prometheus-alerts.yml").read_text()
    asked = re.findall(r"expr:(.*?)(?=\n {8}(?:for|labels):)", rules, re.DOTALL)
    board = json.loads((FILES / "grafana-dashboard.json").read_text())
    panels = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(asked) >= 4 and len(panels) >= 8
    return [*asked, *panels]


def test_every_metric_in_the_dashboard_and_the_alerts_is_one_that_we_have() -> None:
    text = exposition(told())[0].decode()
    known = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    known |= {f"{name}_bucket" for name in known}
    for expression in expressions():
        asked = set(re.findall(r"\beverstream_\w+", expression))
        assert asked and asked <= known, (expression, asked - known)


def test_the_reference_lists_every_metric_and_no_other() -> None:
    page = (FILES.parent / "docs" / "reference" / "metrics.md").read_text()
    part = page.partition("## Prometheus\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| (\w+) \|", part, re.MULTILINE)
    listed = {(f"everstream_{n}", kind) for row, kind in rows for n in re.findall(r"`(\w+)`", row)}
    text = exposition(told())[0].decode()
    known = [line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE")]
    assert {(name, kind) for name, kind in known if not name.endswith("_created")} == listed
