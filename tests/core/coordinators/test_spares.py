"""A process that stands by takes the place of one that was lost, whoever keeps the checkpoints."""

import pytest

from everstream.core.ids import TaskNumber
from everstream.core.messages import Recover, Restore, Resume
from everstream.core.orders import AssignWorker, Dismiss, Phase, Policy, Publish, SendTo
from everstream.errors import EnvironmentFault
from everstream.events import SpareLost, StartFailed
from tests.core.coordinators.line_run import PLAN, PROCESSES
from tests.core.coordinators.line_run import Run as LineRun

from .coordinating import H0, P0, P1, Run, of

SPARE = TaskNumber(2)


def with_spare(policy: Policy | None = None) -> Run:
    run = Run(policy).to_running()
    assert run.it.on_process_joined(SPARE, "spare", 0.0) == [], "it stands by"
    return run


def test_a_spare_takes_the_place_of_a_lost_process_at_once() -> None:
    run = with_spare()
    orders = run.it.on_process_lost(P0, "killed", 1.0)
    place = orders.index(AssignWorker(SPARE, H0))
    told = [order.command for order in orders[place:] if isinstance(order, SendTo)]
    assert [type(command) for command in told] == [Restore], "what it is told comes after"
    resumed = of(run.restored(), Resume)
    assert resumed[0].addresses[H0] == "spare" and run.it.phase is Phase.RUNNING
    (recovery,) = run.it.recoveries
    assert recovery.restarted_s == 1.0


def test_whoever_was_replaced_stands_by_and_takes_the_next_place() -> None:
    run = with_spare()
    run.it.on_process_lost(P0, "killed", 1.0)
    run.restored()
    assert run.it.on_process_joined(P0, "again", 2.0) == [], "nobody goes back for that"
    assert of(run.it.on_process_lost(P1, "killed", 3.0), AssignWorker) == [
        AssignWorker(P0, run.it.plan.worker_of[run.it.plan.workers[1][0]])
    ]


def test_the_death_of_a_spare_is_nobodys_failure() -> None:
    run = with_spare(Policy(every_s=10.0, max_restarts=0))
    orders = run.it.on_process_lost(SPARE, "killed", 1.0)
    assert orders == [Publish(SpareLost("killed"))] and run.it.phase is Phase.RUNNING
    assert not run.it.recoveries


def test_a_spare_that_cannot_start_is_said_once_and_ends_nothing() -> None:
    run = with_spare(Policy(every_s=10.0, max_restarts=0))
    error = EnvironmentFault("no module")
    first, *rest = [run.it.on_start_failed(TaskNumber(3), error, float(n)) for n in range(5)]
    assert first == [Publish(StartFailed(3, "no module", spare=True))]
    assert rest == [[]] * 4


def test_spares_may_go_when_the_run_ends() -> None:
    run = with_spare(Policy(every_s=10.0, max_restarts=0))
    assert of(run.it.on_process_lost(P0, "killed", 1.0), Dismiss) == [Dismiss(SPARE)]
    assert run.it.on_process_joined(P0, "late", 2.0) == [Dismiss(P0)]


@pytest.mark.parametrize("lost", PROCESSES)
def test_with_logs_the_spare_goes_back_with_those_who_must(lost: TaskNumber) -> None:
    run = LineRun().start()
    spare = TaskNumber(len(PROCESSES))
    run.it.on_process_joined(spare, "spare", 1.0)
    orders = run.it.on_process_lost(lost, "killed", 2.0)
    (place,) = of(orders, AssignWorker)
    assert place.process == spare
    run.answer(orders)
    assert run.it.phase is Phase.RUNNING
    assert set(PLAN.workers[place.worker]) <= {
        shard for recover in of(orders, Recover) for shard in recover.records
    } or not of(orders, Recover)
