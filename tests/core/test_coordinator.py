"""The coordinator: phases, epochs, rollbacks, fall backs, stops and the restart budget."""

from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

from everstream.connectors.generate import Range
from everstream.core.coordinator import RETRY_S, Coordinator
from everstream.core.ids import Epoch, Generation, HostId, ShardId, first_generation
from everstream.core.manifest import EpochManifest
from everstream.core.messages import (
    CheckpointFailed,
    CheckpointRecord,
    CheckpointTaken,
    Committed,
    Progress,
    Restore,
    Restored,
    RestoreFailed,
    Resume,
    ShardFailed,
    Shutdown,
    Stable,
    StartCheckpoint,
)
from everstream.core.orders import (
    EndRun,
    Note,
    Order,
    Outcome,
    Phase,
    Policy,
    SendTo,
    WriteManifest,
)
from everstream.core.plan import Plan, make_plan
from everstream.errors import ConnectorError, LeaseLost, RunFailed, StoreError
from everstream.pipeline.stream import Pipeline

T = TypeVar("T")
NUMBERS, DOUBLE = ShardId("numbers", 0), ShardId("double", 0)
H0, H1 = HostId(0), HostId(1)


def plan() -> Plan:
    pipeline = Pipeline("test")
    numbers = pipeline.source(Range(10), name="numbers")
    numbers.on_demand().map(lambda x: 2 * x, name="double").collect(name="out")
    return make_plan(pipeline, hosts=2)


def of(orders: Iterable[Order], kind: type[T]) -> list[T]:
    """The orders, or the commands sent, of one kind."""
    found: list[Any] = []
    for order in orders:
        if isinstance(order, kind):
            found.append(order)
        elif isinstance(order, SendTo) and isinstance(order.command, kind):
            found.append(order.command)
    return found


class Run:
    """A coordinator and what it has ordered; answers for the shards in one line each."""

    def __init__(self, policy: Policy | None = None, manifests: Any = ()) -> None:
        policy = policy or Policy(every_s=10.0)
        self.it = Coordinator(plan(), policy, first_generation(1), manifests)
        self.now_s = 0.0

    def gather(self) -> list[Order]:
        first = self.it.on_host_joined(H0, "address-0", self.now_s)
        return first + self.it.on_host_joined(H1, "address-1", self.now_s)

    def report(self, *reports: Any) -> list[Order]:
        return [order for report in reports for order in self.it.on_report(report, self.now_s)]

    def restored(self) -> list[Order]:
        return self.report(*(Restored(shard, self.it.generation) for shard in (NUMBERS, DOUBLE)))

    def to_running(self) -> "Run":
        self.gather()
        self.restored()
        assert self.it.phase is Phase.RUNNING
        return self

    def record(self, shard: ShardId, epoch: int, **more: Any) -> CheckpointRecord:
        operators = self.it.plan.chains[shard.operator].operators
        return CheckpointRecord(shard, Epoch(epoch), operators, **more)

    def taken(self, epoch: int, *shards: ShardId, **more: Any) -> list[Order]:
        g = self.it.generation
        return self.report(*(CheckpointTaken(g, self.record(s, epoch, **more)) for s in shards))

    def tick(self, now_s: float) -> list[Order]:
        self.now_s = now_s
        return self.it.on_tick(now_s)

    def epoch(self, number: int, at_s: float) -> list[Order]:
        """A whole epoch, from its start to its being stable."""
        self.tick(at_s)
        assert of(self.taken(number, NUMBERS, DOUBLE), WriteManifest)
        return self.it.on_manifest_written(self.now_s)


def manifest(epoch: int, final: bool = False) -> EpochManifest:
    run = Run()
    records = {s: run.record(s, epoch, final=final) for s in (NUMBERS, DOUBLE)}
    return EpochManifest(Epoch(epoch), records, "test", final)


# Phases.


def test_nothing_happens_before_every_host_is_there() -> None:
    run = Run()
    assert run.it.on_host_joined(H0, "a", 0.0) == []
    assert run.it.phase is Phase.GATHERING
    orders = run.it.on_host_joined(H1, "b", 0.0)
    assert len(of(orders, Restore)) == 2 and run.it.phase is Phase.RESTORING


def test_nobody_runs_before_everybody_has_restored() -> None:
    run = Run()
    run.gather()
    assert of(run.report(Restored(NUMBERS, run.it.generation)), Resume) == []
    orders = run.report(Restored(DOUBLE, run.it.generation))
    (first, second) = of(orders, Resume)
    assert first == second == Resume(run.it.generation, {H0: "address-0", H1: "address-1"})
    assert run.it.phase is Phase.RUNNING


def test_generations_of_a_later_driver_are_above_all_of_an_earlier_one() -> None:
    assert first_generation(2) > first_generation(1) + 1_000_000
    run = Run()
    (restore, _) = of(run.gather(), Restore)
    assert restore.generation > first_generation(1)


def test_a_run_goes_from_epoch_to_epoch_to_the_end() -> None:
    run = Run().to_running()
    assert of(run.tick(9.9), StartCheckpoint) == []
    assert of(run.tick(10.0), StartCheckpoint) == [StartCheckpoint(Epoch(1))] * 2
    assert run.taken(1, NUMBERS) == []
    (write,) = of(run.taken(1, DOUBLE), WriteManifest)
    assert write.manifest.epoch == 1 and not write.manifest.final
    assert write.manifest.shard_counts == {"numbers": 1, "double": 1, "out": 1}
    assert run.it.stable_epoch == 0, "not before the store has answered"
    assert of(run.it.on_manifest_written(11.0), Stable) == [Stable(Epoch(1))] * 2
    assert run.it.stable_epoch == 1
    (last,) = of(run.taken(2, NUMBERS, DOUBLE, final=True), WriteManifest)
    assert last.manifest.final
    run.it.on_manifest_written(12.0)
    assert run.it.phase is Phase.FINISHING
    orders = run.report(Committed(DOUBLE, run.it.generation, Epoch(2)))
    assert of(orders, EndRun) == [EndRun(Outcome.FINISHED)]
    assert len(of(orders, Shutdown)) == 2 and run.it.phase is Phase.DONE


def test_one_epoch_is_in_flight_at_a_time() -> None:
    run = Run().to_running()
    run.tick(10.0)
    assert run.tick(30.0) == []
    run.taken(1, NUMBERS, DOUBLE)
    assert run.tick(50.0) == [], "nor while the manifest is being written"
    run.it.on_manifest_written(51.0)
    assert of(run.tick(52.0), StartCheckpoint) == [StartCheckpoint(Epoch(2))] * 2


def test_epochs_can_be_due_by_records() -> None:
    run = Run(Policy(every_s=None, every_records=100)).to_running()
    g = run.it.generation
    run.report(Progress(NUMBERS, g, {"numbers": (0, 99)}))
    assert run.tick(1.0) == []
    run.report(Progress(NUMBERS, g, {"numbers": (0, 100)}))
    assert of(run.tick(2.0), StartCheckpoint)
    assert run.it.records_read() == 100


def test_records_read_before_a_checkpoint_do_not_count_for_the_next_after_a_recovery() -> None:
    run = Run(Policy(every_s=None, every_records=100)).to_running()
    run.report(Progress(NUMBERS, run.it.generation, {"numbers": (0, 100)}))
    run.tick(1.0)
    run.taken(1, NUMBERS, DOUBLE, counts={"numbers": (0, 100)})
    run.it.on_manifest_written(2.0)
    run.it.on_host_lost(H0, "killed", 3.0)
    run.it.on_host_joined(H0, "again", 4.0)
    run.restored()
    run.report(Progress(NUMBERS, run.it.generation, {"numbers": (0, 199)}))
    assert run.tick(5.0) == []


def test_reports_of_an_older_generation_are_ignored() -> None:
    run = Run()
    run.gather()
    old = Generation(run.it.generation - 1)
    assert run.report(Restored(NUMBERS, old), Restored(DOUBLE, old)) == []
    assert run.it.phase is Phase.RESTORING


# Failures.


def test_a_lost_host_rolls_everybody_back_to_the_last_stable_epoch() -> None:
    run = Run().to_running()
    run.epoch(1, at_s=10.0)
    before = run.it.generation
    orders = run.it.on_host_lost(H0, "killed", 12.0)
    (restore,) = of(orders, Restore)
    assert (restore.generation, restore.stable) == (before + 1, 1)
    assert restore.records[NUMBERS] == (run.record(NUMBERS, 1),)
    assert [note.text for note in of(orders, Note)] == ["host 0 (killed): going back to epoch 1"]
    assert of(run.it.on_host_joined(H0, "again", 13.0), Restore) == [restore]
    run.restored()
    (report,) = run.it.book.reports
    assert (report.detected_s, report.restarted_s, report.from_epoch) == (12.0, 13.0, 1)


def test_a_host_that_comes_back_unannounced_is_a_failure_too() -> None:
    run = Run().to_running()
    orders = run.it.on_host_joined(H0, "again", 5.0)
    assert of(orders, Restore) and run.it.phase is Phase.RESTORING
    assert "came back" in of(orders, Note)[0].text


def test_a_rollback_waits_for_the_manifest_under_way() -> None:
    run = Run().to_running()
    run.tick(10.0)
    run.taken(1, NUMBERS, DOUBLE)
    assert of(run.it.on_host_lost(H0, "killed", 11.0), Restore) == []
    assert of(run.it.on_host_joined(H0, "again", 12.0), Restore) == []
    orders = run.it.on_manifest_written(13.0)
    assert {restore.stable for restore in of(orders, Restore)} == {1}
    assert of(orders, Stable) == []


def test_a_rollback_goes_to_the_epoch_before_if_the_manifest_is_known_to_be_missing() -> None:
    run = Run().to_running()
    run.tick(10.0)
    run.taken(1, NUMBERS, DOUBLE)
    run.it.on_host_lost(H0, "killed", 11.0)
    orders = run.it.on_manifest_failed(StoreError("no room"), 12.0)
    assert {restore.stable for restore in of(orders, Restore)} == {0}


def test_an_epoch_in_flight_dies_with_a_rollback_and_its_number_is_not_used_again() -> None:
    run = Run().to_running()
    run.tick(10.0)
    run.taken(1, NUMBERS)
    run.it.on_host_joined(H0, "again", 11.0)
    run.restored()
    assert of(run.tick(30.0), StartCheckpoint) == [StartCheckpoint(Epoch(2))] * 2


def test_a_failed_checkpoint_costs_the_epoch_and_a_pause() -> None:
    run = Run().to_running()
    run.tick(10.0)
    orders = run.report(CheckpointFailed(DOUBLE, run.it.generation, Epoch(1), "full"))
    assert of(orders, Note) == [Note("epoch 1 given up: double:0 could not save: full", True)]
    assert of(run.taken(1, NUMBERS, DOUBLE), WriteManifest) == []
    assert run.tick(10.0 + RETRY_S / 2) == []
    assert of(run.tick(25.0), StartCheckpoint) == [StartCheckpoint(Epoch(2))] * 2


def test_a_last_checkpoint_that_failed_is_asked_for_even_without_checkpoints() -> None:
    run = Run(Policy(checkpoints=False)).to_running()
    failed = CheckpointFailed(NUMBERS, run.it.generation, Epoch(1), "full", final=True)
    run.report(failed)
    assert of(run.tick(RETRY_S), StartCheckpoint) == [StartCheckpoint(Epoch(1))] * 2


def test_a_manifest_that_could_not_be_written_costs_the_epoch() -> None:
    run = Run().to_running()
    run.tick(10.0)
    run.taken(1, NUMBERS, DOUBLE)
    orders = run.it.on_manifest_failed(StoreError("no room"), 11.0)
    assert of(orders, Note) == [Note("epoch 1 given up: no room", True)]
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
    orders = run.it.on_host_lost(H0, "killed", 5.2)
    assert of(orders, EndRun) == []
    assert not of(orders, Note)[0].warning
    (report,) = run.it.book.reports
    assert report.injected and report.milliseconds()["detected_ms"] == 200.0
    run.it.on_host_joined(H0, "again", 6.0)
    assert of(run.it.on_host_lost(H0, "killed", 7.0), EndRun), "the next one is"


def test_a_run_that_has_ended_stays_ended_whatever_the_store_says_later() -> None:
    run = Run(Policy(every_s=10.0, max_restarts=1)).to_running()
    run.tick(10.0)
    run.taken(1, NUMBERS, DOUBLE)
    run.it.on_host_lost(H0, "killed", 11.0)
    assert of(run.it.on_host_lost(H1, "killed", 12.5), EndRun)
    assert run.it.on_manifest_written(12.0) == []
    assert run.it.phase is Phase.DONE
    assert run.it.on_stop("late", 13.0) == []
    assert of(run.it.on_host_joined(H0, "late", 14.0), Shutdown)


def test_a_failure_while_finishing_restores_and_then_ends() -> None:
    run = Run().to_running()
    run.taken(1, NUMBERS, DOUBLE, final=True)
    run.it.on_manifest_written(1.0)
    assert run.it.phase is Phase.FINISHING
    run.it.on_host_lost(H1, "killed", 2.0)
    run.it.on_host_joined(H1, "again", 3.0)
    assert of(run.restored(), EndRun) == [EndRun(Outcome.FINISHED)]


# Going back further.


def test_a_new_driver_goes_on_from_the_newest_manifest() -> None:
    run = Run(manifests=[manifest(3), manifest(2)])
    (restore, _) = of(run.gather(), Restore)
    assert restore.stable == 3
    run.restored()
    assert of(run.tick(20.0), StartCheckpoint) == [StartCheckpoint(Epoch(4))] * 2


def test_a_new_driver_has_nothing_to_do_if_the_last_epoch_is_stable() -> None:
    run = Run(manifests=[manifest(3, final=True)])
    run.gather()
    assert of(run.restored(), EndRun) == [EndRun(Outcome.FINISHED)]


def test_a_corrupt_checkpoint_falls_back_and_makes_that_durable_first() -> None:
    run = Run(manifests=[manifest(3), manifest(2)])
    run.gather()
    orders = run.report(RestoreFailed(DOUBLE, run.it.generation, "torn"))
    assert of(orders, Note) == [
        Note("epoch 3 cannot be restored (double:0: torn); falling back to epoch 2", True)
    ]
    assert of(orders, WriteManifest) == [WriteManifest(manifest(2))]
    assert of(orders, Restore) == [], "nobody goes back before it is written"
    orders = run.it.on_manifest_written(1.0)
    assert {restore.stable for restore in of(orders, Restore)} == {2}
    run.restored()
    assert of(run.tick(20.0), StartCheckpoint) == [StartCheckpoint(Epoch(4))] * 2


def test_a_fall_back_that_cannot_be_written_is_tried_again() -> None:
    run = Run(manifests=[manifest(3), manifest(2)])
    run.gather()
    run.report(RestoreFailed(DOUBLE, run.it.generation, "torn"))
    orders = run.it.on_manifest_failed(StoreError("no room"), 1.0)
    assert {restore.stable for restore in of(orders, Restore)} == {3}
    orders = run.report(RestoreFailed(DOUBLE, run.it.generation, "torn"))
    assert of(orders, WriteManifest) == [WriteManifest(manifest(2))]


def test_the_last_fall_back_is_the_start() -> None:
    run = Run(manifests=[manifest(3)])
    run.gather()
    orders = run.report(RestoreFailed(DOUBLE, run.it.generation, "torn"))
    assert "falling back to the start" in of(orders, Note)[0].text
    (write,) = of(orders, WriteManifest)
    assert (write.manifest.epoch, write.manifest.records) == (0, {})
    (restore, _) = of(run.it.on_manifest_written(1.0), Restore)
    assert restore.stable == 0 and restore.records == {NUMBERS: (), DOUBLE: ()}
    (ended,) = of(run.report(RestoreFailed(DOUBLE, run.it.generation, "odd")), EndRun)
    assert "double:0 cannot start: odd" in str(ended.error)


def test_an_epoch_that_was_given_up_is_not_gone_back_to_by_a_later_driver() -> None:
    run = Run(manifests=[manifest(2), manifest(3), manifest(2), manifest(1)])
    assert [m.epoch for m in run.it.manifests] == [2, 1]


def test_two_shards_that_cannot_restore_fall_back_one_epoch_not_two() -> None:
    run = Run(manifests=[manifest(3), manifest(2), manifest(1)])
    run.gather()
    g = run.it.generation
    orders = run.report(RestoreFailed(DOUBLE, g, "torn"), RestoreFailed(NUMBERS, g, "torn"))
    assert len(of(orders, WriteManifest)) == 1


# Stopping.


def test_a_stop_takes_a_checkpoint_commits_and_ends() -> None:
    run = Run().to_running()
    orders = run.it.on_stop("ctrl-c", 1.0)
    assert of(orders, StartCheckpoint) == [StartCheckpoint(Epoch(1), stop=True)] * 2
    run.taken(1, NUMBERS, DOUBLE)
    run.it.on_manifest_written(2.0)
    assert run.it.phase is Phase.FINISHING
    orders = run.report(Committed(DOUBLE, run.it.generation, Epoch(1)))
    assert of(orders, EndRun) == [EndRun(Outcome.STOPPED)]


def test_a_stop_whose_epoch_fails_takes_another() -> None:
    run = Run().to_running()
    run.it.on_stop("ctrl-c", 1.0)
    run.report(CheckpointFailed(DOUBLE, run.it.generation, Epoch(1), "full"))
    orders = run.tick(1.0 + 2 * RETRY_S)
    assert of(orders, StartCheckpoint) == [StartCheckpoint(Epoch(2), stop=True)] * 2


def test_a_stop_during_a_recovery_comes_after_it() -> None:
    run = Run().to_running()
    run.it.on_host_joined(H0, "again", 1.0)
    assert run.it.on_stop("ctrl-c", 1.5) == []
    run.restored()
    assert of(run.tick(2.0), StartCheckpoint) == [StartCheckpoint(Epoch(1), stop=True)] * 2


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_stop_before_anything_ran_or_without_checkpoints_ends_at_once(checkpoints: bool) -> None:
    run = Run(Policy(checkpoints=checkpoints))
    if not checkpoints:
        run.to_running()
    assert of(run.it.on_stop("ctrl-c", 0.0), EndRun) == [EndRun(Outcome.STOPPED)]


def test_a_stop_while_the_last_results_are_committed_does_not_change_the_outcome() -> None:
    run = Run(Policy(checkpoints=False)).to_running()
    run.taken(1, NUMBERS, DOUBLE, final=True)
    run.it.on_manifest_written(1.0)
    assert run.it.on_stop("ctrl-c", 2.0) == []
    orders = run.report(Committed(DOUBLE, run.it.generation, Epoch(1)))
    assert of(orders, EndRun) == [EndRun(Outcome.FINISHED)]


# Recovery reports.


def test_a_recovery_has_caught_up_when_every_operator_is_where_it_was() -> None:
    run = Run().to_running()
    counts = {"numbers": (0, 50), "double": (40, 40), "out": (40, 40)}
    run.report(Progress(NUMBERS, run.it.generation, counts))
    run.it.on_host_joined(H0, "again", 1.0)
    run.now_s = 2.0
    run.restored()
    (report,) = run.it.book.reports
    assert (report.records_replayed, report.duplicates_suppressed) == (50, 40)
    run.now_s = 3.0
    run.report(Progress(NUMBERS, run.it.generation, {**counts, "double": (39, 39)}))
    assert (report.replayed_s, report.caught_up_s) == (3.0, None)
    run.now_s = 4.0
    run.report(Progress(NUMBERS, run.it.generation, counts))
    assert report.caught_up_s == 4.0
    assert report.to_json()["caught_up_ms"] == 3000.0
