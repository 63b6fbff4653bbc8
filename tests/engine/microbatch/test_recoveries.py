"""Failures of micro-batches have their reports, and pauses between them that grow."""

from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.core.coordinators.restarts import FIRST_PAUSE_S, PAUSE_GROWTH
from everstream.core.ids import Epoch, ShardId
from everstream.core.orders import Outcome
from everstream.engine.microbatch.epochs import JobLost, Jobs
from everstream.engine.microbatch.orders import Failed, Order, ShardReport
from everstream.engine.microbatch.recoveries import Recoveries
from everstream.errors import EnvironmentFault
from everstream.events import EpochRepeated
from everstream.simulation.shapes import shape_for
from tests.engine.microbatch.world import CALM, LocalJobs, LocalWorld

BAD_EPOCHS = 3


class Failing(LocalJobs):
    """The first jobs of a run come to nothing, each of a cause of its own."""

    left = BAD_EPOCHS
    lost = False

    def run(self, order: Order) -> list[ShardReport]:
        if not self.left:
            return super().run(order)
        self.left -= 1
        if self.lost:
            raise JobLost(f"executor {self.left} is gone")
        error = EnvironmentFault(f"the database is away: {self.left}")
        return [ShardReport(self.world.layout.plan.shards[0], problem=Failed(error))]


class Lost(Failing):
    lost = True


class Bad(LocalWorld):
    made: type[Failing] = Failing

    def jobs(self) -> Jobs:
        return self.made(self)


class Gone(Bad):
    made = Lost


def reports_of(world: LocalWorld) -> list[RecoveryReport]:
    assert world.run() is Outcome.FINISHED and not world.violations
    assert world.epochs is not None
    return list(world.epochs.recoveries.reports)


def test_somebodys_code_that_fails_again_is_tried_after_pauses_that_grow() -> None:
    world = Bad(1, shape_for(1), CALM)
    reports_of(world)
    assert world.slept == [FIRST_PAUSE_S, PAUSE_GROWTH * FIRST_PAUSE_S], "the first time at once"
    repeated = [event for event in world.events if isinstance(event, EpochRepeated)]
    assert FIRST_PAUSE_S in [event.retry_s for event in repeated]


def test_a_job_that_is_lost_is_run_again_at_once() -> None:
    world = Gone(1, shape_for(1), CALM)
    reports_of(world)
    assert world.slept == []


def test_an_epoch_that_came_to_nothing_has_a_report_from_its_failure_until_it_caught_up() -> None:
    reports = reports_of(Bad(1, shape_for(1), CALM))
    assert [report.what for report in reports] == [
        f"the database is away: {left}" for left in reversed(range(BAD_EPOCHS))
    ]
    for report in reports:
        assert report.restarted_s and report.restored_s and report.caught_up_s
        assert report.detected_s < report.restarted_s <= report.restored_s <= report.caught_up_s
        assert report.records_replayed > 0 and not report.injected


def test_a_process_that_died_in_a_job_has_a_report_by_what_the_next_attempt_says() -> None:
    killed, other = ShardId("count", 0), ShardId("count", 1)
    recoveries = Recoveries()
    recoveries.began(100.0)
    recoveries.stable(
        Epoch(8),
        Epoch(7),
        [
            ShardReport(killed, retry=1, began_at=5003.0, restored_s=0.5, processed=40),
            ShardReport(other, retry=2, began_at=4000.0),
            ShardReport(ShardId("numbers", 0), read=40, processed=40),
        ],
        {killed},
        now_s=104.0,
        wall_s=5004.5,
    )
    mine, its = recoveries.reports
    assert (mine.shards, mine.injected, mine.from_epoch) == (("count:0",), True, 7)
    assert (mine.detected_s, mine.restored_s, mine.caught_up_s) == (102.5, 103.0, 104.0)
    assert mine.records_replayed == 40
    assert "died 2 times in epoch 8" in its.what and not its.injected
    assert its.detected_s == 100.0, "whatever another machine's clock says: not before the job"


def test_a_run_in_which_nothing_fails_reports_nothing() -> None:
    assert reports_of(LocalWorld(1, shape_for(1), CALM)) == []
