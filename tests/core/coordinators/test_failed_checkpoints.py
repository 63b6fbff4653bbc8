"""Checkpoints that fail in a row are said once, and too many of them end the run."""

import pytest

from everstream import events
from everstream.core.coordinators.restarts import FailedCheckpoints
from everstream.core.ids import CheckpointNumber
from everstream.core.messages import CheckpointFailed, Progress
from everstream.core.orders import EndRun, Order, Outcome, Policy
from everstream.errors import StoreError, StoreGone

from .coordinating import DOUBLE, NUMBERS, P0, Run, of


def told(orders: list[Order]) -> list[str]:
    """The causes that are news."""
    return [e.reason for e in of(orders, events.CheckpointAborted) if not e.repeated]


def full(run: Run, epoch: int, at_s: float) -> list[Order]:
    """Both shards fail to save this epoch, for want of room."""
    run.tick(at_s)
    orders = list[Order]()
    for shard in (NUMBERS, DOUBLE):
        reason = f"cannot write 'objects/{shard}/{epoch:08d}-af3.ckpt': No space left on device"
        number = CheckpointNumber(epoch)
        orders += run.report(CheckpointFailed(shard, run.it.generation, number, reason))
    return orders


def test_a_store_that_stays_full_is_said_once_and_ends_the_run_after_as_many_as_are_tolerated() -> (
    None
):
    run = Run(Policy(every_s=10.0, tolerable_failures=3)).to_running()
    run.epoch(1, 10.0)
    first = full(run, 2, 20.0)
    assert len(told(first)) == 1 and "No space left" in told(first)[0]
    failed = of(first, events.CheckpointAborted)
    assert [event.epoch for event in failed] == [2, 2], "all of them can be counted"
    for epoch in (3, 4):
        orders = full(run, epoch, 10.0 * epoch)
        assert told(orders) == [] and of(orders, EndRun) == []
    (end,) = of(full(run, 5, 50.0), EndRun)
    assert end.outcome is Outcome.FAILED
    text = str(end.error)
    assert "4 checkpoints in a row have failed" in text and "No space left" in text
    assert "tolerable_checkpoint_failures" in text and "epoch 1, which is safe" in text


def test_a_good_checkpoint_is_said_and_the_count_begins_anew() -> None:
    run = Run(Policy(every_s=10.0, tolerable_failures=2)).to_running()
    for epoch in (1, 2):
        full(run, epoch, 10.0 * epoch)
    run.tick(30.0)
    run.taken(3, NUMBERS, DOUBLE)
    orders = run.it.on_manifest_written(31.0)
    assert of(orders, events.CheckpointsSucceed) == [events.CheckpointsSucceed(3, failed=2)]
    assert len(told(full(run, 4, 40.0))) == 1, "it is news again"
    assert of(full(run, 5, 50.0), EndRun) == []


def test_another_cause_is_news() -> None:
    failures = FailedCheckpoints(tolerable=10)
    assert failures.failed(1, "cannot write 'a': No space left on device")
    assert not failures.failed(2, "cannot write 'b': No space left on device")
    assert failures.failed(3, "cannot write 'b': Permission denied")
    assert not failures.failed(4, "cannot write 'c': No space left on device")


def test_where_shards_checkpoint_by_themselves_the_one_with_the_most_failures_counts() -> None:
    failures = FailedCheckpoints(tolerable=2)
    for number in (1, 2):
        for shard in ("a", "b", "c"):
            failures.failed(number, "full", shard)
    assert failures.too_many("full", 0) is None
    assert failures.succeeded("a") == 0, "others still fail"
    failures.failed(3, "full", "b")
    assert "3 checkpoints in a row" in str(failures.too_many("full", 0))


@pytest.mark.parametrize("gone", [True, False])
def test_a_store_that_is_gone_ends_the_run_and_one_that_refuses_does_not(gone: bool) -> None:
    run = Run(Policy(every_s=10.0)).to_running()
    run.tick(10.0)
    run.taken(1, NUMBERS, DOUBLE)
    error = StoreGone("it was deleted") if gone else StoreError("it is full")
    orders = run.it.on_manifest_failed(error, 11.0)
    assert [end.outcome for end in of(orders, EndRun)] == ([Outcome.FAILED] if gone else [])


def test_a_run_that_is_to_catch_up_ends_when_its_sources_have_and_nothing_moves() -> None:
    run = Run(Policy(every_s=None, until_caught_up=True)).to_running()
    assert run.tick(1.0) == []
    for shard in (NUMBERS, DOUBLE):
        caught_up = shard == NUMBERS
        run.report(Progress(shard, run.it.generation, {}, caught_up=caught_up))
    run.tick(2.0)
    assert run.it.is_quiescing and not run.it.changes_shards


def test_sources_that_went_back_have_to_catch_up_again() -> None:
    run = Run(Policy(every_s=None, until_caught_up=True)).to_running()
    run.report(Progress(NUMBERS, run.it.generation, {}, caught_up=True))
    run.tick(2.0)
    assert run.it.is_quiescing
    run.it.on_process_lost(P0, "killed", 3.0)
    assert not run.it.is_quiescing
