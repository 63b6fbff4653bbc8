"""A worker of a cluster is gone for good: its shards go to those that are left, until there is room."""

import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import everstream as es

from .standalone import cluster, end_tree, worker

KEYS, RECORDS = 11, 60_000


class Heard(es.Listener):
    def __init__(self) -> None:
        self.events: list[es.RunEvent] = []
        self._more = threading.Condition()
        self.epochs = 0

    def on_event(self, event: es.RunEvent) -> None:
        if isinstance(event, es.events.Progressed):
            return
        with self._more:
            self.events.append(event)
            self.epochs += isinstance(event, es.events.EpochStable)
            self._more.notify_all()

    def wait_until(self, holds: Any) -> None:
        with self._more:
            assert self._more.wait_for(holds, timeout=150), self.events

    def is_packed(self) -> bool:
        return any(isinstance(event, es.events.WorkersPacked) for event in self.events)

    def is_spread(self) -> bool:
        changes = [event for event in self.events if isinstance(event, es.events.PlanChanged)]
        return any(change.workers_before < change.workers == 4 for change in changes)


@pytest.mark.long
def test_shards_of_a_worker_that_is_gone_for_good_are_packed_and_spread_again(
    tmp_path: Path,
) -> None:
    pipeline = es.Pipeline("lost")
    numbers = pipeline.source(es.Paced(es.Range(RECORDS), rate=800), name="numbers", shards=2)
    counted = numbers.key_by(lambda n: n % KEYS).fold(
        init=int, update=lambda count, _: count + 1, name="count", shards=4
    )
    counted.sink(es.Collect(), name="out")
    started: list[subprocess.Popen[str]] = []
    with cluster(tmp_path, ["127.0.0.1", "127.0.0.1"]) as (address, workers):
        heard = Heard()
        run = pipeline.start(
            checkpoint=es.Coordinated(every="500ms"),
            store=tmp_path / "store",
            master=address,
            workers=4,
            max_restarts=20,
            pack_after="2s",
            listener=heard,
        )
        try:
            heard.wait_until(lambda: heard.epochs >= 3)
            end_tree(workers[0])
            heard.wait_until(heard.is_packed)
            packed = heard.epochs
            heard.wait_until(lambda: heard.epochs >= packed + 3)
            started.append(worker(tmp_path, "127.0.0.1", address, 7))
            heard.wait_until(heard.is_spread)
            spread = heard.epochs
            heard.wait_until(lambda: heard.epochs >= spread + 2)
            result = run.wait()
        finally:
            run.stop()
            for process in started:
                process.kill()
            active = SparkSession.getActiveSession()
            if active is not None:
                active.stop()
    totals = Counter(n % KEYS for n in range(RECORDS))
    wanted = Counter((key, i + 1) for key, total in totals.items() for i in range(total))
    assert Counter(result.collected("out")) == wanted
