"""Processors in real processes that are killed, and beside Spark's own Structured Streaming."""

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

import everstream as es
from tests.processors.programs import OUTPUT, Windows, WindowsInPandas, events, expected, in_order
from tests.sampling import first_of

VISITS = 3_000
INPUT = (
    StructType()
    .add("user", StringType())
    .add("page", StringType())
    .add("at", LongType())
    .add("time", TimestampType())
)


def some(start: int, stop: int) -> pl.DataFrame:
    return pl.DataFrame(events(VISITS)[start:stop])


def visits_to(processor: Any, source: es.Source, **more: Any) -> es.Pipeline:
    pipeline = es.Pipeline("visits")
    keyed = pipeline.source(source, name="in").event_time("at", unit="ms").key_by("user")
    in_pandas = isinstance(processor, WindowsInPandas)
    run = keyed.transform_with_state_in_pandas if in_pandas else keyed.transform_with_state
    run(processor, OUTPUT, "EventTime", name="windows", shards=2, **more).collect(name="out")
    return pipeline


@pytest.mark.parametrize(
    ("processor", "state"),
    first_of(
        [
            (Windows(), "memory"),
            (WindowsInPandas(), "disk"),
            (Windows(), "disk"),
            (WindowsInPandas(), "memory"),
        ],
        quick=2,
    ),
)
def test_killed_workers_lose_and_double_nothing(tmp_path: Path, processor: Any, state: Any) -> None:
    source = es.Paced(es.FromFunction(some, VISITS, batch=50), 4_000)
    result = visits_to(processor, source, state=state).run(
        engine="local",
        workers=2,
        store=str(tmp_path / "store"),
        checkpoint=es.Coordinated(every="100ms"),
        kill=["windows:0@500", "windows:1@1000", "in:0@2000"],
        max_restarts=10,
    )
    assert result.recoveries
    assert in_order(result.collected("out")) == in_order(expected(events(VISITS)))


@pytest.mark.spark("compares with Structured Streaming")
@pytest.mark.parametrize("processor", first_of([Windows(), WindowsInPandas()], quick=1))
def test_structured_streaming_gives_the_same(
    tmp_path: Path, spark: SparkSession, processor: Any
) -> None:
    visits = events(60, users=3)
    last = {**visits[-1], "user": "last", "time": visits[-1]["time"].replace(year=2030)}
    by_spark = of_structured_streaming(tmp_path, spark, processor, [*visits, last])
    assert in_order(by_spark) == in_order(expected(visits))
    for engine in ("tasks", "microbatch"):
        result = visits_to(processor, es.FromList(visits)).run(
            engine=engine, spark=spark, store=str(tmp_path / engine)
        )
        assert in_order(result.collected("out")) == in_order(by_spark), engine


def of_structured_streaming(
    folder: Path, spark: SparkSession, processor: Any, visits: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The output of the processor there, without that of the last visit, which ends the windows."""
    incoming = folder / "in"
    incoming.mkdir()
    for number, part in enumerate((visits[:-1], visits[-1:])):
        file = incoming / f"{number}.json"
        file.write_text("".join(json.dumps(visit, default=str) + "\n" for visit in part))
        os.utime(file, (10**9 + number, 10**9 + number))
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    read = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", "1").json(str(incoming))
    grouped = read.withWatermark("time", "0 seconds").groupBy("user")
    in_pandas = isinstance(processor, WindowsInPandas)
    run = grouped.transformWithStateInPandas if in_pandas else grouped.transformWithState
    rows: list[dict[str, Any]] = []
    query = (
        run(processor, OUTPUT, "Append", "EventTime")
        .writeStream.foreachBatch(lambda frame, _: rows.extend(r.asDict() for r in frame.collect()))
        .option("checkpointLocation", str(folder / "checkpoints"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [row for row in rows if row["user"] != "last"]
