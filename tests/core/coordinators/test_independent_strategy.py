"""Uncoordinated checkpoints, the coordinator's side: the worst-case line, and who goes back."""

from everstream import events
from everstream.core.coordinators.restarts import FIRST_PAUSE_S
from everstream.core.coordinators.strategy import RETRY_S
from everstream.core.ids import (
    CheckpointNumber,
    Epoch,
    TaskNumber,
    first_generation,
)
from everstream.core.messages import (
    CheckpointFailed,
    CheckpointTaken,
    Committed,
    Halt,
    LinkCut,
    Progress,
    Recover,
    Restored,
    RestoreFailed,
    Resume,
    Rewired,
    ShardFailed,
    Stable,
    StartCheckpoint,
)
from everstream.core.orders import (
    Discard,
    EndRun,
    Outcome,
    Phase,
    WriteManifest,
)
from everstream.errors import ConnectorError, LeaseLost, StoreError
from tests.core.coordinators.coordinating import of
from tests.core.coordinators.line_run import (
    LEFT,
    NUMBERS,
    PLAN,
    PROCESSES,
    RIGHT,
    SHARDS,
    TO_LEFT,
    TO_RIGHT,
    Run,
)

# The worst-case line.


def test_a_checkpoint_that_received_what_no_checkpoint_has_sent_is_not_stable() -> None:
    run = Run().start()
    assert of(run.taken(LEFT, 1, position=5), WriteManifest) == []
    (written,) = of(run.taken(NUMBERS, 1, position=5), WriteManifest)
    assert {s: r.number for s, r in written.manifest.records.items()} == {NUMBERS: 1, LEFT: 1}
    assert run.numbers() == {}, "not before the store has answered"
    orders = run.it.on_manifest_written(1.0)
    assert run.numbers() == {NUMBERS: 1, LEFT: 1}
    (stable, *_) = of(orders, Stable)
    assert stable.numbers == {NUMBERS: 1, LEFT: 1, RIGHT: 0}
    assert stable.received == {TO_LEFT: 5}


def test_one_line_is_written_at_a_time_and_the_next_one_follows() -> None:
    run = Run().start()
    assert of(run.taken(NUMBERS, 1, position=5), WriteManifest)
    assert of(run.taken(LEFT, 1, position=5), WriteManifest) == []
    (written,) = of(run.it.on_manifest_written(1.0), WriteManifest)
    assert written.manifest.records[LEFT].number == 1 and written.manifest.epoch == 2


def test_a_line_that_could_not_be_written_is_tried_again() -> None:
    run = Run().start()
    run.taken(NUMBERS, 1, position=5)
    orders = run.it.on_manifest_failed(StoreError("no room"), 1.0)
    (failed,) = of(orders, events.CheckpointAborted)
    assert (failed.epoch, failed.reason) == (1, "line 1 could not be saved: no room")
    assert of(run.it.on_tick(1.0 + RETRY_S / 2), WriteManifest) == []
    orders = run.it.on_tick(1.0 + RETRY_S)
    assert of(orders, StartCheckpoint) and of(orders, WriteManifest)


def test_a_driver_that_was_replaced_ends() -> None:
    run = Run().start()
    run.taken(NUMBERS, 1, position=5)
    (end,) = of(run.it.on_manifest_failed(LeaseLost("driver 2 took over"), 1.0), EndRun)
    assert end.outcome is Outcome.FAILED and "this driver was replaced" in str(end.error)


def test_objects_that_no_kept_line_needs_are_named_once() -> None:
    run = Run().start()
    gone: list[str] = []
    for number in range(1, 7):
        for shard in SHARDS:
            orders = run.taken(shard, number, position=number)
            while of(orders, WriteManifest):
                orders = run.it.on_manifest_written(run.now_s)
                gone += [ref.name for discard in of(orders, Discard) for ref in discard.objects]
    assert "numbers-1" in gone and "left-1" in gone and "right-6" not in gone
    assert len(gone) == len(set(gone))
    kept = {ref.name for m in run.it.manifests for r in m.records.values() for ref in r.objects}
    assert kept.isdisjoint(gone)


# Going back.


def test_a_failed_sink_goes_back_alone_and_the_others_keep_their_state() -> None:
    run = Run().start()
    run.line(1, position=5)
    orders = run.report(ShardFailed(LEFT, run.generation[LEFT], ConnectorError("gone")))
    assert of(orders, Halt) == [], "nobody is downstream of it"
    recover = of(orders, Recover)[0]
    assert {s: r and r.number for s, r in recover.records.items()} == {LEFT: 1}
    assert recover.received == {TO_LEFT: 5} and recover.stable == {LEFT: 1}
    assert run.report(Restored(LEFT, recover.generation)) == [], "its neighbour is not ready"
    assert len(of(run.report(Rewired(NUMBERS, recover.generation)), Resume)) == 3
    assert run.it.phase is Phase.RUNNING


def test_those_downstream_halt_before_it_is_decided_who_goes_back() -> None:
    run = Run().start()
    run.line(1, position=5)
    home = PLAN.worker_of[NUMBERS]
    orders = run.it.on_process_lost(TaskNumber(home), "killed", 2.0)
    (halt, *_) = of(orders, Halt)
    assert halt.shards >= {LEFT, RIGHT} and of(orders, Recover) == []
    generation = halt.generation
    assert of(run.report(run.halted(LEFT, generation, 5, 0)), Recover) == []
    orders = run.report(run.halted(RIGHT, generation, 9, 0))
    (recover, *_) = of(orders, Recover)
    back = {s: r and r.number for s, r in recover.records.items()}
    assert back == {NUMBERS: 1, RIGHT: 1}, "left has received nothing that was not sent at 1"


def test_who_has_no_checkpoint_goes_back_to_the_start() -> None:
    run = Run().start()
    orders = run.it.on_process_lost(TaskNumber(PLAN.worker_of[NUMBERS]), "killed", 2.0)
    orders = run.report(
        *(run.halted(s, of(orders, Halt)[0].generation, 3, 0) for s in (LEFT, RIGHT))
    )
    (recover, *_) = of(orders, Recover)
    assert recover.records == {NUMBERS: None, LEFT: None, RIGHT: None}
    assert recover.received == {TO_LEFT: 0, TO_RIGHT: 0}


def test_nobody_resumes_before_the_lost_worker_is_back() -> None:
    run = Run().start()
    run.line(1, position=5)
    home = PLAN.worker_of[LEFT]
    (recover, *_) = of(run.it.on_process_lost(TaskNumber(home), "killed", 2.0), Recover)
    run.report(Rewired(NUMBERS, recover.generation))
    assert of(run.it.on_process_joined(TaskNumber(home), "again", 3.0), Recover) == [recover]
    orders = run.report(Restored(LEFT, recover.generation))
    assert of(orders, Resume)[0].addresses[home] == "again"


def test_a_second_failure_on_the_way_back_takes_the_first_along() -> None:
    run = Run().start()
    run.line(1, position=5)
    run.report(ShardFailed(LEFT, run.generation[LEFT], ConnectorError("gone")))
    run.report(ShardFailed(RIGHT, run.generation[RIGHT], ConnectorError("gone")))
    (recover, *_) = of(run.it.on_tick(1.0 + FIRST_PAUSE_S), Recover)
    assert set(recover.records) == {LEFT, RIGHT}


def test_checkpoints_after_the_one_gone_back_to_never_happened() -> None:
    run = Run().start()
    run.line(1, position=5)
    assert of(run.taken(LEFT, 2, position=8), WriteManifest) == [], "nobody has sent that much"
    orders = run.it.on_process_lost(TaskNumber(PLAN.worker_of[NUMBERS]), "killed", 2.0)
    run.answer(orders, {LEFT: (8, 0), RIGHT: (5, 0)})
    run.it.on_process_joined(TaskNumber(PLAN.worker_of[NUMBERS]), "again", 3.0)
    late = CheckpointTaken(first_generation(1), run.record(LEFT, 3, position=9))
    assert run.report(late) == [], "reports from before the return do not count"
    run.taken(NUMBERS, 2, position=8)
    run.it.on_manifest_written(4.0)
    assert run.numbers()[LEFT] == 1, "checkpoint 2 of left was given up"


def test_the_report_says_who_went_back_and_how_far() -> None:
    run = Run().start()
    run.line(1, position=5)
    run.now_s = 10.0
    orders = run.report(ShardFailed(LEFT, run.generation[LEFT], ConnectorError("gone")))
    run.answer(orders)
    (report,) = run.it.recoveries
    assert report.went_back == ("left:0",) and report.checkpoints_back == 0
    assert report.rollback_s == 10.0


def test_a_cut_link_takes_both_ends_back() -> None:
    run = Run().start()
    run.line(1, position=5)
    sender, receiver = PLAN.worker_of[NUMBERS], PLAN.worker_of[LEFT]
    orders = run.report(LinkCut(sender, receiver, run.it.generation, "reset"))
    (cut,) = of(orders, events.ConnectionCut)
    assert (cut.sender, cut.receiver, cut.how) == (sender, receiver, "reset")
    assert cut.from_epoch is None, "the recovery line is being computed"
    halt = of(orders, Halt)[0]
    (recover, *_) = of(run.report(run.halted(RIGHT, halt.generation, 5, 0)), Recover)
    assert set(recover.records) == {NUMBERS, LEFT}


# Checkpoints that cannot be read.


def test_an_unreadable_checkpoint_after_the_line_is_left_out() -> None:
    run = Run().start()
    run.line(1, position=5)
    run.taken(LEFT, 2, position=8)
    orders = run.report(ShardFailed(LEFT, run.generation[LEFT], ConnectorError("gone")))
    assert of(orders, Recover)[0].records[LEFT].number == 2  # type: ignore[union-attr]
    orders = run.report(RestoreFailed(LEFT, run.it.generation, "torn"))
    assert of(orders, events.StoreDamaged) == [
        events.StoreDamaged("checkpoint 2 of left:0", "torn")
    ]
    assert of(orders, Recover)[0].records[LEFT].number == 1  # type: ignore[union-attr]


def test_an_unreadable_line_is_written_over_before_anybody_goes_back() -> None:
    run = Run().start()
    run.line(1, position=5)
    run.line(2, position=9)
    run.report(ShardFailed(LEFT, run.generation[LEFT], ConnectorError("gone")))
    newest, older = run.it.manifests[:2]
    orders = run.report(RestoreFailed(LEFT, run.it.generation, "torn"))
    assert of(orders, events.StoreDamaged) == [
        events.StoreDamaged(f"line {newest.epoch}", "left:0: torn", older.epoch)
    ]
    assert of(orders, WriteManifest)[0].manifest.epoch == older.epoch
    assert of(orders, WriteManifest)[0].manifest.returns == (older.epoch,)
    assert of(orders, Recover) == [] and of(orders, Halt) == []
    orders = run.it.on_manifest_written(3.0)
    (recover, *_) = of(orders, Recover)
    assert set(recover.records) == set(SHARDS), "the sinks take back what the broken line showed"


def test_while_a_line_is_written_nobody_decides_about_an_unreadable_checkpoint() -> None:
    run = Run().start()
    run.line(1, position=5)
    assert of(run.taken(NUMBERS, 2, position=9), WriteManifest)
    run.report(ShardFailed(LEFT, run.generation[LEFT], ConnectorError("gone")))
    assert run.report(RestoreFailed(LEFT, run.it.generation, "torn")) == []
    (damaged,) = of(run.it.on_manifest_written(2.0), events.StoreDamaged)
    assert damaged.fallback_epoch is not None


def test_a_line_that_cannot_be_read_and_is_the_only_one_ends_the_run() -> None:
    run = Run().start()
    run.line(1, position=5)
    while len(run.it.manifests) > 1:
        run.report(ShardFailed(LEFT, run.generation[LEFT], ConnectorError("gone")))
        run.report(RestoreFailed(LEFT, run.it.generation, "torn"))
        run.it.on_manifest_written(3.0)
    orders = run.report(RestoreFailed(LEFT, run.it.generation, "torn"))
    (end,) = of(orders, EndRun)
    assert end.outcome is Outcome.FAILED and "start over with --fresh" in str(end.error)
    assert of(orders, WriteManifest) == []


def test_a_shard_that_cannot_even_start_ends_the_run() -> None:
    run = Run()
    for worker in PROCESSES:
        run.it.on_process_joined(worker, "here", 0.0)
    (end,) = of(run.report(RestoreFailed(LEFT, run.it.generation, "odd")), EndRun)
    assert end.outcome is Outcome.FAILED and "left:0 cannot start: odd" in str(end.error)


# The end of a run.


def test_a_run_ends_when_everybody_has_ended_and_the_sinks_have_committed_that() -> None:
    run = Run().start()
    run.line(1, position=5, final=True)
    assert run.it.phase is Phase.FINISHING
    run.report(Committed(LEFT, run.generation[LEFT], CheckpointNumber(1)))
    (end,) = of(run.report(Committed(RIGHT, run.generation[RIGHT], CheckpointNumber(1))), EndRun)
    assert end.outcome is Outcome.FINISHED


def test_told_to_stop_everybody_takes_a_last_checkpoint() -> None:
    run = Run().start()
    orders = run.it.on_stop("Ctrl-C", 1.0)
    assert of(orders, StartCheckpoint) == [StartCheckpoint(Epoch(0), stop=True)] * 3
    run.line(1, position=5, stopped=True)
    assert run.it.phase is Phase.FINISHING
    run.report(Committed(LEFT, run.generation[LEFT], CheckpointNumber(1)))
    (end,) = of(run.report(Committed(RIGHT, run.generation[RIGHT], CheckpointNumber(1))), EndRun)
    assert end.outcome is Outcome.STOPPED


def test_a_last_checkpoint_that_failed_is_asked_for_again() -> None:
    run = Run().start()
    failed = CheckpointFailed(LEFT, run.generation[LEFT], CheckpointNumber(1), "full", final=True)
    (event,) = of(run.report(failed), events.CheckpointAborted)
    assert (event.epoch, event.reason) == (1, "left:0 could not save checkpoint 1: full")
    assert of(run.it.on_tick(RETRY_S), StartCheckpoint)


def test_a_new_driver_goes_on_from_the_newest_line() -> None:
    first = Run().start()
    first.line(1, position=5)
    second = Run(first.it.manifests)
    orders = [o for worker in PROCESSES for o in second.it.on_process_joined(worker, "here", 0.0)]
    (recover, *_) = of(orders, Recover)
    assert {s: r and r.number for s, r in recover.records.items()} == dict.fromkeys(SHARDS, 1)


def test_a_slow_return_is_spoken_of_with_those_who_have_not_answered() -> None:
    run = Run(slow_after_s=10.0).start()
    run.report(ShardFailed(NUMBERS, run.generation[NUMBERS], ConnectorError("gone")))
    run.it.on_tick(0.0)
    (stalled,) = of(run.it.on_tick(11.0), events.Stalled)
    assert "halting" in stalled.what and stalled.missing == ("left:0", "right:0")


def test_progress_of_a_shard_that_has_gone_back_since_does_not_count() -> None:
    run = Run().start()
    before = run.generation[LEFT]
    run.answer(run.report(ShardFailed(LEFT, before, ConnectorError("gone"))))
    run.report(Progress(LEFT, before, {"left": (99, 99)}))
    assert run.it.totals().get("left", 0) == 0
