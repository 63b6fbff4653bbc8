"""Kafka in real runs on Spark: workers and the broker are killed while it is read, and it counts right."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import everstream as es
from everstream.pipeline.checkpointing import EngineName
from tests.connectors.kafka_reading import PATIENCE_S, topic_of
from tests.kafka_server import KafkaServer

EACH = 600
"""Records in each of two partitions."""


def rows_in(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("part-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def produce(kafka: KafkaServer, topic: str, first: int, end: int) -> None:
    """A record each 10 ms of event time; those of partition 1 are a minute behind."""
    kafka.produce(
        topic,
        (
            {"value": b"%d" % n, "partition": p, "timestamp": 100_000 - 60_000 * p + 10 * n}
            for n in range(first, end)
            for p in (0, 1)
        ),
    )


@pytest.mark.parametrize("engine", ["tasks", pytest.param("microbatch", marks=pytest.mark.long)])
def test_killed_workers_and_a_killed_broker_lose_and_double_nothing(
    engine: EngineName, spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = topic_of(kafka, 2)
    produce(kafka, topic, 0, EACH // 2)
    source = es.Kafka(
        kafka.bootstrap,
        topic,
        stop={0: EACH, 1: EACH},
        fields=["value", "partition", "offset", "timestamp"],
        event_time=True,
        group=f"group-{topic}",
        batch_records=50,
    )
    pipeline = es.Pipeline("from-kafka")
    rows = pipeline.source(source, name="read")
    rows.map(lambda row: {"n": row["value"], "p": row["partition"]}, name="plain").on_demand().sink(
        es.JsonLines(tmp_path / "rows"), name="rows"
    )
    windows = rows.window(es.Tumbling("1s")).aggregate(count=es.count())
    windows.map(lambda row: {"count": row["count"]}).sink(
        es.JsonLines(tmp_path / "windows"), name="windows"
    )
    run = pipeline.start(
        spark=spark,
        engine=engine,
        store=tmp_path / "store",
        checkpoint=es.Coordinated(every="100ms"),
        kill=["read@200", "rows@300"] if engine == "tasks" else ["read@200"],
    )
    until_s = time.monotonic() + PATIENCE_S
    # Of partition 1, which is behind, two windows are over: the third has its last record, no later.
    while len(rows_in(tmp_path / "rows")) < EACH or len(rows_in(tmp_path / "windows")) < 2:
        assert time.monotonic() < until_s and not run.ended, "the first half does not come out"
        time.sleep(0.02)
    kafka.kill()
    kafka.start()
    produce(kafka, topic, EACH // 2, EACH)
    result = run.wait()
    assert len(result.recoveries) == (2 if engine == "tasks" else 1)
    found = rows_in(tmp_path / "rows")
    for partition in (0, 1):
        assert [row["n"] for row in found if row["p"] == partition] == list(range(EACH))
    counts = [row["count"] for row in rows_in(tmp_path / "windows")]
    assert counts == [100] * (2 * EACH // 100), "a record was late, or counted twice"
    shown = committed(kafka, topic)
    if engine == "tasks":
        assert shown == {0: EACH, 1: EACH}
    else:  # a worker hears that its epoch is stable when it is given the next
        assert all(0 < offset <= EACH for offset in shown.values())


def committed(kafka: KafkaServer, topic: str) -> dict[int, int]:
    """What anybody can see of how far the group has come."""
    from confluent_kafka import Consumer, TopicPartition

    client = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": f"group-{topic}"})
    try:
        places = client.committed([TopicPartition(topic, p) for p in (0, 1)], 60)
        return {place.partition: place.offset for place in places}
    finally:
        client.close()
