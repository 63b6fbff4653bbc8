"""`every="auto"` where shards checkpoint on their own: the run adjusts the interval of all of them."""

from collections import Counter
from typing import Any

import pytest

import everstream as es
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.ids import CheckpointNumber, Epoch, ShardId
from everstream.core.protocols.base import ShardPosition
from everstream.core.protocols.uncoordinated import UncoordinatedProtocol
from everstream.engine.auto_interval import AutoPace

A, B = ShardId("a", 0), ShardId("b", 0)


def line(*records: tuple[ShardId, int, float]) -> EpochManifest:
    made = {
        shard: CheckpointRecord(shard, CheckpointNumber(n), ("a",), capture_s=s, upload_s=0.1)
        for shard, n, s in records
    }
    return EpochManifest(Epoch(1), made, log="durable")


def test_each_checkpoint_of_a_line_is_counted_once() -> None:
    pace = AutoPace(es.Uncoordinated(every="auto", between=("1s", "60s")), now_s=0.0)
    for number in range(1, 20):
        # Shard b stays where it is: its one costly checkpoint must not count again and again.
        pace.on_epoch(line((A, number, 0.0001), (B, 1, 30.0)), 10.0 * number)
    assert pace._planner.pause_s == 0.0001
    assert pace.on_epoch(line((A, 19, 5.0), (B, 1, 30.0)), 200.0) is None


def test_a_timer_counts_from_the_last_checkpoint_when_its_interval_changes() -> None:
    it = UncoordinatedProtocol(ShardPosition(A, (), ()), 10.0, 0.0)
    assert not it.on_tick(100.0)
    it.set_interval(3.0)
    assert not it.on_tick(102.9) and it.on_tick(103.1)
    assert not it.on_tick(104.0) and not it.on_tick(106.9) and it.on_tick(107.1)
    it.set_interval(20.0)
    assert not it.on_tick(108.0)
    it.set_interval(5.0)
    assert it.on_tick(113.1)


QUICK: dict[str, Any] = {"every": "auto", "between": ("20ms", "400ms"), "recovery_target": "20ms"}
CHOICES: dict[str, Any] = {
    "uncoordinated": es.Uncoordinated(**QUICK),
    "hmnr": es.CommunicationInduced(**QUICK),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_run_with_logs_changes_the_interval_of_its_shards_and_stays_exact(name: str) -> None:
    changes: list[es.RunEvent] = []

    class Heard(es.Listener):
        def on_event(self, event: es.RunEvent) -> None:
            if isinstance(event, es.events.IntervalChanged):
                changes.append(event)

    pipeline = es.Pipeline("auto")
    endless = es.FromFunction(lambda start, stop: list(range(start, stop)), batch=100)
    numbers = pipeline.source(es.Paced(endless, rate=5_000), name="numbers")
    numbers.key_by(lambda n: n % 7).reduce(max, name="top", shards=2).collect()
    result = pipeline.run(
        checkpoint=CHOICES[name],
        workers=2,
        listener=Heard(),
        kill=["top:1@3000"],
        until=lambda status: status.epoch >= 8 and bool(changes),
    )
    shown = Counter(result.collected())
    assert shown and set(shown.values()) == {1}
    for key in range(7):  # the run stops with records on their way to one shard or the other
        found = sorted(n for of_key, n in shown if of_key == key)
        assert found == list(range(key, found[-1] + 1, 7)), "each record, without a gap"
    assert changes
