"""A streaming DataFrame feeds a pipeline: every row once, whatever dies, and whatever Spark repeats."""

import json
import os
import threading
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import everstream as es
from everstream.connectors.spark.landed import CHOSEN, FAILED, Landed, LandedReader, sign_of
from everstream.connectors.spark.sources import ENDED, _Landing
from everstream.core.plan import make_plan
from everstream.engine.spark.slots import workers_for
from everstream.errors import ConnectorError, RunFailed, UserError
from everstream.pipeline.source import END, Reader


def files_of(spark: SparkSession, folder: Path) -> DataFrame:
    """One file to a batch."""
    stream = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1)
    return stream.json(str(folder))


def write(folder: Path, name: str, numbers: range) -> None:
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps({"n": n}) + "\n" for n in numbers)
    whole = folder / f".{name}"
    whole.write_text(text)
    os.utime(whole, (1e9 + numbers.start, 1e9 + numbers.start))  # Spark takes files by their age
    whole.rename(folder / name)


def forget_end(folder: Path) -> None:
    """As if the driver had died before it could say that the query has ended."""
    (end,) = folder.glob(f"{ENDED}-*")
    end.unlink()


def all_rows(reader: Reader) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while (batch := reader.read()) is not END:
        if batch is None:
            time.sleep(0.02)
        else:
            found += batch.rows(named=True)  # type: ignore[union-attr]
    return found


def test_files_are_read_once_by_several_shards_while_a_worker_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number in range(3):
        write(tmp_path / "in", f"{number}.json", range(40 * number, 40 * number + 40))
    source = es.SparkStream(files_of(spark, tmp_path / "in").repartition(2), available_now=True)
    pipeline = es.Pipeline("files")
    numbers = pipeline.source(source, name="numbers", shards=2).on_demand()
    numbers.map(lambda row: row["n"], name="number", shards=1).collect(name="out")
    result = pipeline.run(
        spark=spark,
        store=tmp_path / "store",
        checkpoint=es.Coordinated(every="100ms"),
        kill=["number@60"],
    )
    assert len(result.recoveries) == 1
    assert sorted(result.collected("out")) == list(range(120))


def test_an_endless_stream_goes_on_where_the_run_before_has_stopped_and_stops_without_noise(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()

    def run(until: int) -> list[int]:
        pipeline = es.Pipeline("rate")
        stream = es.SparkStream(rate.select("value"), every="50ms")
        rows = pipeline.source(stream, name="rate")
        rows.map(lambda row: row["value"], name="value").collect(name="out")
        result = pipeline.run(
            spark=spark,
            store=tmp_path / "store",
            checkpoint=es.Coordinated(every="100ms"),
            until=lambda snapshot: snapshot.records_read >= until,
        )
        return result.collected("out")

    first = run(30)
    second = run(len(first) + 30)
    assert sorted(second) == list(range(len(second))) and len(second) >= len(first) + 30
    assert second[: len(first)] == first
    told = capfd.readouterr().err
    assert "ERROR" not in told and "Traceback" not in told


def test_a_batch_that_landed_before_spark_could_note_it_is_not_taken_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    inside, store = tmp_path / "in", tmp_path / "store"
    write(inside, "0.json", range(5))
    write(inside, "1.json", range(5, 10))
    frame = files_of(spark, inside).withColumn("at_random", f.rand())

    def landed(resuming: bool) -> list[dict[str, Any]]:
        source = es.SparkStream(frame, available_now=True)
        source.before_run("p", "numbers", str(store), resuming)
        rows = all_rows(source.open(0, 1))
        source.after_run()
        return rows

    first = landed(resuming=False)
    assert [row["n"] for row in first] == list(range(10))
    # As after a kill between the landing of the last batch and Spark's own note of it.
    folder = store / "sources" / "numbers"
    forget_end(folder)
    (folder / "query" / "commits" / "1").unlink()
    (folder / "query" / "commits" / ".1.crc").unlink(missing_ok=True)
    write(inside, "2.json", range(10, 15))
    second = landed(resuming=True)
    assert second[:10] == first, "computed anew, they would have other random numbers"
    assert [row["n"] for row in second[10:]] == list(range(10, 15))


def test_what_no_checkpoint_needs_is_deleted_and_the_rest_is_read_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    inside, store = tmp_path / "in", tmp_path / "store"
    for number in range(3):
        write(inside, f"{number}.json", range(5 * number, 5 * number + 5))
    source = es.SparkStream(files_of(spark, inside), available_now=True)
    source.before_run("p", "numbers", str(store), False)
    reader = source.open(0, 1)
    assert len(all_rows(reader)) == 15
    source.after_run()
    reader.forget((2, 0, 0))
    landed = sorted(path.parts[-3] for path in store.glob("sources/*/batches/*/*/*.parquet"))
    assert landed == ["00000002"]
    again = source.open(0, 1)
    again.seek((2, 0, 0))
    assert [row["n"] for row in all_rows(again)] == list(range(10, 15))


def test_a_query_that_fails_ends_the_run_with_its_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "in", "0.json", range(5))
    broken = files_of(spark, tmp_path / "in").withColumn("n", f.raise_error(f.lit("no such")))
    pipeline = es.Pipeline("broken")
    pipeline.source(es.SparkStream(broken), name="rows").collect()
    with pytest.raises(RunFailed, match="streaming query that feeds this pipeline has failed"):
        pipeline.run(spark=spark, store=tmp_path / "store")


def test_mistakes_are_said_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="use SparkDataFrame"):
        es.SparkStream(spark.range(3))
    (tmp_path / "in").mkdir()
    frame = files_of(spark, tmp_path / "in")
    with pytest.raises(UserError, match="remove available_now"):
        es.SparkStream(frame, every="1s", available_now=True)
    source = es.SparkStream(frame)
    with pytest.raises(ConnectorError, match="no longer in"):
        source.before_run("p", "rows", str(tmp_path / "store"), True)
    pipeline = es.Pipeline("one-slot")
    pipeline.source(source).collect()
    one: Any = SimpleNamespace(master="local[1,9]", defaultParallelism=1)
    config: Any = SimpleNamespace(workers=None, spares=0)
    with pytest.raises(UserError, match=r"run it on master 'local\[2\]'"):
        workers_for(config, one, make_plan(pipeline, 1), keeps_slots=True)
    assert workers_for(config, one, make_plan(pipeline, 1), keeps_slots=False) == 1


def landing(spark: SparkSession, frame: DataFrame, store: Path) -> _Landing:
    folder = store / "sources" / "numbers"
    folder.mkdir(parents=True, exist_ok=True)
    return _Landing(frame, str(folder), uuid.uuid4().hex)


def test_a_driver_that_was_replaced_changes_nothing_of_what_has_landed(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.createDataFrame([(1,), (2,)], "n long").withColumn("by", f.lit("heir"))
    late = _Paused(frame.withColumn("by", f.lit("zombie")))
    zombie, heir = (landing(spark, frame, tmp_path) for _ in range(2))
    thread = threading.Thread(target=zombie._land, args=(late, 0))
    thread.start()
    assert late.waits.wait(60), "the zombie has begun to land the batch, and stands still"
    heir._land(frame, 0)
    reader = LandedReader(str(tmp_path / "sources" / "numbers"), 0, 1)
    first = reader.read()
    late.goes_on.set()
    thread.join(60)
    assert not thread.is_alive()
    again = LandedReader(str(tmp_path / "sources" / "numbers"), 0, 1)
    assert [again.read()["by"].to_list() for _ in range(1)] == [first["by"].to_list()]
    assert set(first["by"]) == {"heir"}
    (folder,) = (path for path in (tmp_path / "sources/numbers/batches/00000000").glob("*/"))
    heir._land(frame.withColumn("by", f.lit("again")), 0)
    assert folder.exists(), "a batch that Spark gives again has landed already"


class _Paused:
    """A batch whose driver stands still when it is about to write."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self.waits, self.goes_on = threading.Event(), threading.Event()

    @property
    def write(self) -> Any:
        self.waits.set()
        assert self.goes_on.wait(60)
        return self._frame.write


def test_what_a_driver_left_behind_when_it_died_is_removed_once_another_has_landed(
    spark: SparkSession, tmp_path: Path
) -> None:
    inside, store = tmp_path / "in", tmp_path / "store"
    write(inside, "0.json", range(5))
    source = es.SparkStream(files_of(spark, inside), available_now=True)
    source.before_run("p", "numbers", str(store), False)
    assert len(all_rows(source.open(0, 1))) == 5
    source.after_run()
    batch = store / "sources" / "numbers" / "batches" / "00000000"
    (batch / "half").mkdir()
    (batch / "half" / "part-00000-x.parquet").write_bytes(b"not whole")
    forget_end(store / "sources" / "numbers")
    source.before_run("p", "numbers", str(store), True)
    assert len(all_rows(source.open(0, 1))) == 5
    source.after_run()
    assert not (batch / "half").exists()


def test_batches_that_an_earlier_version_has_landed_are_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "sources" / "numbers"
    spark.range(3).write.parquet(str(folder / "batches" / "00000000"))
    landing(spark, spark.range(9), tmp_path)._land(spark.range(9), 0)
    landing(spark, spark.range(2), tmp_path)._land(spark.range(2), 1)
    (folder / ENDED).write_text("2")
    reader = LandedReader(str(folder), 0, 1)
    assert len(all_rows(reader)) == 3 + 2


def lay(folder: Path, number: int, chosen: str | None = None) -> Path:
    """A batch of one row in the place where Spark would have landed it."""
    name = uuid.uuid4().hex
    place = folder / "batches" / f"{number:08d}" / name
    place.mkdir(parents=True)
    pl.DataFrame({"n": [number]}).write_parquet(place / "part-00000-x.parquet")
    (place.parent / CHOSEN).write_text(name if chosen is None else chosen)
    return place


def test_shards_do_not_believe_a_replaced_driver_that_its_query_is_over(tmp_path: Path) -> None:
    lay(tmp_path, 0)
    (tmp_path / sign_of(ENDED, "zombie")).write_text("1")
    (tmp_path / sign_of(FAILED, "zombie")).write_text("my successor has taken my place")
    reader = LandedReader(str(tmp_path), 0, 1, "heir")
    assert reader.read()["n"].to_list() == [0] and reader.read() is None  # type: ignore[index, union-attr, call-overload]
    lay(tmp_path, 1)
    assert reader.read()["n"].to_list() == [1]  # type: ignore[index, union-attr, call-overload]
    assert Landed(str(tmp_path)).ended() is None, "a batch has landed since"
    (tmp_path / sign_of(ENDED, "heir")).write_text("2")
    assert reader.read() is END and Landed(str(tmp_path)).ended() == 2


@pytest.mark.parametrize("outside", ["../../../elsewhere", "/tmp", "", "..", "A" * 32])
def test_the_note_of_what_counts_leads_into_no_other_folder(tmp_path: Path, outside: str) -> None:
    victim = tmp_path / "elsewhere" / "part-00000-x.parquet"
    victim.parent.mkdir()
    victim.write_bytes(b"mine")
    lay(tmp_path / "landed", 0, outside)
    reader = LandedReader(str(tmp_path / "landed"), 0, 1)
    with pytest.raises(ConnectorError, match="does not name a folder that Spark has written"):
        reader.read()
    with pytest.raises(ConnectorError, match="does not name a folder that Spark has written"):
        Landed(str(tmp_path / "landed")).remove(0, victim.name)
    assert victim.read_bytes() == b"mine"
