"""One run with long-running workers: the driver, its sockets, and what each worker gets."""

import math
import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass

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
from everstream.engine.measuring import measures
from everstream.engine.scratch import scratch_folder, sweep
from everstream.engine.signals import stopping_on_signals
from everstream.errors import RunFailed
from everstream.state.local_recovery import LocalCopies, helps


def drive(job: EngineJob, workers: Workers, interface: str | None = None) -> EngineEnd:
    """Run to the end on these workers.

    interface: the driver's address that all workers can reach; None: all are on this machine.
    """
    sweep()
    with scratch_folder() as scratch:
        driver, outcome = _ContinuousRun(job, workers, interface, scratch).to_the_end()
    coordinator = driver.coordinator  # of the last plan
    return EngineEnd(
        outcome,
        coordinator.plan,
        coordinator.manifests[0] if coordinator.manifests else None,
        driver.running_s or driver.ended_s,
        driver.ended_s,
        driver.written,
        coordinator.recoveries,
        coordinator.checkpoint_stats,
        coordinator.lost_frames,
        sum(meter.forfeited for meter in driver.meters.values()),
    )


@dataclass
class _ContinuousRun:
    job: EngineJob
    workers: Workers
    interface: str | None
    scratch: str

    def to_the_end(self) -> tuple[Driver, Outcome]:
        """The driver when the work is done, and the outcome."""
        job, opened, config = self.job, self.job.opened, self.job.config
        coordinator = config.scheme.coordinator(
            job.plan,
            config.policy,
            first_generation(opened.lease.number),
            opened.earlier,
            unwritten=opened.unwritten,
        )
        sockets = self._sockets()
        driver = Driver(
            config,
            self.workers,
            coordinator,
            opened.store,
            opened.lease,
            sockets,
            lambda address, ticket: self._task(address, ticket, sockets),
            opened.url,
            job.replaced,
            opened.next_plan,
        )
        job.begin(driver)
        try:
            with stopping_on_signals(driver), config.monitor or nullcontext():
                end = driver.run()
        finally:
            sockets.close()
        if (copies := self._local_copies()) is not None:
            LocalCopies(copies).remove()  # a killed driver leaves them for the next one
        if end.outcome is Outcome.FAILED:
            raise end.error or RunFailed("the run failed")
        return driver, end.outcome

    def _sockets(self) -> SocketFactory:
        config = self.job.config
        return SocketFactory(
            RunKeys.make(),
            self.interface or ("127.0.0.1" if config.always_tcp else None),
            always_tcp=config.always_tcp,
            silence_s=config.heartbeat_timeout_s,
        )

    def _task(self, driver: Address, ticket: Ticket, sockets: SocketFactory) -> WorkerTask:
        config, monitor = self.job.config, self.job.config.monitor
        return WorkerTask(
            pickled_plan=cloudpickle.dumps(self.job.plan),
            scheme=config.scheme,
            driver=driver,
            ticket=ticket,
            store_url=self.job.opened.url,
            scratch=self.scratch,
            worker_memory_bytes=config.worker_memory_bytes,
            over_tcp=sockets.interface is not None,
            always_tcp=config.always_tcp,
            driver_timeout_s=config.heartbeat_timeout_s,
            slow_after_s=config.policy.slow_after_s,
            log_levels=operator_logs.levels(),
            measures=measures(),
            progress_every_s=min(PROGRESS_EVERY_S, monitor.every_s if monitor else math.inf),
            near=self._local_copies(),
            python_path=[path for path in sys.path if path and os.path.isdir(path)],
        )

    def _local_copies(self) -> str | None:
        """The name under which drivers of one command find the copies on the workers' machines."""
        url = self.job.opened.url
        return f"{self.job.config.turn.command} {url}" if helps(url) else None
