"""What operators log arrives at the driver, with operator and shard, and not more than can be read."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.core.ids import WorkerId
from everstream.core.plan import make_plan
from everstream.engine.continuous.liveness.crash_breadcrumb import CrashBreadcrumb
from everstream.engine.continuous.worker.operator_logs import (
    LINES_PER_S,
    LogCollector,
    Logged,
    levels,
    pass_on,
)
from everstream.engine.reporting.listener import JsonFormatter, Logging
from everstream.events import CheckpointAborted, Note

from .running import run


class Logs(es.Operator):
    def process(self, record: Any, ctx: es.Context) -> None:
        logging.getLogger("shop").info("saw %s", record)
        ctx.emit(record)

    def on_stop(self, ctx: es.Context) -> None:
        logging.getLogger("shop").warning("leaving")


def test_what_operators_log_arrives_with_operator_and_shard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline = es.Pipeline("logging")
    pipeline.source(es.Range(3)).process(Logs(), name="watch").collect()
    with caplog.at_level(logging.INFO, logger="shop"):
        run(pipeline, workers=1)
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [
        *(("INFO", f"[watch:0] saw {n}") for n in range(3)),
        ("WARNING", "[watch:0] leaving"),
    ]
    places = {(r.pipeline, r.operator, r.shard, r.worker) for r in map(vars_of, caplog.records)}
    assert places == {("logging", "watch", "watch:0", 0)}
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert lines[-1]["text"] == "[watch:0] leaving"
    assert (lines[-1]["pipeline"], lines[-1]["operator"], lines[-1]["level"]) == (
        *("logging", "watch", "WARNING"),
    )


def vars_of(record: logging.LogRecord) -> Any:
    return record


def test_what_a_run_says_is_logged_with_its_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="everstream"):
        Logging("told").on_event(CheckpointAborted(1, "epoch 1 given up"))
        Logging("told").on_event(CheckpointAborted(2, "epoch 2 given up", repeated=True))
        Logging("told").on_event(Note("stop", "stopping"))
    assert [(r.levelname, r.getMessage(), vars_of(r).pipeline) for r in caplog.records] == [
        ("WARNING", "epoch 1 given up", "told"),
        ("INFO", "stopping", "told"),
    ]


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[LogCollector]:
    pipeline = es.Pipeline("logged")
    pipeline.source(es.Range(3), name="numbers").collect()
    plan = make_plan(pipeline, 1)
    places = CrashBreadcrumb(str(tmp_path), plan, plan.workers[0])
    made = LogCollector(WorkerId(2), places, {"": logging.INFO})
    yield made
    made.close()


def test_too_many_lines_are_counted_and_said(
    collector: LogCollector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    for number in range(LINES_PER_S + 5):
        logging.getLogger("noisy").info("line %d", number)
    logged = collector.take()
    assert logged is not None and (len(logged.lines), logged.dropped) == (LINES_PER_S, 5)
    assert collector.take() is None
    caplog.clear()
    pass_on(Logged(WorkerId(2), logged.lines[:1], logged.dropped))
    assert [record.getMessage() for record in caplog.records] == [
        "[worker 2] line 0",
        "[worker 2] 5 further log line(s) were left out",
    ]


def test_a_traceback_goes_along_and_levels_are_left_as_they_were(collector: LogCollector) -> None:
    try:
        raise KeyError("price")
    except KeyError:
        logging.getLogger("shop").exception("bad record")
    logged = collector.take()
    assert logged is not None and "KeyError: 'price'" in logged.lines[0].text
    collector.close()
    logging.getLogger("shop").warning("nobody takes this")
    assert collector.take() is None
    assert levels()[""] == logging.WARNING


def test_without_any_set_up_lines_go_to_standard_error_with_the_time() -> None:
    program = (
        "from everstream.engine.continuous.worker.operator_logs import *\n"
        "line = LogLine('shop', 30, 'careful', 0.0, 'x.py', 1, 'watch:0')\n"
        "pass_on(Logged(0, (line,)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.startswith("19"), done.stderr
    assert done.stderr.endswith("WARNING shop [watch:0] careful\n")
