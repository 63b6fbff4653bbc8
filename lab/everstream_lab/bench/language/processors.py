"""Records per second of one of Spark's stateful processors: in Structured Streaming, and as an operator here.

It keeps a total and the last payments of each customer: a value, a list, one row of output for each customer
of a batch. Both read the same batches, which were made beforehand, with one core for the processor and a
checkpoint for each batch there, each second here. What starts a query or a run is not measured.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median_high
from typing import Any

import polars as pl
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from everstream.connectors.collect import Collect
from everstream.connectors.generate.sources import FromFunction
from everstream.engine.spark.context import make_context
from everstream.errors import RunFailed
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.report import Figure, Progress, at_least

BATCH, CUSTOMERS, KEPT = 4_000, 2_000, 5
SPARK_BATCHES, WARM_BATCHES = 8, 3
PIPED_BATCHES = 250
"""More than Spark gets, because each takes less time."""
OUTPUT = "customer bigint, total bigint, kept int"
SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


class Payments(StatefulProcessor):
    """As anybody would write it for Spark."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "cents bigint")
        self.last = handle.getListState("last", "cents bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        total = self.total.get()[0] if self.total.exists() else 0
        last = list(self.last.get())
        for row in rows:
            total += row.cents
            last.append((row.cents,))
        last = sorted(last)[-KEPT:]
        self.total.update((total,))
        self.last.put(last)
        yield Row(customer=key[0], total=total, kept=len(last))

    def close(self) -> None:
        pass


def payments(start: int, stop: int) -> pl.DataFrame:
    rows = pl.select(n=pl.int_range(start, stop, dtype=pl.Int64))
    return rows.select(customer=pl.col("n") * 7919 % CUSTOMERS, cents=pl.col("n") % 97 + 1)


def expected(batches: int) -> dict[int, int]:
    totals = payments(0, batches * BATCH).group_by("customer").agg(pl.col("cents").sum())
    return dict(totals.rows())


def _in_spark(master: str) -> float:
    session = SparkSession(make_context(master, "everstream bench")).newSession()
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    totals: dict[int, int] = {}
    with tempfile.TemporaryDirectory(prefix="everstream-processors-") as name:
        folder = Path(name)
        (folder / "in").mkdir()
        for number in range(SPARK_BATCHES):
            file = folder / "in" / f"{number:04d}.parquet"
            payments(number * BATCH, (number + 1) * BATCH).write_parquet(file)
            os.utime(file, (number, number))  # Spark takes files by their age
        reader = session.readStream.schema("customer bigint, cents bigint")
        read = reader.option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
        grouped = read.groupBy("customer")
        rows = grouped.transformWithState(Payments(), OUTPUT, "Update", "None")

        def keep(frame: Any, _: int) -> None:
            table = pl.DataFrame(pl.from_arrow(frame.toArrow()))
            totals.update(table.select("customer", "total").rows())

        writer = rows.writeStream.foreachBatch(keep).outputMode("update")
        query = writer.option("checkpointLocation", str(folder / "checkpoint"))
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        triggers: list[Any] = [one for one in running.recentProgress if one["numInputRows"]]
    if totals != expected(SPARK_BATCHES):
        raise RunFailed("Structured Streaming: the totals are not those of the payments")
    counting = triggers[WARM_BATCHES:]
    took_ms: int = sum(one["durationMs"]["triggerExecution"] for one in counting)
    rows_counted: int = sum(one["numInputRows"] for one in counting)
    return 1000 * rows_counted / took_ms


class _Totals(Operator):
    """The totals of each batch, and when they came."""

    max_shards = 1

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        table = columns_of(batch, ctx.operator)
        totals = dict(table.select("customer", "total").rows())
        ctx.emit((time.monotonic(), totals))


def _piped() -> float:
    pipeline = Pipeline("payments")
    source = FromFunction(payments, PIPED_BATCHES * BATCH, batch=BATCH)
    keyed = pipeline.source(source, name="payments").key_by("customer")
    rows = keyed.transform_with_state(Payments(), OUTPUT, "None", "Update", name="customers")
    rows.process(_Totals(), name="totals").sink(Collect(), name="out")
    with tempfile.TemporaryDirectory(prefix="everstream-processors-") as store:
        result = pipeline.run(
            engine="local", workers=1, store=store, checkpoint=Coordinated(every="1s")
        )
    came = result.collected("out")
    totals: dict[int, int] = {}
    for _, some in came:
        totals.update(some)
    if totals != expected(PIPED_BATCHES):
        raise RunFailed("the operator: the totals are not those of the payments")
    times = [at_s for at_s, _ in came]
    took_s: float = max(times) - min(times)
    return (len(times) - 1) * BATCH / took_s


def figures(rounds: int, progress: Progress, master: str = "local[2]") -> list[Figure]:
    """Both in turn."""
    native: list[float] = []
    piped: list[float] = []
    for number in range(rounds):
        progress(f"Structured Streaming, round {number + 1} of {rounds}")
        native.append(_in_spark(master))
        progress(f"the same processor as an operator, round {number + 1} of {rounds}")
        piped.append(_piped())
    ratio = median_high(mine / its for mine, its in zip(piped, native, strict=True))
    return [
        Figure.median("Structured Streaming, transformWithState", native, "records/s"),
        Figure(
            "transform_with_state, a checkpoint each second",
            median_high(piped),
            "records/s",
            at_least(50, "ratio"),
            ratio,
            tuple(piped),
        ),
    ]
