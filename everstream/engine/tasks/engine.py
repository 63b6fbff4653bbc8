"""The engine "tasks": workers are Spark tasks that last as long as the run and exchange frames."""

import socket

from pyspark import SparkContext

from everstream.core.plan import Plan
from everstream.engine.continuous.run import drive
from everstream.engine.continuous.transport.endpoints import address_of
from everstream.engine.engine import EngineEnd, EngineJob
from everstream.engine.settings.options import RunConfig
from everstream.engine.spark.context import is_local
from everstream.engine.spark.slots import OnSpark
from everstream.engine.tasks.workers import SparkWorkers
from everstream.errors import EnvironmentFault


class TasksEngine(OnSpark):
    """Long-running Spark tasks; Spark restarts one when its process is killed."""

    keeps_slots = True

    def check(self, config: RunConfig, plan: Plan) -> None:
        config.scheme.check(plan)

    def drive(self, job: EngineJob) -> EngineEnd:
        context = job.place.spark
        interface = None if is_local(str(context.master)) else _address_for_executors(context)
        return drive(job, SparkWorkers(context, job.plan.graph.name), interface)


def _address_for_executors(context: SparkContext) -> str:
    """The address at which Spark's executors reach this process also works for our workers."""
    name = context.getConf().get("spark.driver.host", socket.gethostname())
    address = address_of(str(name)) or address_of(socket.gethostname())
    if address is None:
        raise EnvironmentFault(
            f"this machine has no address for the name '{name}', under which Spark's executors "
            "reach it. Set spark.driver.host (SPARK_LOCAL_IP) to an address of this machine "
            "that the workers can reach."
        )
    return address
