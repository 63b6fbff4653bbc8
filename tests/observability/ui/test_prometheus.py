"""A real Prometheus scrapes a real run, and understands the alert rules."""

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.observability.ui.auth import TOKEN_FILE
from tests.installing import install
from tests.spark import MASTER

RULES = Path(__file__).parents[3] / "deploy" / "prometheus-alerts.yml"
PATIENCE_S = 120


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def until(holds: Callable[[], Any]) -> Any:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            if found := holds():
                return found
        except OSError:  # it is not there yet
            pass
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


@pytest.mark.long
def test_a_real_prometheus_scrapes_a_run_and_knows_its_alerts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("prometheus")
    token = tmp_path / "ui.token"
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    monkeypatch.setenv(TOKEN_FILE, str(token))
    checked = subprocess.run(
        ["promtool", "check", "rules", str(RULES)], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    pipeline = es.Pipeline("scraped")
    source = pipeline.source(es.Paced(es.Range(10**9), rate=500), name="numbers")
    source.key_by(lambda number: number % 3).fold(
        init=int, update=lambda total, number: total + number, name="total", shards=2
    ).sink(es.JsonLines(tmp_path / "out"), name="out")
    every = es.Coordinated(every="500ms")
    with pipeline.start(
        store=tmp_path / "store", checkpoint=every, master=MASTER, workers=2, ui="127.0.0.1:0"
    ) as run:
        page = until(lambda: run.page)
        target = urllib.parse.urlsplit(page).netloc
        port = free_port()
        config = tmp_path / "prometheus.yml"
        config.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(RULES)],
                    "scrape_configs": [
                        {
                            "job_name": "everstream",
                            "authorization": {"credentials_file": str(token)},
                            "static_configs": [{"targets": [target]}],
                        }
                    ],
                }
            )
        )
        server = subprocess.Popen(
            [
                shutil.which("prometheus") or "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:

            def asked(path: str, **query: str) -> Any:
                url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
                with urllib.request.urlopen(url, timeout=300) as answer:
                    return json.load(answer)["data"]

            def rate(query: str) -> float:
                found = asked("query", query=query)["result"]
                return float(found[0]["value"][1]) if found else 0.0

            until(
                lambda: (
                    rate("sum(rate(everstream_num_records_in_total{operator='total'}[10s]))") > 50
                )
            )
            until(lambda: rate("everstream_number_of_completed_checkpoints_total") >= 2)
            assert rate("everstream_up") == 1
            quantile = "histogram_quantile(0.5, sum by (le) (rate(everstream_latency_seconds_bucket[10s])))"
            assert 0 < until(lambda: rate(quantile)) < 60
            run.kill_worker(1)
            until(lambda: rate("everstream_num_restarts_total") == 1)
            groups = until(lambda: asked("rules")["groups"])
            until(lambda: all(r["health"] == "ok" for r in asked("rules")["groups"][0]["rules"]))
            assert len(groups[0]["rules"]) >= 4
            until(
                lambda: any(
                    alert["labels"]["alertname"] == "EverstreamRestarts"
                    for alert in asked("alerts")["alerts"]
                )
            )
        finally:
            server.kill()
            server.wait()
