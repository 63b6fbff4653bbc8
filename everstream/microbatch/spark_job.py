"""An epoch as one Spark job: a stage for each level, a shuffle between two of them.

The job is put together from the parts that `RDD.partitionBy` is made of, rather than from
DataFrames: there is nothing to plan and to compile anew for every epoch, bytes go into the shuffle
as they are, and each part of a stage can have its own pool of Python workers.
"""

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

import cloudpickle
from pyspark import SparkContext
from pyspark.core.rdd import _prepare_for_python_RDD
from pyspark.errors import PySparkException
from pyspark.util import _load_from_socket

from everstream.microbatch.epochs import JobLost
from everstream.microbatch.kills import Death
from everstream.microbatch.layout import Layout
from everstream.microbatch.orders import Order, ShardReport
from everstream.microbatch.pins import VARIABLE, Pins
from everstream.microbatch.rows import Row, report_in
from everstream.microbatch.spark_task import Arriving, Ending, Leaving, Stage, Starting
from everstream.spark.context import slots_of_an_executor

_CALL_SITE = "callSite.short"


class SparkJobs:
    """Runs epochs on Spark."""

    def __init__(
        self,
        context: SparkContext,
        layout: Layout,
        store_url: str,
        key_file: str | None,
        group: str,
        max_retries: int,
        deaths: Callable[[], tuple[Death, ...]],
        on_reports: Callable[[list[ShardReport]], None],
    ) -> None:
        self._context = context
        self._layout = layout
        self._store_url = store_url
        self._key_file = key_file
        self._group = group
        self._max_retries = max_retries
        self._deaths = deaths
        self._on_reports = on_reports
        self._plan = context.broadcast(cloudpickle.dumps(layout.plan))
        self._path = [path for path in sys.path if path and os.path.isdir(path)]
        first = len(layout.levels[0])
        self._start: Any = cast("Any", context.parallelize(range(first), first))._jrdd
        most = slots_of_an_executor(context)
        self._pins = [Pins(len(shards), most) for shards in layout.levels]
        self._selections = [[self._selection(group) for group in p.groups] for p in self._pins]

    def run(self, order: Order) -> list[ShardReport]:
        self._context.setJobGroup(self._group, self._description(order), True)
        try:
            last = self._lineage(order)
            socket = self._jvm.PythonRDD.collectAndServe(last.rdd())
            with _load_from_socket(socket, Arriving()) as arrived:
                rows: list[Row] = list(arrived)
        except PySparkException as error:
            raise JobLost(_cause(error)) from error
        except Exception as error:
            if type(error).__module__.startswith("py4j"):
                raise JobLost(_cause(error)) from error
            raise
        reports: list[ShardReport] = [report_in(row) for row in rows]
        self._on_reports(reports)
        return reports

    def cancel(self) -> None:
        """End the job under way."""
        self._context.cancelJobGroup(self._group)

    def close(self) -> None:
        with suppress(Exception):  # Spark itself may be gone; then there is nothing to free
            self._name_stage(None)
            self._plan.destroy()

    # Inside. The JVM's own objects have no types in Python.

    @property
    def _jvm(self) -> Any:
        return cast("Any", self._context)._jvm

    def _lineage(self, order: Order) -> Any:
        """The last stage, with all before it."""
        deaths, coming = self._deaths(), self._start
        levels = self._layout.levels
        for level in range(len(levels)):
            last = level == len(levels) - 1
            self._name_stage(_listed(self._layout.chains_at(level)))
            stage = Stage(
                level,
                self._pins[level].in_turn,
                order,
                self._plan,
                self._store_url,
                self._key_file,
                deaths,
                self._path,
                self._max_retries,
            )
            rows_in = Arriving() if level else Starting()
            command = (stage, None, rows_in, Ending() if last else Leaving())
            coming = self._in_workers(coming, command, level)
            if not last:
                coming = self._shuffled(coming, len(levels[level + 1]))
        return coming

    def _in_workers(self, before: Any, command: tuple[Any, ...], level: int) -> Any:
        """A stage of Python tasks, every pin's in its own pool of workers."""
        jvm, context = self._jvm, cast("Any", self._context)
        pickled, broadcasts, environment, includes = _prepare_for_python_RDD(context, command)
        parts = []
        for pin, selection in enumerate(self._selections[level]):
            source = before.rdd()
            if len(self._selections[level]) > 1:
                source = jvm.org.apache.spark.rdd.PartitionPruningRDD(
                    source, selection, before.classTag()
                )
            function = jvm.SimplePythonFunction(
                bytearray(pickled),
                {**environment, VARIABLE: str(pin)},
                includes,
                context.pythonExec,
                context.pythonVer,
                broadcasts,
                context._javaAccumulator,
            )
            parts.append(jvm.PythonRDD(source, function, False, False).asJavaRDD())
        if len(parts) == 1:
            return parts[0]
        array = context._gateway.new_array(jvm.org.apache.spark.api.java.JavaRDD, len(parts))
        for number, part in enumerate(parts):
            array[number] = part
        return context._jsc.union(array)

    def _shuffled(self, rows: Any, shards: int) -> Any:
        jvm = self._jvm
        pairs = jvm.PairwiseRDD(rows.rdd()).asJavaPairRDD()
        dealt = pairs.partitionBy(jvm.PythonPartitioner(shards, 0))
        return jvm.PythonRDD.valueOfPair(dealt)

    def _selection(self, group: Iterable[int]) -> Any:
        """A function of Scala that is true of these partitions: a set is one."""
        jvm = self._jvm
        numbers = jvm.java.util.HashSet()
        for number in group:
            numbers.add(number)
        return jvm.scala.jdk.javaapi.CollectionConverters.asScala(numbers).toSet()

    def _name_stage(self, name: str | None) -> None:
        self._context.setLocalProperty(_CALL_SITE, name)  # type: ignore[arg-type]

    def _description(self, order: Order) -> str:
        """What Spark's own pages show."""
        name = self._layout.plan.graph.name
        if order.closing:
            return f"everstream {name}: the end"
        stages = [
            _listed(self._layout.chains_at(level)) for level in range(len(self._layout.levels))
        ]
        return f"everstream {name}: epoch {order.epoch}: {' → '.join(stages)}"


def _listed(names: Iterable[str]) -> str:
    return " + ".join(names)


def _cause(error: Exception) -> str:
    """The line that says what happened, of the many that come with it."""
    lines = str(error).strip().splitlines() or [repr(error)]
    telling = [line for line in lines if "Exception" in line or "Error" in line]
    return f"the Spark job failed: {(telling or lines)[0]}"
