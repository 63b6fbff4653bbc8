"""The parts a coordinator is made of, each by itself."""

import pytest

from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.coordinators.membership import Membership
from everstream.core.coordinators.progress import RunProgress
from everstream.core.coordinators.restarts import Restarts
from everstream.core.coordinators.run_state import Outbox, RunState
from everstream.core.coordinators.termination import CycleTermination
from everstream.core.ids import CheckpointNumber, Epoch, Generation, ShardId, TaskNumber
from everstream.core.messages import Census, Progress, Shutdown
from everstream.core.orders import PHASE_MOVES, Phase, Policy, Publish, SendTo
from everstream.errors import ConnectorError, InternalError, RunFailed
from everstream.events import SpareLost
from tests.core.coordinators.coordinating import DOUBLE, H0, H1, NUMBERS, P0, P1, plan

G = Generation(1)


# Orders.


def test_orders_are_taken_once_and_in_the_order_they_were_given() -> None:
    outbox = Outbox()
    outbox.tell(SpareLost("killed"))
    outbox.send(H0, Shutdown())
    assert outbox.take() == [Publish(SpareLost("killed")), SendTo(H0, Shutdown())]
    assert outbox.take() == []


# Membership.


def test_everybody_is_here_when_the_last_worker_has_joined_and_until_one_is_lost() -> None:
    workers = Membership(plan())
    workers.join(P0, "here")
    assert H0 in workers and H1 not in workers and not workers.complete
    workers.join(P1, "there")
    assert workers.complete and workers.addresses == {H0: "here", H1: "there"}
    workers.leave(P0)
    assert not workers.complete and list(workers) == [H1] and len(workers) == 1


def test_a_worker_that_joins_again_has_its_new_address() -> None:
    workers = Membership(plan())
    workers.join(P0, "before")
    assert workers.leave(P0) == H0
    workers.join(P0, "after")
    assert workers.addresses == {H0: "after"} and len(workers) == 1


def test_what_one_does_with_the_addresses_does_not_change_them() -> None:
    workers = Membership(plan())
    workers.join(P0, "here")
    workers.addresses.clear()
    assert H0 in workers


def test_only_workers_that_are_here_are_found_by_their_shards() -> None:
    made = plan()
    workers = Membership(made)
    home = made.worker_of[DOUBLE]
    assert workers.of([DOUBLE]) == []
    workers.join(TaskNumber(home), "here")
    assert workers.of([DOUBLE]) == [home] and workers.of([]) == []


P2 = TaskNumber(2)


def test_who_finds_every_place_taken_stands_by_and_takes_the_next_that_is_lost() -> None:
    workers = Membership(plan())
    assert [workers.join(p, f"at {p}") for p in (P2, P0, P1)] == [H0, H1, None]
    assert workers.spares == (P1,)
    assert workers.leave(P0) == H1
    assert workers.fill(H1) == P1
    assert workers.addresses == {H0: "at 2", H1: "at 1"} and workers.spares == ()
    assert workers.join(P0, "again") is None, "whoever comes then stands by"


def test_a_spare_that_dies_leaves_no_place_empty() -> None:
    workers = Membership(plan())
    for process in (P0, P1, P2):
        workers.join(process, "here")
    assert workers.leave(P2) is None and workers.complete
    assert workers.leave(P1) == H1 and workers.fill(H1) is None, "nobody stands by any more"


def test_without_spares_a_process_has_the_place_with_its_number() -> None:
    workers = Membership(plan())
    assert workers.join(P1, "there") == H1 and workers.join(P0, "here") == H0
    workers.leave(P0)
    workers.leave(P1)
    assert workers.join(P1, "there") == H1


# RunProgress.


def test_sources_count_what_they_give_and_others_what_they_take() -> None:
    progress = RunProgress(plan())
    progress.heard(Progress(NUMBERS, G, {"numbers": (0, 30)}))
    progress.heard(Progress(DOUBLE, G, {"double": (20, 19), "out": (19, 19)}))
    assert progress.totals() == {"numbers": 30, "double": 20, "out": 19}
    assert progress.records_read() == 30
    assert progress.shown() == {"out": 19}


def test_the_newest_report_of_a_shard_counts() -> None:
    progress = RunProgress(plan())
    progress.heard(Progress(NUMBERS, G, {"numbers": (0, 30)}))
    progress.heard(Progress(NUMBERS, G, {"numbers": (0, 40)}))
    assert progress.records_read() == 40


def test_who_goes_back_stands_where_its_checkpoint_is() -> None:
    progress = RunProgress(plan())
    progress.heard(Progress(NUMBERS, G, {"numbers": (0, 30)}, ended=True))
    progress.heard(Progress(DOUBLE, G, {"double": (20, 20)}))
    assert progress.sources_ended()
    record = CheckpointRecord(
        NUMBERS, CheckpointNumber(1), ("numbers",), counts={"numbers": (0, 9)}
    )
    progress.went_back(Generation(2), [(NUMBERS, record), (DOUBLE, None)])
    assert progress.totals() == {"numbers": 9}
    assert not progress.sources_ended()


def test_frames_known_to_be_lost_are_those_heard_of_or_those_saved_whichever_are_more() -> None:
    progress = RunProgress(plan())
    saved = {DOUBLE: CheckpointRecord(DOUBLE, CheckpointNumber(1), ("double",), lost_frames=2)}
    assert progress.lost_frames(saved) == 2
    progress.heard(Progress(DOUBLE, G, {}, lost_frames=3))
    assert progress.lost_frames(saved) == 3


# Restarts.


def restarts(**policy: float) -> tuple[Restarts, RunProgress]:
    progress = RunProgress(plan())
    return Restarts(Policy(**policy), progress), progress  # type: ignore[arg-type]


def test_a_failure_too_many_ends_the_run_with_its_cause() -> None:
    it, _ = restarts(max_restarts=1, restart_window_s=60)
    cause = ConnectorError("no route")
    first = it.open("double failed", [DOUBLE], None, 1.0)
    assert it.too_many(first, None, cause, 1.0) is None
    second = it.open("double failed", [DOUBLE], None, 2.0)
    verdict = it.too_many(second, None, cause, 2.0)
    assert isinstance(verdict, RunFailed) and verdict.cause is cause
    assert "double failed: more than 1 failures within 60 s" in str(verdict)


def test_a_kill_of_our_own_is_free_and_its_report_counts_from_the_kill() -> None:
    it, _ = restarts(max_restarts=0)
    it.injected(H0, 5.0)
    report = it.open("worker 0", [NUMBERS], H0, 5.25)
    assert report.injected and it.too_many(report, H0, None, 5.25) is None
    assert report.milliseconds()["detected_ms"] == 250.0
    again = it.open("worker 0", [NUMBERS], H0, 6.0)
    assert not again.injected and it.too_many(again, H0, None, 6.0) is not None


def test_a_worker_that_cannot_start_uses_up_the_same_budget() -> None:
    it, _ = restarts(max_restarts=1)
    assert it.start_failed(H0, ConnectorError("no module"), Epoch(1), 1.0) is None
    verdict = it.start_failed(H0, ConnectorError("no disk"), Epoch(1), 2.0)
    assert "worker 0 could not start, more than 1 times" in str(verdict)


def test_a_failure_is_made_up_for_when_all_have_come_as_far_again() -> None:
    it, progress = restarts(max_restarts=3)
    progress.heard(Progress(NUMBERS, G, {"numbers": (0, 30)}))
    report = it.open("worker 0", [NUMBERS], H0, 1.0)
    progress.went_back(Generation(2), [(NUMBERS, None)])
    it.book.resumed(report.from_epoch, progress.records_read(), 2.0)
    progress.heard(Progress(NUMBERS, Generation(2), {"numbers": (0, 29)}))
    it.progressed(3.0)
    assert report.caught_up_s is None
    progress.heard(Progress(NUMBERS, Generation(2), {"numbers": (0, 30)}))
    it.progressed(4.0)
    assert report.caught_up_s == 4.0 and report.records_replayed == 30


def test_a_second_failure_on_the_way_back_keeps_the_goal_of_the_first() -> None:
    it, progress = restarts(max_restarts=3)
    progress.heard(Progress(NUMBERS, G, {"numbers": (0, 30)}))
    it.open("worker 0", [NUMBERS], H0, 1.0)
    progress.went_back(Generation(2), [(NUMBERS, None)])
    assert it.open("worker 1", [DOUBLE], H1, 2.0).goal == {"numbers": 30}


# Committing.


def test_the_end_waits_for_the_last_commit_of_every_sink() -> None:
    other = ShardId("double", 1)
    it = RunState(plan(), Policy(), G, [])
    assert not it.committing
    it.committing = {DOUBLE, other}
    last = CheckpointNumber(7)
    it.committed(DOUBLE, CheckpointNumber(6), last)
    assert it.committing == {DOUBLE, other}, "an earlier commit is not the last"
    it.committed(DOUBLE, CheckpointNumber(7), last)
    assert it.committing == {other}
    it.committed(other, CheckpointNumber(9), last)
    assert not it.committing


# CycleTermination.


def test_each_cycle_is_asked_by_itself_until_its_own_answers_are_in() -> None:
    a, b = ShardId("a", 0), ShardId("b", 0)
    it = CycleTermination([(a,), (b,)])
    first, second = it.questions()
    assert (first.cycle, second.cycle) == (0, 1)
    assert it.questions() == [], "nobody is asked twice"
    assert it.on_census(Census(a, G, 0, first.round, True, 0, 0)) == []
    (again,) = it.questions()
    assert again.cycle == 0
    assert it.on_census(Census(a, G, 0, again.round, True, 0, 0)) == [0]
    assert it.questions() == [], "the first is over, the second has not answered"
    it.reset()
    assert [question.cycle for question in it.questions()] == [0, 1]


# Phases.


@pytest.mark.parametrize("before", Phase)
@pytest.mark.parametrize("after", Phase)
def test_a_run_makes_exactly_the_legal_moves(before: Phase, after: Phase) -> None:
    run = RunState(plan(), Policy(), G, [])
    run._phase = before
    if after in PHASE_MOVES[before]:
        run._enter(after)
        assert run.phase is after
    else:
        with pytest.raises(InternalError, match=f"from {before.value} to {after.value}"):
            run._enter(after)
        assert run.phase is before
