"""The only module that uses Spark beyond its public interface, and knows how its versions differ.

Both engines need a few things that PySpark does not offer: Spark's list of running tasks, the errors
of tasks that never reached Python, jobs built without a query plan, the process that forks Python
workers. These may change with any version of Spark. They are collected here, one function each; a
function that differs between versions chooses by `SPARK`.
All other modules use PySpark's public names only.
"""

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.serializers import CloudPickleSerializer
from pyspark.serializers import FramedSerializer as FramedSerializer

from everstream.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SUPPORTED: Final = ((4, 0), (4, 1), (4, 2), (4, 3))
"""The versions of Spark that the smoke tests of `make matrix` cover."""
_GROUP: Final = "spark.jobGroup.id"


def version_of(text: str) -> tuple[int, int]:
    """Major and minor number of a version such as "4.1.2" or "4.2.0.dev1"."""
    found = re.match(r"(\d+)\.(\d+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2])


SPARK: Final = version_of(pyspark.__version__)
"""The version of the PySpark that this process has imported."""


def require(feature: str, since: tuple[int, int], spark: tuple[int, int] = SPARK) -> None:
    """Raise a UserError that names the feature if this Spark is too old for it."""
    if spark < since:
        raise UserError(
            f"{feature} needs Spark {since[0]}.{since[1]} or newer; this is Spark "
            f"{spark[0]}.{spark[1]}. Install a newer one: pip install "
            f"'pyspark>={since[0]}.{since[1]},<5'."
        )


# Spark's Java process and its context.


def active_context() -> SparkContext | None:
    """The context of this process, if it has one that was not stopped."""
    return SparkContext._active_spark_context


def start_java(conf: SparkConf) -> None:
    """Start Spark's Java process without a context, unless it is running."""
    SparkContext._ensure_initialized(conf=conf)


def is_configured(setting: str) -> bool:
    """Whether the user's configuration has this setting; only after `start_java`."""
    return bool(SparkConf(_jvm=SparkContext._jvm).contains(setting))


def java_process() -> "subprocess.Popen[bytes] | None":
    """Spark's Java process, if this process has started it."""
    found = getattr(SparkContext._gateway, "proc", None)
    return found if isinstance(found, subprocess.Popen) else None


def is_stopped(context: SparkContext) -> bool:
    """Whether the context was stopped, by whatever code; py4j raises if Java is gone."""
    return bool(context._jsc.sc().isStopped())


@contextmanager
def silenced(context: SparkContext, logger: str) -> Iterator[None]:
    """Java logs nothing under this name in this block."""
    log4j = cast("Any", context)._jvm.org.apache.logging.log4j
    before = log4j.LogManager.getLogger(logger).getLevel()
    log4j.core.config.Configurator.setLevel(logger, log4j.Level.OFF)
    try:
        yield
    finally:
        log4j.core.config.Configurator.setLevel(logger, before)


# Tasks, as Spark's scheduler knows them.


class RunningTasks:
    """Spark's map of running tasks, kept because finding it takes longer than a lookup in it."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._scheduled: Any = None

    def index_of(self, task: int, group: str) -> int | None:
        """The number of this task in its job, if it runs in a job of this group."""
        if self._scheduled is None:
            scheduler = self._context._jsc.sc().taskScheduler()
            self._scheduled = scheduler.taskIdToTaskSetManager()
        for entry in self._scheduled.entrySet():
            if entry.getKey() == task:
                tasks = entry.getValue()
                if tasks.taskSet().properties().get(_GROUP) != group:
                    return None
                return int(tasks.taskInfos().apply(task).index())
        return None


def kill_task(context: SparkContext, task: int, reason: str) -> None:
    """Have Spark kill a task, which it then starts again."""
    context._jsc.sc().killTaskAttempt(task, True, reason)


@dataclass(frozen=True)
class FailedTask:
    index: int
    attempt: int
    machine: str
    error: str | None


def failed_tasks(context: SparkContext, stage: int, skipped: int, most: int) -> list[FailedTask]:
    """The failed attempts of a stage, oldest first: at most `most`, after the skipped ones."""
    jvm = cast("Any", context)._jvm
    words = jvm.org.apache.spark.status.api.v1
    only_failed = jvm.java.util.List.of(words.TaskStatus.FAILED)
    store = context._jsc.sc().statusStore()
    tasks = store.taskList(stage, 0, skipped, most, words.TaskSorting.ID, only_failed)
    return [_failed_task(tasks.apply(number)) for number in range(tasks.size())]


def _failed_task(task: Any) -> FailedTask:
    message = task.errorMessage()
    error = str(message.get()) if message.isDefined() else None
    return FailedTask(int(task.index()), int(task.attempt()), str(task.host()), error)


# Jobs of Python stages that are built without a query plan.


class JobParts:
    """What the stages of a job are made of. The JVM's objects have no types in Python."""

    def __init__(self, context: SparkContext, broadcast: Any) -> None:
        self._context = cast("Any", context)
        self._pickle: Any = cast("Any", CloudPickleSerializer)()
        jvm = self._context._jvm
        self._jvm = jvm
        self._function = jvm.SimplePythonFunction
        self.python_rdd = jvm.PythonRDD
        self.pairs = jvm.PairwiseRDD
        self.pruned = jvm.org.apache.spark.rdd.PartitionPruningRDD
        self._java_rdd = jvm.org.apache.spark.api.java.JavaRDD
        self._includes = self._java_list(self._context._python_includes)
        self._broadcasts = self._java_list([broadcast._jbroadcast])

    def partitioner(self, width: int) -> Any:
        """Sends a row to the partition that its key names."""
        return self._jvm.PythonPartitioner(width, 0)

    def partitions(self, count: int) -> Any:
        return self._context.parallelize(range(count), count)._jrdd

    def pickled(self, command: tuple[Any, ...]) -> bytearray:
        """The command of a stage as workers read it."""
        pickled = bytearray(self._pickle.dumps(command))
        self._context._pickled_broadcast_vars.clear()
        return pickled

    def function(self, pickled: bytearray, environment: Any) -> Any:
        """A command for workers with these environment variables."""
        context = self._context
        return self._function(
            pickled,
            environment,
            self._includes,
            context.pythonExec,
            context.pythonVer,
            self._broadcasts,
            context._javaAccumulator,
        )

    def environment(self, **variables: str) -> Any:
        """The variables of Spark's workers, and these."""
        found = self._jvm.java.util.HashMap()
        for name, value in {**self._context.environment, **variables}.items():
            found.put(name, value)
        return found

    def selection(self, partition: int) -> Any:
        """A Scala function that is true for this partition only: a set is one."""
        alone = self._jvm.java.util.Collections.singleton(partition)
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(alone).toSet()

    def union(self, rdds: Sequence[Any]) -> Any:
        parts = self._context._gateway.new_array(self._java_rdd, len(rdds))
        for number, rdd in enumerate(rdds):
            parts[number] = rdd
        return self._context._jsc.union(parts)

    def _java_list(self, items: Sequence[Any]) -> Any:
        found = self._jvm.java.util.ArrayList()
        for item in items:
            found.add(item)
        return found


def rows_of(served: Any, serializer: FramedSerializer) -> list[Any]:
    """All rows of a finished job, from the socket on which Spark serves them."""
    from pyspark.util import _load_from_socket

    rows = cast("Any", _load_from_socket)(served, serializer)
    if SPARK < (4, 2):  # the socket closes when it is garbage-collected
        return list(rows)
    with rows as opened:
        return list(opened)


# The process from which Spark forks Python workers.


def serve_workers(around: Callable[[Callable[..., int]], Callable[..., int]]) -> None:
    """Fork workers for Spark until it ends; `around` wraps the function that a worker runs."""
    import pyspark.daemon
    import pyspark.worker  # imported before the first fork, so that workers start with it

    pyspark.daemon.worker = around(pyspark.daemon.worker)
    pyspark.daemon.manager()


# Arrow's types as Spark's, and the other way round.


def arrow_schema(schema: "StructType") -> "pa.Schema":
    """Spark's columns as Arrow's; timestamps are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    utc: dict[str, Any] = {"timestamp_utc": True} if SPARK < (4, 2) else {"timezone": "UTC"}
    return to_arrow_schema(schema, **utc)


def spark_schema(schema: "pa.Schema") -> "StructType":
    """Arrow's columns as Spark's; a timestamp without a zone stays one."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)
