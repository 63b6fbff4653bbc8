"""What is told of a run is told of the right kill."""

from everstream.audit.trial import recovery_of_each
from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.engine.faults.kills import Kill
from tests.audit.plans import plan_of_three


def test_each_kill_finds_the_report_of_its_own_process() -> None:
    plan = plan_of_three()
    reports = [
        RecoveryReport("worker 1", ("count:1",), True, 1.0),
        RecoveryReport("driver", ("driver",), False, 2.0),
        RecoveryReport("worker 1", ("count:1",), True, 3.0),
    ]
    first, second = Kill.parse("count:1@5"), Kill.parse("count:1@9")
    driver, other = Kill.parse("driver@1s"), Kill.parse("out@1s")
    found = recovery_of_each([first, driver, other, second], reports, plan)
    assert found == {first: reports[0], driver: reports[1], second: reports[2]}
