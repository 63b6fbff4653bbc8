"""Kafka as a sink, against the bare client: messages of 100 bytes with keys, a transaction a second."""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from everstream.connectors.kafka.client import ANSWER_S, Cluster, administration, driver
from everstream.connectors.kafka.connector import Kafka
from everstream.connectors.kafka.sink import committed
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Sink
from everstream_lab.bench.connectors.row import Row, SinkRow, per_checkpoint

PARTITIONS = 4
ROWS_PER_BATCH = 16_384
AT_A_TIME = 2_000
IN_FLIGHT = 50_000
PATIENCE_S = 60.0


class KafkaSinkRow(SinkRow):
    name, bare_client = "kafka-sink", "confluent-kafka transactions, produce_batch"
    records = 600_000
    server = "kafka"

    def batch(self) -> Batch:
        keys = pl.Series("key", range(ROWS_PER_BATCH)).cast(pl.String).cast(pl.Binary)
        return pl.DataFrame({"key": keys, "value": [b"x" * 100] * ROWS_PER_BATCH})

    def sink(self, folder: Path) -> Sink:
        return Kafka(self.address, self._made(folder), value="bytes", key_by="key")

    def write(self, folder: Path, batches: Iterator[Batch]) -> None:
        topic = self._made(folder)
        settings = {
            "bootstrap.servers": self.address,
            "transactional.id": topic,
            "partitioner": "murmur2_random",
        }
        client = driver().Producer(settings)
        client.init_transactions(PATIENCE_S)
        for group in per_checkpoint(batches):
            client.begin_transaction()
            for frame in group:
                assert isinstance(frame, pl.DataFrame)
                _produce(client, topic, frame)
            client.commit_transaction(PATIENCE_S)

    def arrived(self, folder: Path) -> int:
        return len(committed(Cluster(self.address), self._topic(folder), PATIENCE_S))

    def _topic(self, folder: Path) -> str:
        return f"bench-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"

    def _made(self, folder: Path) -> str:
        topic, cluster = self._topic(folder), Cluster(self.address)
        admin = cluster.admin()
        new = administration().NewTopic(topic, PARTITIONS, 1)
        admin.create_topics([new])[topic].result(ANSWER_S)
        _wait_for_leaders(cluster, topic)
        return topic


def _wait_for_leaders(cluster: Cluster, topic: str) -> None:
    """A topic that was just made is not led by anybody for a moment."""
    kafka, until_s = driver(), time.monotonic() + PATIENCE_S
    asking = kafka.Consumer({**cluster.settings(), "group.id": "bench"})
    for number in range(PARTITIONS):
        while True:
            try:
                asking.get_watermark_offsets(kafka.TopicPartition(topic, number), ANSWER_S)
                break
            except kafka.KafkaException:
                if time.monotonic() > until_s:
                    raise
    asking.close()


def _produce(client: Any, topic: str, frame: pl.DataFrame) -> None:
    for part in frame.iter_slices(AT_A_TIME):
        pairs = zip(part["key"].to_list(), part["value"].to_list(), strict=True)
        messages = [{"key": key, "value": value} for key, value in pairs]
        while len(client) > IN_FLIGHT:
            client.flush(0.01)
        client.produce_batch(topic, messages)


ROWS: tuple[type[Row], ...] = (KafkaSinkRow,)
