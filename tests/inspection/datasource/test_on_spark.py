"""Spark reads stores of real runs: while they go on and are killed, and when they are over."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import everstream as es
from everstream.inspection.datasource import register
from tests.gated_numbers import Gated

HALF, ALL = 100, 200
SECRET = "0123456789abcdef" * 4


def wait_for(what: str, condition: Callable[[], bool], run: threading.Thread) -> None:
    while not condition():
        assert run.is_alive(), f"the run is over, and there is no {what}"
        time.sleep(0.05)


class Running(threading.Thread):
    """A pipeline that runs beside the test."""

    def __init__(self, pipeline: es.Pipeline, **options: Any) -> None:
        super().__init__(daemon=True)
        self._pipeline, self._options = pipeline, options
        self.result: es.RunResult | None = None

    def run(self) -> None:
        self.result = self._pipeline.run(**self._options)


def test_a_stream_sees_every_record_once_while_the_pipeline_is_killed_and_it_is_stopped_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, gate, seen = tmp_path / "store", tmp_path / "gate", str(tmp_path / "seen")
    pipeline = es.Pipeline("doubles")
    numbers = pipeline.source(Gated(gate, ALL), name="numbers").on_demand()
    doubled = numbers.map(lambda n: {"n": n, "twice": 2 * n}, name="double")
    doubled.sink(es.Collect(), name="out")

    def query() -> StreamingQuery:
        stream = spark.readStream.format("everstream").schema("twice long, n long")
        to_files = stream.load(str(store)).writeStream.format("parquet")
        return to_files.option("checkpointLocation", str(tmp_path / "offsets")).start(seen)

    run = Running(
        pipeline,
        spark=spark,
        store=store,
        workers=2,
        checkpoint=es.Coordinated(every="100ms"),
        kill=[f"double@{HALF + 30}"],
    )
    run.start()
    wait_for("store", (store / "manifests").exists, run)
    first = query()
    wait_for("output", lambda: rows_read(first) == HALF, run)
    first.stop()
    state = spark.read.format("everstream").option("operator", "numbers").load(str(store))
    assert [(row.state, row.value) for row in state.collect()] == [("offset", str(HALF))]
    gate.touch()
    second = query()
    run.join()
    second.processAllAvailable()
    second.stop()
    assert run.result is not None and len(run.result.recoveries) == 1
    rows = [(row.n, row.twice) for row in spark.read.parquet(seen).collect()]
    assert sorted(rows) == [(n, 2 * n) for n in range(ALL)]


def rows_read(query: StreamingQuery) -> int:
    error = query.exception()
    assert error is None, error
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def test_a_signed_store_is_read_with_its_key_which_nobody_sees(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, key = str(tmp_path / "store"), tmp_path / "store.key"
    key.touch(mode=0o600)
    key.write_text(SECRET)
    pipeline = es.Pipeline("remainders")
    shares = pipeline.source(es.Range(40), name="numbers").map(
        lambda n: {"n": n, "share": 100 // (n % 10)}, name="divide", on_error="dead_letter"
    )
    shares.key_by(lambda row: row["n"] % 4).fold(
        lambda: 0, lambda count, row: count + 1, name="counts"
    ).sink(es.Callback(print), name="nowhere")
    shares.sink(es.Collect(), name="shares")
    pipeline.run(spark=spark, store=store, store_key=key)

    def read(**options: str) -> DataFrame:
        reader = spark.read.format("everstream").option("store_key", str(key))
        return reader.options(**options).load(store)

    output = read()
    assert output.dtypes == [("n", "bigint"), ("share", "bigint")]
    assert output.count() == 36
    state = read(operator="counts")
    counts = {row.key: row.value for row in state.collect()}
    assert counts == {"0": "8", "1": "10", "2": "8", "3": "10"}
    typed = spark.read.format("everstream").schema("value long, key int")
    typed = typed.option("operator", "counts").option("store_key", str(key)).load(store)
    assert sum(row.value for row in typed.collect()) == 36
    letters = read(what="dead_letters").select("operator", "record", "error").collect()
    assert sorted(int(row.record) for row in letters) == [0, 10, 20, 30]
    assert {row.operator for row in letters} == {"divide"}
    (newest, *_) = read(what="checkpoints", verify="true").collect()
    assert (newest.status, newest.complete, newest.final) == ("current", True, True)

    with pytest.raises(AnalysisException, match=r"'nope'.*it has: numbers, divide"):
        read(operator="nope")
    with pytest.raises(AnalysisException, match=r"'divide' keeps no output.*there are: shares"):
        read(what="output", operator="divide")
    with pytest.raises(AnalysisException, match="store_key") as refused:
        spark.read.format("everstream").load(store)
    plan = state._jdf.queryExecution().toString()
    assert SECRET not in f"{refused.value}{plan}"


@pytest.mark.long  # `tests/matrix` reads such a store in every run
def test_a_store_of_micro_batches_is_read_like_any_other_also_one_fed_by_a_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, offsets = str(tmp_path / "store"), str(tmp_path / "offsets")
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()

    def run(engine: Literal["tasks", "microbatch"], until: int) -> None:
        pipeline = es.Pipeline("rate")
        rows = pipeline.source(es.SparkStream(rate.select("value"), every="50ms"), name="rate")
        rows.map(lambda row: row["value"], name="value").collect(name="out")
        pipeline.run(
            engine=engine,
            spark=spark,
            store=store,
            checkpoint=es.Coordinated(every="100ms"),
            until=lambda snapshot: snapshot.records_read >= until,
        )

    def seen() -> list[int]:
        stream = spark.readStream.format("everstream").schema("value long").load(store)
        to_files = stream.writeStream.format("parquet").option("checkpointLocation", offsets)
        query = to_files.trigger(availableNow=True).start(str(tmp_path / "seen"))
        query.awaitTermination()
        return sorted(row.value for row in spark.read.parquet(str(tmp_path / "seen")).collect())

    run("microbatch", 30)
    first = seen()
    run("tasks", len(first) + 30)
    second = seen()
    for rows, least in ((first, 30), (second, len(first) + 30)):
        assert rows == list(range(len(rows))) and len(rows) >= least


def test_a_session_can_be_told_of_the_format(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with pytest.raises(AnalysisException, match=f"there is no store '{tmp_path}/nothing'"):
        spark.read.format("everstream").load(str(tmp_path / "nothing"))
