"""The lineage of an epoch's job, built from the parts of `RDD.partitionBy`.

No query is planned and compiled for every epoch, rows enter the shuffle unchanged, and every shard
can have its own pool of Python workers. Each call into the JVM costs up to a millisecond, so
objects that stay the same from epoch to epoch are built once.
"""

from collections.abc import Sequence
from typing import Any

from pyspark import SparkContext

from everstream.engine.spark.launcher import JobParts

VARIABLE = "EVERSTREAM_PIN"
"""Spark has one pool of workers per set of environment variables, and uses any idle one of it."""
_CALL_SITE = "callSite.short"


class LineageMaker:
    """Builds the stages of jobs. The JVM's objects have no types in Python."""

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
        """The name of the next stage on Spark's pages."""
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
