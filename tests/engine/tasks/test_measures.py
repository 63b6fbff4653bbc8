"""What a run tells of itself while it goes on: shards, operators and workers, each by name."""

import gc
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import everstream as es
from everstream.core.ids import ShardId, WorkerId
from everstream.core.manifest import EpochManifest
from everstream.core.measures import Measures
from everstream.core.meter import Meter
from everstream.engine.measuring import unmeasured
from everstream.engine.reporting.listener import RunStatus
from everstream.engine.tasks.worker.process_use import ProcessUse


class Keeping(es.Listener):
    def __init__(self) -> None:
        self.seen: list[Measures] = []

    def measured(self, measures: Measures) -> None:
        self.seen.append(measures)

    def complete(self) -> Iterator[Measures]:
        """Those in which workers and shards are measured."""
        return (measures for measures in self.seen if measures.workers and measures.shards)


def test_shards_and_workers_are_measured_while_they_work() -> None:
    keeping = Keeping()
    pipeline = es.Pipeline("measured")
    pipeline.source(es.Paced(es.Range(10**9), rate=300), name="numbers").collect()
    pipeline.run(workers=1, listener=keeping, until=lambda _: any(keeping.complete()))
    last = next(keeping.complete())
    assert "numbers" in {operator for counts in last.counts.values() for operator in counts}
    assert last.shards.keys() == last.counts.keys()
    assert all(worker.pid not in (0, os.getpid()) for worker in last.workers.values())


def slowly(record: Any) -> Any:
    time.sleep(0.02)
    return record


class Until:
    """Until measures are as they should be; then the run stops."""

    def __init__(self, keeping: Keeping) -> None:
        self.keeping = keeping

    def __call__(self, _: RunStatus) -> bool:
        return any(self.is_enough(measures) for measures in self.keeping.seen)

    def is_enough(self, measures: Measures) -> bool:
        shards, workers = measures.shards, measures.workers.values()
        numbers, slow = (shards.get(ShardId(n, 0), Meter()) for n in ("numbers", "slow"))
        return (
            numbers.blocked_s > numbers.busy_s + numbers.waiting_s
            and slow.busy_s > slow.waiting_s + slow.blocked_s > 0
            and slow.bytes_in > 0
            and numbers.bytes_out >= slow.bytes_in
            and slow.frames_waiting > 0
            and slow.latency["out"].total == slow.timed > 0
            and len(workers) == 2
            and all(worker.cpu_s > 0 and worker.memory_bytes for worker in workers)
            and all(worker.peak_bytes >= (worker.memory_bytes or 0) for worker in workers)
        )


def test_a_slow_operator_is_busy_and_the_one_before_it_is_blocked(tmp_path: Any) -> None:
    keeping = Keeping()
    pipeline = es.Pipeline("slow")
    numbers = pipeline.source(es.Range(10**9, batch=10), name="numbers").on_demand()
    numbers.map(slowly, name="slow").sink(es.JsonLines(tmp_path / "out"), name="out")
    until = Until(keeping)
    pipeline.run(workers=2, listener=keeping, until=until)
    assert any(until.is_enough(measures) for measures in keeping.seen)


def test_a_worker_that_takes_anothers_place_counts_anew_under_another_attempt() -> None:
    numbers, worker = ShardId("numbers", 0), WorkerId(0)
    by_attempt: dict[int, Meter] = {}
    """The last figures of each process that has read some records."""

    class KillsOnceSaved(es.Listener):
        pid = 0
        epochs = 0

        def measured(self, measures: Measures) -> None:
            meter = measures.shards.get(numbers)
            if worker in measures.workers and meter is not None and meter.records > 0:
                self.pid = measures.workers[worker].pid
                by_attempt[measures.workers[worker].attempt] = meter

        def epoch(self, manifest: EpochManifest) -> None:
            """The second one after the first figures has begun after them: it holds those records."""
            self.epochs += len(by_attempt) > 0
            if self.epochs == 2:
                os.kill(self.pid, signal.SIGKILL)

    pipeline = es.Pipeline("again")
    source = es.Paced(es.Range(10**9), rate=500)
    pipeline.source(source, name="numbers").collect(name="out")
    result = pipeline.run(
        workers=1,
        listener=KillsOnceSaved(),
        checkpoint=es.Coordinated(every="100ms"),
        until=lambda _: len(by_attempt) == 2,
    )
    _, second = by_attempt.values()
    assert second.records < result.records_in, "what the first process wrote is not among them"
    assert second.timed == second.latency["out"].total


def test_a_run_can_be_without_measures() -> None:
    keeping = Keeping()
    pipeline = es.Pipeline("unmeasured")
    pipeline.source(es.Paced(es.Range(300), rate=300), name="numbers").collect()
    with unmeasured():
        pipeline.run(workers=1, listener=keeping)
    assert all(not measures.shards for measures in keeping.seen)
    assert all(
        worker.cpu_s == 0 for measures in keeping.seen for worker in measures.workers.values()
    )


def test_what_a_process_uses_is_seen_until_it_is_closed() -> None:
    callbacks = len(gc.callbacks)
    use = ProcessUse()
    before = use.read()
    gc.collect()
    after = use.read()
    assert after.cpu_s >= before.cpu_s > 0
    assert after.collecting_s > before.collecting_s
    assert 0 < (after.memory_bytes or 0) <= after.peak_bytes
    use.close()
    assert len(gc.callbacks) == callbacks
