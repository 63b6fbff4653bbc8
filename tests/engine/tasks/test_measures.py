"""What a run tells of itself while it goes on: shards, operators and workers, each by name."""

import gc
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import everstream as es
from everstream.engine.continuous.run import unmeasured
from everstream.engine.continuous.worker.process_use import ProcessUse
from everstream.events import EpochStable, MetricsSampled, RunEvent, RunStatus


class Keeping(es.Listener):
    def __init__(self) -> None:
        self.seen: list[MetricsSampled] = []

    def on_event(self, event: RunEvent) -> None:
        if isinstance(event, MetricsSampled):
            self.seen.append(event)

    def complete(self) -> Iterator[MetricsSampled]:
        """Those in which workers and shards are measured."""
        return (sample for sample in self.seen if sample.workers and sample.shards)


def test_shards_and_workers_are_measured_while_they_work() -> None:
    keeping = Keeping()
    pipeline = es.Pipeline("measured")
    pipeline.source(es.Paced(es.Range(10**9), rate=300), name="numbers").collect()
    pipeline.run(workers=1, listener=keeping, until=lambda _: any(keeping.complete()))
    last = next(keeping.complete())
    assert "numbers" in {name for meter in last.shards.values() for name in meter["counts"]}
    assert all(meter["counts"] for meter in last.shards.values())
    assert all(worker["pid"] not in (0, os.getpid()) for worker in last.workers.values())


def slowly(record: Any) -> Any:
    time.sleep(0.02)
    return record


class Until:
    """Until a sample is as it should be; then the run stops."""

    def __init__(self, keeping: Keeping) -> None:
        self.keeping = keeping

    def __call__(self, _: RunStatus) -> bool:
        return any(self.is_enough(sample) for sample in self.keeping.seen)

    def is_enough(self, sample: MetricsSampled) -> bool:
        workers = sample.workers.values()
        if not {"numbers:0", "slow:0"} <= sample.shards.keys():
            return False
        numbers, slow = sample.shards["numbers:0"], sample.shards["slow:0"]
        return bool(
            numbers["blocked_s"] > numbers["busy_s"] + numbers["waiting_s"]
            and slow["busy_s"] > slow["waiting_s"] + slow["blocked_s"] > 0
            and slow["bytes_in"] > 0
            and numbers["bytes_out"] >= slow["bytes_in"]
            and slow["frames_waiting"] > 0
            and sum(slow["latency"]["out"].values()) == slow["timed"] > 0
            and len(workers) == 2
            and all(worker["cpu_s"] > 0 and worker["memory_bytes"] for worker in workers)
            and all(worker["peak_bytes"] >= worker["memory_bytes"] for worker in workers)
        )


def test_a_slow_operator_is_busy_and_the_one_before_it_is_blocked(tmp_path: Any) -> None:
    keeping = Keeping()
    pipeline = es.Pipeline("slow")
    numbers = pipeline.source(es.Range(10**9, batch=10), name="numbers").on_demand()
    numbers.map(slowly, name="slow").sink(es.JsonLines(tmp_path / "out"), name="out")
    until = Until(keeping)
    pipeline.run(workers=2, listener=keeping, until=until)
    assert any(until.is_enough(sample) for sample in keeping.seen)


def test_a_worker_that_takes_anothers_place_counts_anew_under_another_attempt() -> None:
    by_attempt: dict[int, dict[str, Any]] = {}
    """The last figures of each process that has read some records."""

    class KillsOnceSaved(es.Listener):
        pid = 0
        epochs = 0

        def on_event(self, event: RunEvent) -> None:
            match event:
                case MetricsSampled(
                    shards={"numbers:0": {"records": records} as meter},
                    workers={"0": {"pid": pid, "attempt": attempt}},
                ) if records > 0:
                    self.pid = pid
                    by_attempt[attempt] = meter
                case EpochStable():
                    self._kill_at_the_second()

        def _kill_at_the_second(self) -> None:
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
    assert second["records"] < result.records_in, "what the first process wrote is not among them"
    assert second["timed"] == sum(second["latency"]["out"].values())


def test_a_run_can_be_without_measures() -> None:
    keeping = Keeping()
    pipeline = es.Pipeline("unmeasured")
    pipeline.source(es.Paced(es.Range(300), rate=300), name="numbers").collect()
    with unmeasured():
        pipeline.run(workers=1, listener=keeping)
    assert keeping.seen and all(not sample.shards for sample in keeping.seen)
    assert all(
        worker["cpu_s"] == 0 for sample in keeping.seen for worker in sample.workers.values()
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
