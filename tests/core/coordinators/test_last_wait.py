"""A run that has nothing left to do but wait for its store does not wait for ever."""

from everstream.core.ids import CheckpointNumber
from everstream.core.messages import CheckpointFailed, Progress
from everstream.core.orders import EndRun, Order, Outcome, Policy, WriteManifest
from everstream.errors import RunFailed

from .coordinating import DOUBLE, NUMBERS, P1, Run, of

POLICY = Policy(every_s=10.0, checkpoint_timeout_s=20.0, slow_after_s=1e9)


def ended(run: Run, *, double: bool = True) -> Run:
    g = run.it.generation
    run.report(Progress(NUMBERS, g, {}, True), Progress(DOUBLE, g, {}, double))
    return run


def failure(orders: list[Order]) -> str:
    [end] = of(orders, EndRun)
    assert end.outcome is Outcome.FAILED and isinstance(end.error, RunFailed)
    return end.error.message


def until(run: Run, now_s: float) -> list[Order]:
    """All that is ordered up to then, tick by tick."""
    orders: list[Order] = []
    while run.now_s < now_s:
        orders += run.tick(run.now_s + 1.0)
    return orders


def test_the_last_checkpoint_is_waited_for_three_times_as_long_and_then_the_run_fails() -> None:
    run = Run(POLICY).to_running()
    run.epoch(1, 10.0)
    ended(run)
    run.taken(2, NUMBERS, final=True)
    assert not of(until(run, 70.0), EndRun)
    text = failure(until(run, 71.0))
    assert text.startswith("the last checkpoint is not in the store after 60 s")
    assert text.endswith("the next run resumes from epoch 1.")


def test_every_checkpoint_that_does_come_is_waited_for_anew() -> None:
    run = ended(Run(POLICY).to_running())
    assert not of(until(run, 50.0), EndRun)
    run.taken(1, NUMBERS, final=True)
    assert not of(until(run, 110.0), EndRun)
    assert of(run.taken(1, DOUBLE, final=True), WriteManifest)


def test_while_there_is_work_a_checkpoint_that_does_not_come_is_only_given_up() -> None:
    run = ended(Run(POLICY).to_running(), double=False)
    assert not of(until(run, 200.0), EndRun)


def test_nobody_waits_for_ever_for_a_manifest_that_decides_where_to_go_back_to() -> None:
    run = Run(POLICY).to_running()
    run.tick(10.0)
    assert of(run.taken(1, NUMBERS, DOUBLE), WriteManifest)
    run.it.on_process_lost(P1, "killed", 11.0)
    assert not of(until(run, 70.0), EndRun)
    text = failure(until(run, 71.0))
    assert text.startswith("the manifest of epoch 1 is not in the store after 60 s")


def test_a_store_that_refuses_has_answered_and_is_asked_again() -> None:
    run = ended(Run(POLICY).to_running())
    assert not of(until(run, 50.0), EndRun)
    run.report(CheckpointFailed(DOUBLE, run.it.generation, CheckpointNumber(1), "disk full"))
    assert not of(until(run, 100.0), EndRun)
