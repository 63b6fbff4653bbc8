"""The engine "tasks": workers are Spark tasks that last as long as the run and exchange frames."""

import math
import os
import socket
import sys
from contextlib import nullcontext
from dataclasses import dataclass

import cloudpickle

from everstream.core.ids import first_generation
from everstream.core.orders import Outcome
from everstream.core.plan import Plan
from everstream.engine.engine import EngineEnd, EngineJob
from everstream.engine.measuring import measures
from everstream.engine.scratch import scratch_folder, sweep
from everstream.engine.settings.options import RunConfig
from everstream.engine.signals import stopping_on_signals
from everstream.engine.spark.context import is_local
from everstream.engine.tasks.driver.driver import Driver
from everstream.engine.tasks.transport.endpoints import Address, RunKeys, SocketFactory, address_of
from everstream.engine.tasks.transport.key_exchange import Ticket
from everstream.engine.tasks.worker import operator_logs
from everstream.engine.tasks.worker.worker import PROGRESS_EVERY_S, WorkerTask
from everstream.errors import EnvironmentFault, RunFailed
from everstream.state.local_recovery import LocalCopies, helps


class TasksEngine:
    """Long-running Spark tasks; Spark restarts one when its process is killed."""

    keeps_slots = True

    def check(self, config: RunConfig, plan: Plan) -> None:
        config.scheme.check(plan)

    def drive(self, job: EngineJob) -> EngineEnd:
        sweep()
        with scratch_folder() as scratch:
            driver, outcome = _TasksRun(job, scratch).to_the_end()
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
class _TasksRun:
    """One run: the driver, its sockets, and the task of each worker."""

    job: EngineJob
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
            job.context,
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
        config, interface = self.job.config, None
        local = is_local(str(self.job.context.master))
        if config.always_tcp or not local:
            interface = "127.0.0.1" if local else self._address_for_executors()
        return SocketFactory(
            RunKeys.make(),
            interface,
            always_tcp=config.always_tcp,
            silence_s=config.heartbeat_timeout_s,
        )

    def _address_for_executors(self) -> str:
        """The address at which Spark's executors reach this process also works for our workers."""
        name = self.job.context.getConf().get("spark.driver.host", socket.gethostname())
        address = address_of(str(name)) or address_of(socket.gethostname())
        if address is None:
            raise EnvironmentFault(
                f"this machine has no address for the name '{name}', under which Spark's executors "
                "reach it. Set spark.driver.host (SPARK_LOCAL_IP) to an address of this machine "
                "that the workers can reach."
            )
        return address

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
