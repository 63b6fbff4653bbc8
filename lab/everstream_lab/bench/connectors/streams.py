"""Kafka, against the bare client: messages of 100 bytes, as many at a time as ours."""

import uuid
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from everstream.connectors.kafka.client import administration, driver
from everstream.connectors.kafka.connector import Kafka
from everstream.errors import EnvironmentFault
from everstream.pipeline.batch import Batch
from everstream.pipeline.source import Source
from everstream_lab.bench.connectors.row import Row, SourceRow

PARTITIONS = 4
MESSAGE = b"x" * 100
AT_A_TIME = 2_000
PATIENCE_S = 60.0


class KafkaSource(SourceRow):
    name, bare_client, records = "kafka-source", "confluent-kafka consume", 1_500_000
    server = "kafka"

    @cached_property
    def topic(self) -> str:
        return f"bench-{uuid.uuid4().hex}"

    def make(self) -> None:
        new = administration().NewTopic(self.topic, PARTITIONS, 1)
        admin = administration().AdminClient({"bootstrap.servers": self.address})
        admin.create_topics([new])[self.topic].result(PATIENCE_S)
        settings = {"bootstrap.servers": self.address, "linger.ms": 50, "batch.size": 1 << 20}
        client, failed = driver().Producer(settings), list[Any]()

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        for number in range(self.total):
            where = {"partition": number % PARTITIONS, "on_delivery": delivered}
            while True:
                try:
                    client.produce(self.topic, MESSAGE, **where)
                    break
                except BufferError:
                    client.poll(0.05)
        if client.flush(PATIENCE_S) or failed:
            raise EnvironmentFault(f"Kafka did not take {len(failed)} messages: {failed[:1]}")

    def source(self) -> Source[Any]:
        return Kafka(self.address, self.topic, value="bytes", stop="latest")

    def read(self) -> Iterator[Batch]:
        kafka, left = driver(), self.total
        settings = {
            "bootstrap.servers": self.address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": 5,
        }
        client = kafka.Consumer(settings)
        client.assign([kafka.TopicPartition(self.topic, n, 0) for n in range(PARTITIONS)])
        while left:
            messages = client.consume(AT_A_TIME, 0.01)
            values = [message.value() for message in messages if message.error() is None]
            left -= len(values)
            yield values
        client.close()


ROWS: tuple[type[Row], ...] = (KafkaSource,)
