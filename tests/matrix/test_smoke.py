"""Both Spark engines, the data source and a streaming query, on the Spark that is installed.

`make matrix` copies these tests next to an installed wheel and runs them on every version of Spark
that Everstream supports. So this module needs only the library and pytest. Tests of the packages
cover most of it on one version of Spark, so `make test` runs a sample.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import everstream as es
from everstream.engine.spark.context import make_context
from everstream.engine.spark.launcher import SPARK
from everstream.pipeline.checkpointing import EngineName

RECORDS, KEYS = 2_000, 7
MASTER = os.environ.get("EVERSTREAM_MASTER", "local[4]")


@pytest.fixture(scope="module")
def session() -> SparkSession:
    return SparkSession(make_context(MASTER, "matrix"))


def add(total: int, number: int) -> int:
    return total + number


def totals() -> es.Pipeline:
    """The running total of each key."""
    pipeline = es.Pipeline("totals")
    numbers = pipeline.source(es.Range(RECORDS, batch=20), name="numbers", shards=2)
    keyed = numbers.key_by(lambda number: number % KEYS)
    keyed.fold(init=int, update=add, name="fold", shards=2).sink(es.Collect(), name="out")
    return pipeline


def last_totals() -> list[tuple[int, int]]:
    return [(key, sum(range(key, RECORDS, KEYS))) for key in range(KEYS)]


def last_of(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The largest total of each key: numbers only grow, so it is the last."""
    largest: dict[int, int] = {}
    for key, total in rows:
        largest[key] = max(total, largest.get(key, 0))
    return sorted(largest.items())


@pytest.mark.long
@pytest.mark.parametrize("engine", ["tasks", "microbatch"])
def test_a_killed_worker_costs_no_record_and_doubles_none(
    session: SparkSession, engine: EngineName, tmp_path: Path
) -> None:
    result = totals().run(
        engine=engine,
        spark=session,
        store=tmp_path,
        kill=["fold@500"],
        checkpoint=es.Coordinated(every_records=400),
        progress=False,
    )
    assert len(result.recoveries) == 1
    assert len(result.collected("out")) == RECORDS
    assert last_of(result.collected("out")) == last_totals()


def test_spark_reads_the_output_of_a_run_as_a_table_and_as_a_stream(
    session: SparkSession, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    totals().run(engine="microbatch", spark=session, store=store, progress=False)
    read = session.read.format("everstream").load(store)
    assert read.count() == RECORDS
    stream = session.readStream.format("everstream").schema("_1 long, _2 long").load(store)
    query = stream.writeStream.format("parquet").trigger(availableNow=True)
    query = query.option("checkpointLocation", str(tmp_path / "offsets"))
    query.start(str(tmp_path / "seen")).awaitTermination()
    rows = session.read.parquet(str(tmp_path / "seen")).collect()
    assert len(rows) == RECORDS
    assert last_of([(row[0], row[1]) for row in rows]) == last_totals()


@pytest.mark.long
def test_a_pipeline_reads_a_streaming_query_while_a_worker_is_killed(
    session: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "numbers"
    folder.mkdir()
    for part in range(3):
        lines = (json.dumps({"n": n}) for n in range(100 * part, 100 * (part + 1)))
        (folder / f"{part}.json").write_text("\n".join(lines))
    frame = session.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(folder))
    pipeline = es.Pipeline("stream")
    rows = pipeline.source(es.SparkStream(frame, available_now=True), name="rows")
    rows.map(twice, name="twice").collect(name="out")
    result = pipeline.run(
        engine="tasks",
        spark=session,
        store=tmp_path / "store",
        kill=["twice@150"],
        checkpoint=es.Coordinated(every="100ms"),
        progress=False,
    )
    assert len(result.recoveries) == 1
    assert sorted(result.collected("out")) == [2 * n for n in range(300)]


def twice(row: dict[str, Any]) -> int:
    return int(2 * row["n"])


@pytest.mark.long
def test_a_streaming_query_writes_a_topic_or_is_refused_with_the_version_that_can(
    session: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "numbers"
    folder.mkdir()
    (folder / "0.json").write_text("\n".join(json.dumps({"n": n}) for n in range(100)))
    frame = session.readStream.schema("n long").json(str(folder))
    query = frame.writeStream.format("everstream").trigger(availableNow=True)
    query = query.option("checkpointLocation", str(tmp_path / "offsets"))
    topic = str(tmp_path / "topic")
    if SPARK < (4, 1):
        refusal = r"writeStream.format\(\"everstream\"\) needs Spark 4.1 or newer"
        with pytest.raises(PySparkException, match=refusal):
            query.start(topic).awaitTermination()
        return
    query.start(topic).awaitTermination()
    rows = session.read.format("everstream").option("what", "topic").load(topic).collect()
    assert sorted(row.n for row in rows) == list(range(100))
