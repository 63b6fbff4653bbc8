"""The coordinator when something fails: rollbacks, the restart budget, recovery reports."""

from everstream import events
from everstream.core.coordinators.restarts import CALM_S, Repeats
from everstream.core.coordinators.strategy import RETRY_S
from everstream.core.ids import CheckpointNumber, Epoch
from everstream.core.messages import (
    CheckpointFailed,
    Progress,
    Restore,
    ShardFailed,
    Stable,
    StartCheckpoint,
)
from everstream.core.orders import (
    Dismiss,
    EndRun,
    Order,
    Outcome,
    Phase,
    Policy,
    WriteManifest,
)
from everstream.errors import ConnectorError, LeaseLost, OperatorError, RunFailed, StoreError

from .coordinating import DOUBLE, H0, NUMBERS, P0, P1, Run, of


def test_a_lost_worker_rolls_everybody_back_to_the_last_stable_epoch() -> None:
    run = Run().to_running()
    run.epoch(1, at_s=10.0)
    before = run.it.generation
    orders = run.it.on_process_lost(P0, "killed", 12.0)
    (restore,) = of(orders, Restore)
    assert (restore.generation, restore.stable) == (before + 1, 1)
    assert restore.records[NUMBERS] == (run.record(NUMBERS, 1),)
    assert of(orders, events.WorkerLost) == [
        events.WorkerLost(0, "killed", shards=(str(NUMBERS),), from_epoch=1)
    ]
    assert of(run.it.on_process_joined(P0, "again", 13.0), Restore) == [restore]
    run.restored()
    (report,) = run.it.recoveries
    assert (report.detected_s, report.restarted_s, report.from_epoch) == (12.0, 13.0, 1)


def test_a_worker_that_comes_back_unannounced_is_a_failure_too() -> None:
    run = Run().to_running()
    orders = run.it.on_process_joined(P0, "again", 5.0)
    assert of(orders, Restore) and run.it.phase is Phase.RESTORING
    (lost,) = of(orders, events.WorkerLost)
    assert (lost.worker, lost.from_epoch, lost.injected) == (0, 0, False)
    assert "started again" in lost.how


def test_a_rollback_waits_for_the_manifest_under_way() -> None:
    run = Run().to_running()
    run.tick(10.0)
    run.taken(1, NUMBERS, DOUBLE)
    assert of(run.it.on_process_lost(P0, "killed", 11.0), Restore) == []
    assert of(run.it.on_process_joined(P0, "again", 12.0), Restore) == []
    orders = run.it.on_manifest_written(13.0)
    assert {restore.stable for restore in of(orders, Restore)} == {1}
    assert of(orders, Stable) == []


def test_a_rollback_goes_to_the_epoch_before_if_the_manifest_is_known_to_be_missing() -> None:
    run = Run().to_running()
    run.tick(10.0)
    run.taken(1, NUMBERS, DOUBLE)
    run.it.on_process_lost(P0, "killed", 11.0)
    orders = run.it.on_manifest_failed(StoreError("no room"), 12.0)
    assert {restore.stable for restore in of(orders, Restore)} == {0}


def test_an_epoch_in_flight_dies_with_a_rollback_and_its_number_is_not_used_again() -> None:
    run = Run().to_running()
    run.tick(10.0)
    run.taken(1, NUMBERS)
    run.it.on_process_joined(P0, "again", 11.0)
    run.restored()
    assert of(run.tick(30.0), StartCheckpoint) == [StartCheckpoint(Epoch(2))] * 2


def test_a_failed_checkpoint_costs_the_epoch_and_a_pause() -> None:
    run = Run().to_running()
    run.tick(10.0)
    orders = run.report(CheckpointFailed(DOUBLE, run.it.generation, CheckpointNumber(1), "full"))
    reason = "epoch 1 given up: double:0 could not save: full"
    assert of(orders, events.CheckpointAborted) == [events.CheckpointAborted(1, reason)]
    assert of(run.taken(1, NUMBERS, DOUBLE), WriteManifest) == []
    assert run.tick(10.0 + RETRY_S / 2) == []
    assert of(run.tick(25.0), StartCheckpoint) == [StartCheckpoint(Epoch(2))] * 2


def test_a_last_checkpoint_that_failed_is_asked_for_even_without_checkpoints() -> None:
    run = Run(Policy(checkpoints=False)).to_running()
    failed = CheckpointFailed(NUMBERS, run.it.generation, CheckpointNumber(1), "full", final=True)
    run.report(failed)
    assert of(run.tick(RETRY_S), StartCheckpoint) == [StartCheckpoint(Epoch(1))] * 2


def test_a_manifest_that_could_not_be_written_costs_the_epoch() -> None:
    run = Run().to_running()
    run.tick(10.0)
    run.taken(1, NUMBERS, DOUBLE)
    orders = run.it.on_manifest_failed(StoreError("no room"), 11.0)
    failed = events.CheckpointAborted(1, "epoch 1 given up: no room")
    assert of(orders, events.CheckpointAborted) == [failed]
    assert run.it.stable_epoch == 0 and run.it.phase is Phase.RUNNING
    assert of(run.tick(20.0), StartCheckpoint)


def test_a_fenced_driver_ends() -> None:
    run = Run().to_running()
    run.tick(10.0)
    run.taken(1, NUMBERS, DOUBLE)
    (ended,) = of(run.it.on_manifest_failed(LeaseLost("driver-2 took over"), 11.0), EndRun)
    assert ended.outcome is Outcome.FAILED
    assert "this driver was replaced: driver-2 took over" in str(ended.error)


def test_too_many_failures_in_the_window_end_the_run_with_the_cause() -> None:
    run = Run(Policy(max_restarts=1, restart_window_s=60.0)).to_running()
    error = ConnectorError("no such table")
    run.report(ShardFailed(DOUBLE, run.it.generation, error))
    run.restored()
    (ended,) = of(run.report(ShardFailed(DOUBLE, run.it.generation, error)), EndRun)
    assert ended.outcome is Outcome.FAILED and isinstance(ended.error, RunFailed)
    assert ended.error.cause is error
    assert "double:0 failed: more than 1 failures within 60 s" in str(ended.error)


def test_a_shard_that_fails_again_and_again_is_tried_after_longer_and_longer_pauses() -> None:
    run = Run(Policy(every_s=None, max_restarts=9)).to_running()

    def failed(at_s: float) -> list[Order]:
        run.now_s = at_s
        return run.report(ShardFailed(DOUBLE, run.it.generation, ConnectorError("away")))

    assert len(of(failed(0.0), Restore)) == 2, "the first time at once"
    run.restored()
    at_s = 0.0
    for pause_s in (1.0, 4.0, 10.0, 10.0):
        assert of(failed(at_s), events.OperatorFailed) == [
            events.OperatorFailed("away", shards=(str(DOUBLE),), from_epoch=0, retry_s=pause_s)
        ]
        assert run.tick(at_s + pause_s - 0.01) == []
        at_s += pause_s
        assert len(of(run.tick(at_s), Restore)) == 2
        run.restored()
    assert len(of(failed(at_s + CALM_S), Restore)) == 2, "and after a time of calm at once again"


def recurring(record: str = "7", shard: int = 0, at: str = "0x7f01") -> OperatorError:
    error = OperatorError("double", shard, record, f"TypeError: <A object at {at}>")
    error.will_recur = True
    return error


def test_an_error_that_will_recur_is_tried_once_more_and_then_ends_the_run() -> None:
    run = Run(Policy(every_s=None, max_restarts=9)).to_running()
    first = run.report(ShardFailed(DOUBLE, run.it.generation, recurring()))
    assert len(of(first, Restore)) == 2
    run.restored()
    again = recurring(at="0x7f02")
    (ended,) = of(run.report(ShardFailed(DOUBLE, run.it.generation, again)), EndRun)
    assert ended.outcome is Outcome.FAILED and isinstance(ended.error, RunFailed)
    assert ended.error.cause is again
    assert "failed in the same way again after rolling back to the start" in str(ended.error)
    assert len(run.it.recoveries) == 2


def test_another_record_or_an_epoch_in_between_makes_it_another_error() -> None:
    repeats = Repeats()
    assert not repeats.has_seen(recurring(), Epoch(1))
    assert not repeats.has_seen(recurring(record="8"), Epoch(1))
    assert not repeats.has_seen(recurring(), Epoch(2))
    assert repeats.has_seen(recurring(shard=1), Epoch(2)), "whichever shard comes to it first"
    away = ConnectorError("away")
    assert not any(repeats.has_seen(away, Epoch(2)) for _ in range(3))


def test_shards_that_fail_during_a_pause_have_failed_of_the_same_cause() -> None:
    run = Run(Policy(every_s=None, max_restarts=2)).to_running()
    run.report(ShardFailed(DOUBLE, run.it.generation, ConnectorError("away")))
    run.restored()
    orders = run.report(
        *(ShardFailed(s, run.it.generation, ConnectorError("away")) for s in (DOUBLE, NUMBERS))
    )
    assert of(orders, EndRun) == [] and len(run.it.recoveries) == 2
    assert len(of(run.tick(1.0), Restore)) == 2


def test_a_process_that_dies_is_not_waited_for_even_during_a_pause() -> None:
    run = Run(Policy(every_s=None)).to_running()
    for _ in range(2):
        run.report(ShardFailed(DOUBLE, run.it.generation, ConnectorError("away")))
        if run.it.phase is Phase.RESTORING:
            run.restored()
    assert len(of(run.it.on_process_lost(P0, "killed", 0.5), Restore)) == 1
    assert of(run.tick(1.0), Restore) == [], "the pause is over with it"


def test_old_failures_leave_the_window() -> None:
    run = Run(Policy(max_restarts=1, restart_window_s=60.0)).to_running()
    for at_s in (0.0, 61.0, 122.0):
        run.now_s = at_s
        orders = run.report(ShardFailed(DOUBLE, run.it.generation, ConnectorError("again")))
        assert of(orders, EndRun) == []
        run.restored()


def test_kills_of_our_own_are_not_held_against_the_pipeline() -> None:
    run = Run(Policy(max_restarts=0)).to_running()
    run.it.on_injected_kill(H0, 5.0)
    orders = run.it.on_process_lost(P0, "killed", 5.2)
    assert of(orders, EndRun) == []
    (lost,) = of(orders, events.WorkerLost)
    assert lost.injected and not events.is_warning(lost)
    (report,) = run.it.recoveries
    assert report.injected and report.milliseconds()["detected_ms"] == 200.0
    run.it.on_process_joined(P0, "again", 6.0)
    assert of(run.it.on_process_lost(P0, "killed", 7.0), EndRun), "the next one is"


def test_a_run_that_has_ended_stays_ended_whatever_the_store_says_later() -> None:
    run = Run(Policy(every_s=10.0, max_restarts=1)).to_running()
    run.tick(10.0)
    run.taken(1, NUMBERS, DOUBLE)
    run.it.on_process_lost(P0, "killed", 11.0)
    assert of(run.it.on_process_lost(P1, "killed", 12.5), EndRun)
    assert run.it.on_manifest_written(12.0) == []
    assert run.it.phase is Phase.DONE
    assert run.it.on_stop("late", 13.0) == []
    assert of(run.it.on_process_joined(P0, "late", 14.0), Dismiss)


def test_a_failure_while_finishing_restores_and_then_ends() -> None:
    run = Run().to_running()
    run.taken(1, NUMBERS, DOUBLE, final=True)
    run.it.on_manifest_written(1.0)
    assert run.it.phase is Phase.FINISHING
    run.it.on_process_lost(P1, "killed", 2.0)
    run.it.on_process_joined(P1, "again", 3.0)
    assert of(run.restored(), EndRun) == [EndRun(Outcome.FINISHED)]


def test_a_recovery_has_caught_up_when_every_operator_is_where_it_was() -> None:
    run = Run().to_running()
    counts = {"numbers": (0, 50), "double": (40, 40), "out": (40, 40)}
    run.report(Progress(NUMBERS, run.it.generation, counts))
    run.it.on_process_joined(P0, "again", 1.0)
    run.now_s = 2.0
    run.restored()
    (report,) = run.it.recoveries
    assert (report.records_replayed, report.duplicates_suppressed) == (50, 40)
    run.now_s = 3.0
    run.report(Progress(NUMBERS, run.it.generation, {**counts, "double": (39, 39)}))
    assert (report.replayed_s, report.caught_up_s) == (3.0, None)
    run.now_s = 4.0
    run.report(Progress(NUMBERS, run.it.generation, counts))
    assert report.caught_up_s == 4.0
    assert report.to_json()["caught_up_ms"] == 3000.0
