"""An epoch as one Spark job: a stage for each level, a shuffle between two of them."""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle
from pyspark import SparkContext
from pyspark.errors import PySparkException

from everstream.engine.microbatch.epochs import JobLost
from everstream.engine.microbatch.kills import Death
from everstream.engine.microbatch.layout import Layout
from everstream.engine.microbatch.orders import Order, ShardReport
from everstream.engine.microbatch.rows import Row, report_in
from everstream.engine.microbatch.spark_task import Arriving, Ending, Leaving, StageTask, Starting
from everstream.engine.spark.context import slots_of_an_executor
from everstream.engine.spark.launcher import JobParts, rows_of
from everstream.engine.spark.lost import NO_ANSWER, is_gone, job_failed, noticing_the_end
from everstream.errors import EnvironmentFault, RunFailed
from everstream.state.retention import Retention

VARIABLE = "EVERSTREAM_PIN"
"""Spark has one pool of workers per set of environment variables, and uses any idle one of it."""
_CALL_SITE = "callSite.short"
_LOOK_EVERY_S = 0.01


class LineageMaker:
    """Builds the stages of jobs, from the parts of `RDD.partitionBy`.

    No query is planned and compiled for every epoch, rows enter the shuffle unchanged, and every
    shard can have its own pool of Python workers. Each call into the JVM costs up to a millisecond,
    so objects that stay the same are built once. The JVM's objects have no types in Python.
    """

    def __init__(
        self, context: SparkContext, widths: Sequence[int], pins: int, broadcast: Any
    ) -> None:
        """widths: the number of tasks of each stage. pins: the number of pools they are spread over."""
        self._context = context
        self._parts = JobParts(context, broadcast)
        self._partitioners = [self._parts.partitioner(width) for width in widths]
        self._widths = widths
        self._selections = [self._parts.selection(shard) for shard in range(max(widths))]
        self._environments = [
            self._parts.environment(**{VARIABLE: str(pin)}) for pin in range(min(pins, max(widths)))
        ]
        self.start: Any = self._parts.partitions(widths[0])
        """The input of the first stage: as many partitions as it has tasks."""

    def name_stage(self, name: str | None) -> None:
        self._context.setLocalProperty(_CALL_SITE, name)  # type: ignore[arg-type]

    def in_workers(self, before: Any, command: tuple[Any, ...], level: int) -> Any:
        """A stage of Python tasks: a shard always goes to the same pool of workers."""
        parts, width, source = self._parts, self._widths[level], before.rdd()
        pickled = parts.pickled(command)
        functions = [parts.function(pickled, env) for env in self._environments[:width]]
        if width == 1:
            return parts.python_rdd(source, functions[0], False, False).asJavaRDD()
        tag, rdds = before.classTag(), []
        for shard in range(width):
            mine = parts.pruned(source, self._selections[shard], tag)
            function = functions[shard % len(functions)]
            rdds.append(parts.python_rdd(mine, function, False, False).asJavaRDD())
        return parts.union(rdds)

    def shuffled(self, rows: Any, level: int) -> Any:
        """The rows, each in the partition it is meant for, of the stage of this level."""
        pairs = self._parts.pairs(rows.rdd()).asJavaPairRDD()
        return self._parts.python_rdd.valueOfPair(pairs.partitionBy(self._partitioners[level]))

    def collected(self, rows: Any) -> Any:
        """Run the job; returns where to read its rows."""
        return self._parts.python_rdd.collectAndServe(rows.rdd())


@dataclass
class SparkJobs:
    context: SparkContext
    layout: Layout
    store_url: str
    key_file: str | None
    group: str
    max_retries: int
    retention: Retention
    deaths: Callable[[], tuple[Death, ...]]
    on_reports: Callable[[list[ShardReport]], None]
    in_midst: Callable[[], None] | None = None
    """Called when some tasks of an epoch are done and others are not."""

    def __post_init__(self) -> None:
        self._plan = self.context.broadcast(cloudpickle.dumps(self.layout.plan))
        self._path = [path for path in sys.path if path and os.path.isdir(path)]
        widths = [len(shards) for shards in self.layout.levels]
        pins = slots_of_an_executor(self.context)
        self._maker = LineageMaker(self.context, widths, pins, self._plan)

    def run(self, order: Order) -> list[ShardReport]:
        with noticing_the_end(self.context):
            self.context.setJobGroup(self.group, self._description(order), True)
        try:
            with seeing_the_midst(self.context, self.group, self.in_midst):
                served = self._maker.collected(self._lineage(order))
                rows: list[Row] = rows_of(served, Arriving())
        except Exception as error:  # PySpark fails in many ways when Spark is gone
            if is_gone(self.context):
                cause = EnvironmentFault(str(error))
                raise RunFailed("Spark ended before the pipeline did", cause) from error
            if isinstance(error, (PySparkException, *NO_ANSWER)):
                raise JobLost(job_failed(error)) from error
            raise
        reports: list[ShardReport] = [report_in(row) for row in rows]
        self.on_reports(reports)
        return reports

    def cancel(self) -> None:
        with suppress(*NO_ANSWER):  # Spark is gone, and its job with it
            self.context.cancelJobGroup(self.group)

    def close(self) -> None:
        with suppress(Exception):  # Spark itself may be gone; then there is nothing to free
            self._maker.name_stage(None)
            self._plan.destroy()

    def _lineage(self, order: Order) -> Any:
        """The last stage, which depends on all others."""
        maker, levels, deaths = self._maker, self.layout.levels, self.deaths()
        coming = maker.start
        for level in range(len(levels)):
            last = level == len(levels) - 1
            maker.name_stage(_listed(self.layout.chains_at(level)))
            stage = StageTask(
                level,
                order,
                self._plan,
                self.store_url,
                self.key_file,
                deaths,
                self._path,
                self.max_retries,
                self.retention,
            )
            rows_in = Arriving() if level else Starting()
            command = (stage, None, rows_in, Ending() if last else Leaving())
            coming = maker.in_workers(coming, command, level)
            if not last:
                coming = maker.shuffled(coming, level + 1)
        return coming

    def _description(self, order: Order) -> str:
        name = self.layout.plan.graph.name
        if order.closing:
            return f"everstream {name}: the end"
        levels = range(len(self.layout.levels))
        stages = [_listed(self.layout.chains_at(level)) for level in levels]
        return f"everstream {name}: epoch {order.epoch}: {' → '.join(stages)}"


def _listed(names: Iterable[str]) -> str:
    return " + ".join(names)


@contextmanager
def seeing_the_midst(
    context: SparkContext, group: str, told: Callable[[], None] | None
) -> Iterator[None]:
    """Call back once in the middle of the group's job, which runs in this block; None: do nothing.

    Reports arrive only when a job has ended: to kill the driver earlier, ask Spark.
    """
    if told is None:
        yield
        return
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_EVERY_S):
            done, tasks = _progress(context, group)
            if 0 < done < tasks:
                told()
                return

    looking = threading.Thread(target=look, name="everstream-midst", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def _progress(context: SparkContext, group: str) -> tuple[int, int]:
    """Of the group's active jobs: the number of completed tasks, and of all tasks."""
    tracker = context.statusTracker()
    done = tasks = 0
    for number in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(number)
        if job is None or job.status != "RUNNING":
            continue
        for stage_id in job.stageIds:
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                done += stage.numCompletedTasks
                tasks += stage.numTasks
    return done, tasks
