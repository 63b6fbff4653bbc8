"""A topic has every batch of its query once, whatever Spark repeats, and of no other query."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import everstream as es
from everstream.errors import StoreError, UserError
from everstream.inspection.datasource.topic import Topic, TopicBatch, TopicOffsets
from everstream.inspection.datasource.topic_writer import TopicWriter, topic_writer
from tests.inspection.datasource.stores import NUMBERS

SCHEMA = NUMBERS.jsonValue()


def test_the_first_commit_of_a_batch_counts_and_the_files_of_others_are_removed(
    tmp_path: Path,
) -> None:
    topic = Topic(str(tmp_path))
    for name in ("files/a", "files/b"):
        topic.blobs.write(name, b"rows")
    topic.commit(0, TopicBatch("q", ("files/a",), SCHEMA))
    topic.commit(0, TopicBatch("q", ("files/b",), SCHEMA))
    assert topic.files(0, len(topic)) == ["files/a"]
    assert topic.blobs.list("files/") == ["files/a"]
    topic.commit(0, TopicBatch("q", ("files/a",), SCHEMA))
    assert topic.blobs.list("files/") == ["files/a"], "the same attempt, committed twice"


@pytest.mark.parametrize("number", [0, 1])
def test_a_batch_of_another_query_is_refused(tmp_path: Path, number: int) -> None:
    topic = Topic(str(tmp_path))
    topic.commit(0, TopicBatch("q", ("files/a",), SCHEMA))
    with pytest.raises(UserError, match="belongs to another streaming query"):
        topic.commit(number, TopicBatch("other", ("files/b",), SCHEMA))
    assert topic.files(0, len(topic)) == ["files/a"]


def test_a_batch_after_one_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no batch 1"):
        Topic(str(tmp_path)).commit(2, TopicBatch("q", (), SCHEMA))


def test_available_now_ends_with_the_batches_there_were(tmp_path: Path) -> None:
    topic, offsets = Topic(str(tmp_path)), TopicOffsets(str(tmp_path), NUMBERS)
    topic.commit(0, TopicBatch("q", ("files/a",), SCHEMA))
    offsets.end_here()
    topic.commit(1, TopicBatch("q", ("files/b",), SCHEMA))
    end = offsets.latest(offsets.initial())
    assert end == {"batches": 1}
    assert [part.name for part in offsets.partitions(offsets.initial(), end)] == ["files/a"]


@pytest.mark.parametrize(
    ("options", "overwrite", "refusal"),
    [
        ({"path": "t", "checkpointLocation": "c", "partitons": "2"}, False, '"partitons"'),
        ({"checkpointLocation": "c"}, False, "name the folder"),
        ({"path": "t"}, False, "checkpointLocation"),
        ({"path": "t", "checkpointLocation": "c"}, True, "append"),
    ],
)
def test_a_query_that_cannot_be_kept_exactly_is_refused(
    options: dict[str, str], overwrite: bool, refusal: str
) -> None:
    with pytest.raises(UserError, match=refusal):
        topic_writer(options, NUMBERS, overwrite)


def test_an_aborted_batch_leaves_no_file(tmp_path: Path) -> None:
    writer = TopicWriter(str(tmp_path), "", NUMBERS)
    written = writer.write(iter([pa.RecordBatch.from_pydict({"value": [1]})]))
    empty = writer.write(iter([pa.RecordBatch.from_pydict({"value": pa.array([], pa.int64())})]))
    blobs = Topic(str(tmp_path)).blobs
    assert blobs.list("files/") == [written.name]
    assert empty.name is None
    writer.abort([written, None, empty], 0)
    assert blobs.list("files/") == []


def write(frame: DataFrame, topic: Path, checkpoint: Path) -> None:
    query = frame.writeStream.format("everstream").trigger(availableNow=True)
    query.option("checkpointLocation", str(checkpoint)).start(str(topic)).awaitTermination()


@pytest.mark.long  # the page on Spark writes a topic in every run, and reads it
def test_a_batch_that_spark_repeats_is_in_the_topic_once_and_a_pipeline_reads_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    numbers, topic, checkpoint = tmp_path / "numbers", tmp_path / "topic", tmp_path / "offsets"
    numbers.mkdir()
    for part in range(3):
        lines = (json.dumps({"n": n}) for n in range(10 * part, 10 * part + 10))
        (numbers / f"{part}.json").write_text("\n".join(lines))
    files = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(numbers))
    frame = files.withColumn("half", f.col("n") / 2)
    write(frame, topic, checkpoint)
    assert len(Topic(str(topic))) == 3
    # As if the driver had died after our commit, and before Spark recorded it.
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    write(frame, topic, checkpoint)
    assert len(Topic(str(topic))) == 3
    assert len(list((topic / "files").glob("*.parquet"))) == 3

    read = spark.read.format("everstream").option("what", "topic").load(str(topic))
    expected = [(n, n / 2) for n in range(30)]
    assert sorted((row.n, row.half) for row in read.collect()) == expected
    stream = spark.readStream.format("everstream").option("what", "topic").load(str(topic))
    pipeline = es.Pipeline("from-topic")
    rows = pipeline.source(es.SparkStream(stream, available_now=True), name="rows")
    rows.map(pair, name="pair").collect(name="out")
    result = pipeline.run(spark=spark, store=tmp_path / "store", progress=False)
    assert sorted(result.collected("out")) == expected

    with pytest.raises(StreamingQueryException, match="belongs to another streaming query"):
        write(frame, topic, tmp_path / "other-offsets")
    assert read.count() == 30


def pair(row: dict[str, Any]) -> tuple[int, float]:
    return row["n"], row["half"]
