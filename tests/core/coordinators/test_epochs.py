"""The coordinator when all goes well: phases, epochs and stops."""

import pytest

from everstream import events
from everstream.core.coordinators.strategy import RETRY_S
from everstream.core.ids import CheckpointNumber, Epoch, Generation, first_generation
from everstream.core.messages import (
    CheckpointFailed,
    Committed,
    Progress,
    Restore,
    Restored,
    Resume,
    Shutdown,
    Stable,
    StartCheckpoint,
)
from everstream.core.orders import (
    AssignWorker,
    EndRun,
    Outcome,
    Phase,
    Policy,
    WriteManifest,
)

from .coordinating import DOUBLE, H0, H1, NUMBERS, P0, P1, Run, of


def test_nothing_happens_before_every_worker_is_there() -> None:
    run = Run()
    assert run.it.on_process_joined(P0, "a", 0.0) == [AssignWorker(P0, H0)]
    assert run.it.phase is Phase.GATHERING
    orders = run.it.on_process_joined(P1, "b", 0.0)
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
    orders = run.report(Committed(DOUBLE, run.it.generation, CheckpointNumber(2)))
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
    run.it.on_process_lost(P0, "killed", 3.0)
    run.it.on_process_joined(P0, "again", 4.0)
    run.restored()
    run.report(Progress(NUMBERS, run.it.generation, {"numbers": (0, 199)}))
    assert run.tick(5.0) == []


def test_reports_of_an_older_generation_are_ignored() -> None:
    run = Run()
    run.gather()
    old = Generation(run.it.generation - 1)
    assert run.report(Restored(NUMBERS, old), Restored(DOUBLE, old)) == []
    assert run.it.phase is Phase.RESTORING


def test_a_stop_takes_a_checkpoint_commits_and_ends() -> None:
    run = Run().to_running()
    orders = run.it.on_stop("ctrl-c", 1.0)
    assert of(orders, StartCheckpoint) == [StartCheckpoint(Epoch(1), stop=True)] * 2
    run.taken(1, NUMBERS, DOUBLE)
    run.it.on_manifest_written(2.0)
    assert run.it.phase is Phase.FINISHING
    orders = run.report(Committed(DOUBLE, run.it.generation, CheckpointNumber(1)))
    assert of(orders, EndRun) == [EndRun(Outcome.STOPPED)]


def test_a_stop_whose_epoch_fails_takes_another() -> None:
    run = Run().to_running()
    run.it.on_stop("ctrl-c", 1.0)
    run.report(CheckpointFailed(DOUBLE, run.it.generation, CheckpointNumber(1), "full"))
    orders = run.tick(1.0 + 2 * RETRY_S)
    assert of(orders, StartCheckpoint) == [StartCheckpoint(Epoch(2), stop=True)] * 2


def test_a_stop_during_a_recovery_comes_after_it() -> None:
    run = Run().to_running()
    run.it.on_process_joined(P0, "again", 1.0)
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
    orders = run.report(Committed(DOUBLE, run.it.generation, CheckpointNumber(1)))
    assert of(orders, EndRun) == [EndRun(Outcome.FINISHED)]


def test_an_epoch_that_takes_too_long_is_given_up_with_those_missing_and_the_next_starts() -> None:
    run = Run(Policy(every_s=10.0, checkpoint_timeout_s=60.0, slow_after_s=1e9)).to_running()
    run.tick(10.0)
    run.taken(1, NUMBERS)
    assert run.tick(69.9) == []
    reason = (
        "epoch 1 given up: not complete after 60 s; still missing: double:0. Held up by "
        "back-pressure: the marker has not reached double:0"
    )
    assert of(run.tick(70.0), events.CheckpointAborted) == [events.CheckpointAborted(1, reason)]
    assert of(run.tick(70.0 + RETRY_S), StartCheckpoint) == [StartCheckpoint(Epoch(2))] * 2
    assert run.taken(1, DOUBLE) == [], "what comes late counts for nobody"
    (write,) = of(run.taken(2, NUMBERS, DOUBLE), WriteManifest)
    assert write.manifest.epoch == 2


def test_a_stop_whose_checkpoint_is_not_taken_in_time_ends_without_and_says_so() -> None:
    run = Run(Policy(every_s=10.0, stop_grace_s=30.0)).to_running()
    run.epoch(1, 10.0)
    run.it.on_stop("ctrl-c", 20.0)
    run.taken(2, NUMBERS)
    assert of(run.tick(49.9), EndRun) == []
    orders = run.tick(50.0)
    assert of(orders, EndRun) == [EndRun(Outcome.STOPPED)]
    stopped = events.StoppedWithoutCheckpoint("epoch 2", 1)
    assert of(orders, events.StoppedWithoutCheckpoint) == [stopped]
    assert run.tick(60.0) == []


def test_a_stop_waits_longer_where_checkpoints_take_long_but_not_for_ever() -> None:
    run = Run(Policy(every_s=10.0, stop_grace_s=30.0, checkpoint_timeout_s=100.0)).to_running()
    run.tick(10.0)
    run.now_s = 30.0
    run.taken(1, NUMBERS, DOUBLE)
    run.it.on_manifest_written(30.0)
    run.it.on_stop("ctrl-c", 31.0)
    assert of(run.tick(90.9), EndRun) == []
    assert of(run.tick(91.0), EndRun), "three times the 20 s of the last one"


def test_a_stop_that_no_worker_is_there_to_take_ends_all_the_same() -> None:
    run = Run(Policy(every_s=10.0, stop_grace_s=30.0)).to_running()
    run.it.on_process_lost(P0, "killed", 1.0)
    run.it.on_stop("ctrl-c", 2.0)
    orders = run.tick(32.0)
    assert of(orders, EndRun) == [EndRun(Outcome.STOPPED)]
    (stopped,) = of(orders, events.StoppedWithoutCheckpoint)
    assert stopped.epoch == 0


def test_a_stop_does_not_leave_the_last_results_of_a_finished_run_uncommitted() -> None:
    run = Run(Policy(every_s=10.0, stop_grace_s=30.0)).to_running()
    run.it.on_stop("ctrl-c", 1.0)
    run.taken(2, NUMBERS, DOUBLE, final=True)
    run.it.on_manifest_written(2.0)
    assert of(run.tick(100.0), EndRun) == []
    orders = run.report(Committed(DOUBLE, run.it.generation, CheckpointNumber(2)))
    assert of(orders, EndRun) == [EndRun(Outcome.FINISHED)]
