"""`every="auto"`: the interval follows what checkpoints cost and how often the run fails."""

from collections import Counter

import pytest

import everstream as es
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.newest import Newest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.core.ids import CheckpointNumber, Epoch, ShardId
from everstream.engine.auto_interval import AutoPace
from tests.spark import MASTER

SHARD = ShardId("count", 0)


def epoch(capture_s: float, duration_s: float = 0.2) -> EpochManifest:
    record = CheckpointRecord(SHARD, CheckpointNumber(1), ("count",), capture_s=capture_s)
    return EpochManifest(Epoch(1), {SHARD: record}, duration_s=duration_s)


def failure(at_s: float) -> RecoveryReport:
    return RecoveryReport("x", ("count:0",), False, at_s, restored_s=at_s + 0.5)


def test_cheap_checkpoints_and_many_failures_bring_the_interval_down() -> None:
    pace = AutoPace(es.Coordinated(every="auto", between=("100ms", "1h")), now_s=0.0)
    now_s, reasons = 0.0, []
    reports: Newest[RecoveryReport] = Newest()
    for _ in range(40):
        now_s += 5.0
        reasons.append(pace.on_epoch(epoch(capture_s=0.0005), now_s))
        reports.append(failure(now_s))
        reasons.append(pace.on_recoveries(reports, now_s + 1))
        now_s += 1
    assert pace.every_s < 1.0
    assert any(reason and "instead of" in reason for reason in reasons)


def test_expensive_checkpoints_without_failures_push_the_interval_up_to_its_bound() -> None:
    pace = AutoPace(es.Coordinated(every="auto", between=("1s", "60s")), now_s=0.0)
    for number in range(40):
        pace.on_epoch(epoch(capture_s=1.0, duration_s=2.0), 10.0 * number)
    assert pace.every_s == 60.0


def test_a_recovery_target_without_auto_and_wrong_bounds_are_refused() -> None:
    with pytest.raises(es.UserError, match="every="):
        es.Coordinated(every="5s", recovery_target="10s")
    with pytest.raises(es.UserError, match="shorter time first"):
        es.Coordinated(every="auto", between=("10s", "1s"))


def test_a_run_changes_its_own_interval_and_stays_exact() -> None:
    pipeline = es.Pipeline("auto")
    endless = es.FromFunction(lambda start, stop: list(range(start, stop)), batch=100)
    numbers = pipeline.source(es.Paced(endless, rate=5_000), name="numbers")
    numbers.key_by(lambda n: n % 7).reduce(max, name="top").collect()
    result = pipeline.run(
        checkpoint=es.Coordinated(every="auto", between=("50ms", "200ms")),
        master=MASTER,
        until=lambda snapshot: snapshot.epoch >= 4,
    )
    shown = Counter(result.collected())
    assert shown == Counter((n % 7, n) for n in range(result.records_in))
