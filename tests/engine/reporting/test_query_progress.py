"""A run's progress has the fields of Spark's StreamingQueryProgress, as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

import everstream as es
from everstream.core.orders import Phase
from everstream.engine.reporting.query_progress import KEPT, QueryProgress
from everstream.events import OperatorLayout, Progressed, Resumed, RunStarted, RunStatus
from everstream.pipeline.checkpointing import EngineName

STARTED = RunStarted(
    run="r1",
    pipeline="orders",
    store="store/",
    engine="tasks",
    protocol="aligned",
    interval_s=1.0,
    logs=False,
    operators=(
        OperatorLayout("numbers", "source", "numbers", 1),
        OperatorLayout("double", "operator", "numbers", 1),
        OperatorLayout("out", "sink", "numbers", 1),
    ),
    edges=(),
    shards={},
    workers=1,
    at=1_000.0,
)


def at(at: float, epoch: int, records: int, shown: int) -> Progressed:
    totals = {"numbers": records, "double": records, "out": shown}
    return Progressed(RunStatus(Phase.RUNNING, 1, records, totals, epoch, []), at=at)


def progress_of(*events: es.RunEvent) -> list[dict[str, Any]]:
    progress = QueryProgress()
    for event in events:
        progress.take(event)
    return progress.recent()


def test_an_epoch_gives_the_records_since_the_one_before_and_their_rate() -> None:
    first, second = progress_of(
        STARTED,
        at(1_001.0, 0, 4, 4),
        at(1_002.0, 1, 10, 8),
        at(1_003.0, 1, 30, 20),
        at(1_003.5, 2, 40, 38),
    )
    assert first["id"] == second["id"]
    assert {**second, "id": ""} == {
        "id": "",
        "runId": "r1",
        "name": "orders",
        "timestamp": "1970-01-01T00:16:42.000Z",
        "batchId": 2,
        "batchDuration": 1500,
        "numInputRows": 30,
        "inputRowsPerSecond": 20.0,
        "processedRowsPerSecond": 20.0,
        "sources": [
            {
                "description": "numbers",
                "numInputRows": 30,
                "inputRowsPerSecond": 20.0,
                "processedRowsPerSecond": 20.0,
            }
        ],
        "sink": {"description": "out", "numOutputRows": 30},
    }
    assert (first["numInputRows"], first["inputRowsPerSecond"]) == (10, 5.0)


def test_a_recovery_that_lowers_the_totals_gives_no_negative_rate() -> None:
    _, last = progress_of(STARTED, at(1_001.0, 1, 10, 8), at(1_002.0, 2, 4, 3))
    assert last["numInputRows"] == 0
    assert last["sink"]["numOutputRows"] == 0


def test_a_resumed_run_does_not_count_what_earlier_runs_have_read() -> None:
    before, after = at(1_001.0, 7, 100, 90), at(1_002.0, 8, 130, 115)
    (one,) = progress_of(STARTED, Resumed(7, False), before, after)
    assert (one["batchId"], one["numInputRows"], one["sink"]["numOutputRows"]) == (8, 30, 25)


def test_only_the_newest_are_kept() -> None:
    events = [at(1_000.0 + epoch, epoch, epoch, epoch) for epoch in range(1, KEPT + 6)]
    epochs = [one["batchId"] for one in progress_of(STARTED, *events)]
    assert epochs == list(range(6, KEPT + 6))


@pytest.mark.parametrize("engine", ["tasks", "microbatch"])
def test_the_handle_of_a_run_gives_fields_that_spark_has_too(
    engine: EngineName, tmp_path: Path
) -> None:
    pipeline = es.Pipeline("progress")
    pipeline.source(es.Range(1_000, batch=10), name="numbers").collect(name="out")
    run = pipeline.start(
        engine=engine,
        store=tmp_path,
        checkpoint=es.Coordinated(every_records=200),
        progress=False,
    )
    run.wait()
    found = run.recent_progress()
    assert found
    assert json.loads(json.dumps(found)) == found
    assert found[-1].keys() <= set(dir(StreamingQueryProgress))
    assert [one["batchId"] for one in found] == sorted(one["batchId"] for one in found)
    assert {one["sources"][0]["description"] for one in found} == {"numbers"}
    assert 0 < sum(one["numInputRows"] for one in found) <= 1_000
