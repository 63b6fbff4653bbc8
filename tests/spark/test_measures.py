"""What a run tells of itself while it goes on: shards, operators and hosts, each by name."""

import gc
import os
import time
from typing import Any

import pytest

import everstream as es
from everstream.core.ids import HostId, ShardId
from everstream.core.measures import Measures
from everstream.core.meter import Meter
from everstream.spark.listener import Snapshot
from everstream.spark.measuring import unmeasured
from everstream.spark.process_use import ProcessUse


class Keeping(es.Listener):
    def __init__(self) -> None:
        self.seen: list[Measures] = []

    def measured(self, measures: Measures) -> None:
        self.seen.append(measures)

    def last_with_hosts(self) -> Measures:
        return next(measures for measures in reversed(self.seen) if measures.hosts)


def test_shards_and_hosts_are_measured_while_they_work() -> None:
    keeping = Keeping()
    pipeline = es.Pipeline("measured")
    pipeline.source(es.Paced(es.Range(300), rate=300), name="numbers").collect()
    pipeline.run(workers=1, listener=keeping)
    last = keeping.last_with_hosts()
    assert "numbers" in {operator for counts in last.counts.values() for operator in counts}
    assert last.shards.keys() == last.counts.keys()
    assert all(host.pid not in (0, os.getpid()) for host in last.hosts.values())


def slowly(record: Any) -> Any:
    time.sleep(0.02)
    return record


class Until:
    """Until measures are as they should be; then the run stops."""

    def __init__(self, keeping: Keeping) -> None:
        self.keeping = keeping

    def __call__(self, _: Snapshot) -> bool:
        return any(self.is_enough(measures) for measures in self.keeping.seen)

    def is_enough(self, measures: Measures) -> bool:
        shards, hosts = measures.shards, measures.hosts.values()
        numbers, slow = (shards.get(ShardId(n, 0), Meter()) for n in ("numbers", "slow"))
        return (
            numbers.blocked_s > numbers.busy_s + numbers.waiting_s
            and slow.busy_s > slow.waiting_s + slow.blocked_s > 0
            and slow.bytes_in > 0
            and numbers.bytes_out >= slow.bytes_in
            and slow.frames_waiting > 0
            and slow.latency["out"].total == slow.timed > 0
            and len(hosts) == 2
            and all(host.cpu_s > 0 and host.memory_bytes for host in hosts)
            and all(host.peak_bytes >= (host.memory_bytes or 0) for host in hosts)
        )


@pytest.mark.timeout(120)
def test_a_slow_operator_is_busy_and_the_one_before_it_is_blocked(tmp_path: Any) -> None:
    keeping = Keeping()
    pipeline = es.Pipeline("slow")
    numbers = pipeline.source(es.Range(10**9, batch=10), name="numbers").on_demand()
    numbers.map(slowly, name="slow").sink(es.JsonLines(tmp_path / "out"), name="out")
    until = Until(keeping)
    pipeline.run(workers=2, listener=keeping, until=until)
    assert any(until.is_enough(measures) for measures in keeping.seen)


def test_a_host_that_takes_anothers_place_counts_anew_under_another_attempt() -> None:
    keeping = Keeping()
    pipeline = es.Pipeline("again")
    source = es.Paced(es.Range(1500), rate=500)
    pipeline.source(source, name="numbers").collect(name="out")
    pipeline.run(
        workers=1,
        listener=keeping,
        checkpoint=es.Coordinated(every="100ms"),
        kill=["numbers@1000"],
    )
    by_attempt: dict[int, list[Meter]] = {}
    for measures in keeping.seen:
        if HostId(0) in measures.hosts and ShardId("numbers", 0) in measures.shards:
            attempt = measures.hosts[HostId(0)].attempt
            by_attempt.setdefault(attempt, []).append(measures.shards[ShardId("numbers", 0)])
    _, second = by_attempt.values()
    assert second[-1].records < 1500, "what the first process wrote is not among them"
    assert second[-1].timed == second[-1].latency["out"].total


def test_a_run_can_be_without_measures() -> None:
    keeping = Keeping()
    pipeline = es.Pipeline("unmeasured")
    pipeline.source(es.Paced(es.Range(300), rate=300), name="numbers").collect()
    with unmeasured():
        pipeline.run(workers=1, listener=keeping)
    assert all(not measures.shards for measures in keeping.seen)
    assert all(host.cpu_s == 0 for measures in keeping.seen for host in measures.hosts.values())


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
