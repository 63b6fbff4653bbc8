"""The supervisor's memory: what it heard from drivers that are gone."""

from dataclasses import replace

from everstream.cli.runs.supervisor_log import SupervisorLog
from everstream.cli.views.messages import DriverFailed, DriverFinished, EventReported, Fault, Opened
from everstream.core.coordinators.recovery_report import RecoveryReport
from everstream.core.orders import Phase
from everstream.engine.reporting.progress import RateMeter
from everstream.events import Killing, Note, Progressed, RunStatus
from tests.observability.history.telling import checkpoint, run


def progressed(
    at_s: float,
    phase: Phase,
    records: int,
    epoch: int = 0,
    *reports: RecoveryReport,
    taken: int | None = None,
) -> EventReported:
    totals = {"source": records, "sink": records if taken is None else taken}
    status = RunStatus(phase, 1, records, totals, epoch, list(reports))
    return EventReported(Progressed(status), at_s)


def started(at_s: float) -> EventReported:
    return EventReported(replace(run(), shown_once=("sink",)), at_s)


def a_worker_failure(at_s: float) -> RecoveryReport:
    return RecoveryReport("worker 0", ("source:0",), injected=True, detected_s=at_s)


def test_the_death_of_a_driver_is_reported_from_detection_to_catching_up() -> None:
    log = SupervisorLog()
    for message in (started(0.0), progressed(1.0, Phase.RUNNING, 100)):
        log.hear(message)
    log.driver_died("killed by SIGKILL", 1.5)
    for message in (
        started(3.0),
        progressed(3.2, Phase.GATHERING, 0),
        progressed(3.5, Phase.RESTORING, 60, 4),
        progressed(4.0, Phase.RUNNING, 70, 4),
        progressed(4.5, Phase.RUNNING, 100, 4, taken=90),
        progressed(4.7, Phase.RUNNING, 110, 4),
    ):
        log.hear(message)
    (report,) = log.recoveries
    assert report.milliseconds() == {
        "detected_ms": 0.0,
        "restarted_ms": 1500.0,
        "restored_ms": 2500.0,
        "replayed_ms": 3000.0,
        "caught_up_ms": 3200.0,
    }
    assert (report.from_epoch, report.records_replayed) == (4, 40)
    assert report.duplicates_suppressed == 40
    assert not report.injected


def test_a_driver_killed_on_purpose_is_timed_from_the_kill() -> None:
    log = SupervisorLog()
    killing = Killing("driver", 0, "driver:0@5s", of_driver=True)
    for message in (started(0.0), EventReported(killing, 1.2)):
        log.hear(message)
    log.driver_died("killed by SIGKILL", 1.5)
    log.driver_died("killed by SIGKILL", 9.0)
    on_purpose, by_itself = log.recoveries
    assert on_purpose.injected and on_purpose.milliseconds()["detected_ms"] == 300.0
    assert not by_itself.injected and by_itself.milliseconds()["detected_ms"] == 0.0


def test_what_earlier_drivers_said_stays_in_the_result() -> None:
    log = SupervisorLog()
    first, second = a_worker_failure(1.0), a_worker_failure(9.0)
    for message in (
        Opened("p", "s", "aligned"),
        EventReported(checkpoint(1, 1), 1.0),
        progressed(2.0, Phase.RUNNING, 10, 1, first),
    ):
        log.hear(message)
    log.driver_died("killed by SIGKILL", 5.0)
    for message in (
        EventReported(checkpoint(2, 2), 8.0),
        EventReported(Note("input", "something"), 9.0),
        progressed(10.0, Phase.RUNNING, 20, 2, second),
        DriverFinished({"pipeline": "p", "outcome": "finished", "checkpoints": [{"epoch": 2}]}),
    ):
        log.hear(message)
    result = log.to_json("finished", 0)
    assert [checkpoint["epoch"] for checkpoint in result["checkpoints"]] == [1, 2]
    assert [r["what"] for r in result["recoveries"]] == [
        "worker 0",
        "driver (killed by SIGKILL)",
        "worker 0",
    ]
    assert (result["drivers_lost"], result["notes"]) == (1, ["something"])


def test_a_failed_run_tells_its_error_in_the_result() -> None:
    log = SupervisorLog()
    log.hear(Opened("p", "s", "aligned"))
    log.hear(DriverFailed(Fault.RUN, "operator 'map' failed"))
    result = log.to_json("failed", 1)
    assert (result["pipeline"], result["error"], result["exit_code"]) == (
        "p",
        "operator 'map' failed",
        1,
    )


def test_a_rollback_does_not_make_the_rate_negative() -> None:
    rate = RateMeter()
    for at_s, records in ((0.0, 0), (1.0, 500), (1.1, 200), (1.6, 300)):
        rate.add(at_s, records)
    assert rate.per_s() == 200.0
