"""Performs one planned run in this process, and writes its tables into the results' folder."""

from collections.abc import Callable
from pathlib import Path

from everstream.apps.application import Tell, checksum
from everstream.apps.cycle.outcome import Outcome, latency_table, outcome_of
from everstream.apps.cycle.plan import Planned
from everstream.apps.cycle.watched import watched_table
from everstream.apps.inputs import expected_checksum, input_folder
from everstream.apps.interfaces.job import Job
from everstream.apps.interfaces.registry import driver_of
from everstream.apps.lookup import application_at
from everstream.monitoring.monitor import Monitor


def perform(planned: Planned, results: Path, tell: Callable[[str], Tell]) -> Outcome:
    """Run it, hold its result against the sequential program's, keep what was measured."""
    application = application_at(planned.application)
    folder = input_folder(application, planned.size, tell("making the input"))
    settings = planned.settings
    expected = None
    if settings.check:
        tell("the sequential result")(0, 1)
        expected = expected_checksum(application, folder)
    output = results / "output" / application.result
    output.parent.mkdir(parents=True, exist_ok=True)
    period_s = settings.monitor_s()
    job = Job(
        application,
        planned.application,
        folder,
        output,
        workers=planned.workers,
        batch=planned.batch,
        batch_to=settings.batch_to(),
        whole=settings.batch != "auto",
        interval_s=settings.interval_s(),
        load=settings.load(),
        catch_up=settings.catch_up,
        in_memory=settings.in_memory,
        clocked=settings.latency,
        monitor=Monitor(period_s) if period_s is not None else None,
        progress=tell("running"),
        checkpoint=settings.checkpointing(),
        kills=settings.kills,
    )
    done = driver_of(planned.interface)(job)
    exact = None if expected is None else checksum(output) == expected
    if done.stamps is not None:
        table = latency_table(planned.number, done.stamps, int(done.stamps.began.min()))
        table.write_parquet(results / f"latency-{planned.number:04d}.parquet")
    if done.monitored.height:
        table = watched_table(planned.number, done)
        table.write_parquet(results / f"monitor-{planned.number:04d}.parquet")
    return outcome_of(planned, done, exact)
