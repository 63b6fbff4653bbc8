"""One run with long-running workers: the driver, its sockets, and what each worker gets."""

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

import cloudpickle

from everstream.core.ids import first_generation
from everstream.core.orders import Outcome
from everstream.engine.continuous.driver.driver import Driver
from everstream.engine.continuous.driver.workers import Workers
from everstream.engine.continuous.transport.endpoints import Address, RunKeys, SocketFactory
from everstream.engine.continuous.transport.key_exchange import Ticket
from everstream.engine.continuous.worker import operator_logs
from everstream.engine.continuous.worker.worker import PROGRESS_EVERY_S, WorkerTask
from everstream.engine.engine import EngineEnd, EngineJob
from everstream.engine.scratch import scratch_folder, sweep
from everstream.engine.signals import stopping_on_signals
from everstream.errors import RunFailed
from everstream.state.local_recovery import LocalCopies, helps

_measures: ContextVar[bool] = ContextVar("measures", default=True)
"""Whether runs measure themselves. They do, except in benchmarks of what measuring costs."""


def drive(job: EngineJob, workers: Workers, interface: str | None = None) -> EngineEnd:
    """Run to the end on these workers.

    interface: the driver's address that all workers can reach; None: all are on this machine.
    """
    opened, config, monitor = job.opened, job.config, job.config.monitor
    # The name under which drivers of one command find the copies on the workers' machines.
    copies = f"{config.turn.command} {opened.url}" if helps(opened.url) else None
    coordinator = config.scheme.coordinator(
        job.plan,
        config.policy,
        first_generation(opened.lease.number),
        opened.earlier,
        unwritten=opened.unwritten,
    )
    sweep()
    with scratch_folder() as scratch:
        sockets = SocketFactory(
            RunKeys.make(),
            interface or ("127.0.0.1" if config.always_tcp else None),
            always_tcp=config.always_tcp,
            silence_s=config.heartbeat_timeout_s,
        )

        def task(driver: Address, ticket: Ticket) -> WorkerTask:
            return WorkerTask(
                pickled_plan=cloudpickle.dumps(job.plan),
                scheme=config.scheme,
                driver=driver,
                ticket=ticket,
                store_url=opened.url,
                scratch=scratch,
                worker_memory_bytes=config.worker_memory_bytes,
                retention=config.retention,
                over_tcp=sockets.interface is not None,
                always_tcp=config.always_tcp,
                driver_timeout_s=config.heartbeat_timeout_s,
                slow_after_s=config.policy.slow_after_s,
                latency_s=config.latency_s,
                log_levels=operator_logs.levels(),
                measures=_measures.get(),
                progress_every_s=min(PROGRESS_EVERY_S, monitor.every_s if monitor else math.inf),
                near=copies,
                python_path=[path for path in sys.path if path and os.path.isdir(path)],
            )

        driver = Driver(job, workers, coordinator, sockets, task)
        job.begin(driver)
        try:
            with stopping_on_signals(driver), monitor or nullcontext():
                end = driver.run()
        finally:
            sockets.close()
        if copies is not None:
            LocalCopies(copies).remove()  # a killed driver leaves them for the next one
    if end.outcome is Outcome.FAILED:
        raise end.error or RunFailed("the run failed")
    last = driver.coordinator  # of the last plan
    return EngineEnd(
        end.outcome,
        last.plan,
        last.manifests[0] if last.manifests else None,
        driver.running_s or driver.ended_s,
        driver.ended_s,
        driver.written,
        last.recoveries,
        last.checkpoint_stats,
        last.lost_frames,
        sum(meter.forfeited for meter in driver.meters.values()),
    )


@contextmanager
def unmeasured() -> Iterator[None]:
    """Runs that start in this block measure nothing in their shards and workers."""
    token = _measures.set(False)
    try:
        yield
    finally:
        _measures.reset(token)
