"""The lineage of an epoch's job, built from the parts of `RDD.partitionBy`.

No query is planned and compiled for every epoch, rows enter the shuffle unchanged, and every shard
can have its own pool of Python workers. Each call into the JVM costs up to a millisecond, so
objects that stay the same from epoch to epoch are built once.
"""

from collections.abc import Sequence
from typing import Any, cast

from pyspark import SparkContext
from pyspark.serializers import CloudPickleSerializer

VARIABLE = "EVERSTREAM_PIN"
"""Spark has one pool of workers per set of environment variables, and uses any idle one of it."""
_CALL_SITE = "callSite.short"


class LineageMaker:
    """Builds the stages of jobs. The JVM's objects have no types in Python."""

    def __init__(
        self, context: SparkContext, widths: Sequence[int], pins: int, broadcast: Any
    ) -> None:
        """widths: the number of tasks of each stage. pins: the number of pools they are spread over."""
        self._context = cast("Any", context)
        self._pickle: Any = cast("Any", CloudPickleSerializer)()
        jvm = self._context._jvm
        self._function = jvm.SimplePythonFunction
        self._python_rdd = jvm.PythonRDD
        self._pairs = jvm.PairwiseRDD
        self._pruned = jvm.org.apache.spark.rdd.PartitionPruningRDD
        self._java_rdd = jvm.org.apache.spark.api.java.JavaRDD
        self._partitioners = [jvm.PythonPartitioner(width, 0) for width in widths]
        self._widths = widths
        self._selections = [self._selection(shard) for shard in range(max(widths))]
        self._environments = [self._environment(pin) for pin in range(min(pins, max(widths)))]
        self._includes = _java_list(jvm, self._context._python_includes)
        self._broadcasts = _java_list(jvm, [broadcast._jbroadcast])
        self.start: Any = self._context.parallelize(range(widths[0]), widths[0])._jrdd
        """The input of the first stage: as many partitions as it has tasks."""

    def name_stage(self, name: str | None) -> None:
        """The name of the next stage on Spark's pages."""
        self._context.setLocalProperty(_CALL_SITE, name)

    def in_workers(self, before: Any, command: tuple[Any, ...], level: int) -> Any:
        """A stage of Python tasks: a shard always goes to the same pool of workers."""
        pickled = bytearray(self._pickle.dumps(command))
        self._context._pickled_broadcast_vars.clear()
        width, source = self._widths[level], before.rdd()
        functions = [self._for_pool(pickled, env) for env in self._environments[:width]]
        if width == 1:
            return self._python_rdd(source, functions[0], False, False).asJavaRDD()
        parts = self._context._gateway.new_array(self._java_rdd, width)
        tag = before.classTag()
        for shard in range(width):
            mine = self._pruned(source, self._selections[shard], tag)
            function = functions[shard % len(functions)]
            parts[shard] = self._python_rdd(mine, function, False, False).asJavaRDD()
        return self._context._jsc.union(parts)

    def shuffled(self, rows: Any, level: int) -> Any:
        """The rows, each in the partition it is meant for, of the stage of this level."""
        pairs = self._pairs(rows.rdd()).asJavaPairRDD()
        return self._python_rdd.valueOfPair(pairs.partitionBy(self._partitioners[level]))

    def collected(self, rows: Any) -> Any:
        """Run the job; returns where to read its rows."""
        return self._python_rdd.collectAndServe(rows.rdd())

    def _for_pool(self, pickled: bytearray, environment: Any) -> Any:
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

    def _environment(self, pin: int) -> Any:
        variables = self._context._jvm.java.util.HashMap()
        for name, value in {**self._context.environment, VARIABLE: str(pin)}.items():
            variables.put(name, value)
        return variables

    def _selection(self, shard: int) -> Any:
        """A Scala function that is true for this partition only: a set is one."""
        jvm = self._context._jvm
        alone = jvm.java.util.Collections.singleton(shard)
        return jvm.scala.jdk.javaapi.CollectionConverters.asScala(alone).toSet()


def _java_list(jvm: Any, items: Sequence[Any]) -> Any:
    found = jvm.java.util.ArrayList()
    for item in items:
        found.add(item)
    return found
