"""Topics for tests of the Kafka sink, and what somebody who reads only what is committed sees there."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

import everstream as es
from everstream.connectors.kafka.producer import Encoding
from everstream.pipeline.sink import SinkShard, Writer
from tests.kafka_server import KafkaServer


def topic_for(place: str) -> str:
    return "t" + hashlib.sha256(place.encode()).hexdigest()[:16]


def make_topic(server: KafkaServer, topic: str, partitions: int = 1) -> None:
    """Made, known to every broker, and led by one."""
    server.create_topic(topic, partitions)
    for bootstrap in server.bootstrap.split(","):
        admin = AdminClient({"bootstrap.servers": bootstrap})
        while len(admin.list_topics(topic, timeout=60).topics[topic].partitions) < partitions:
            pass
    asking = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "tests"})
    for number in range(partitions):
        while True:
            with suppress(KafkaException):  # for a moment nobody leads it
                asking.get_watermark_offsets(TopicPartition(topic, number), timeout=60)
                break
    asking.close()


def topics(server: KafkaServer) -> set[str]:
    return set(AdminClient({"bootstrap.servers": server.bootstrap}).list_topics(timeout=60).topics)


def delete_topic(server: KafkaServer, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.delete_topics([topic], operation_timeout=60)[topic].result()
    while topic in topics(server):
        pass


class Reading:
    """Reads on where it was, up to what is committed when it is asked."""

    def __init__(self, server: KafkaServer) -> None:
        self._settings = {
            "bootstrap.servers": server.bootstrap,
            "group.id": "tests",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
        }
        self._consumer = Consumer(self._settings)
        self._asking = Consumer({**self._settings, "isolation.level": "read_uncommitted"})
        self._at: dict[tuple[str, int], int] = {}
        self._read: dict[str, list[Any]] = {}

    def messages(self, topic: str, partitions: int = 1) -> list[Any]:
        """All messages, partition by partition."""
        messages = self._read.setdefault(topic, [])
        for number in range(partitions):
            place = TopicPartition(topic, number)
            end = self._end(place)
            at = self._at.get((topic, number), 0)
            if at >= end:
                continue
            self._consumer.assign([TopicPartition(topic, number, at)])
            while at < end:
                for message in self._consumer.consume(1000, timeout=0.05):
                    if message.error() is None:
                        messages.append(message)
                    at = max(at, (message.offset() or 0) + (message.error() is None))
            self._at[topic, number] = at
        return messages

    def _end(self, place: TopicPartition) -> int:
        """The end, once all transactions have come to theirs: brokers say so before all can see it."""
        _, written = self._asking.get_watermark_offsets(place, timeout=60)
        while True:
            _, end = self._consumer.get_watermark_offsets(place, timeout=60)
            if end >= written:
                return int(end)

    def close(self) -> None:
        self._consumer.close()
        self._asking.close()


class Tagged(es.Kafka):
    """Says in each value whose it is, so that outputs can share a topic."""

    def open(self, shard: SinkShard) -> Writer:  # type: ignore[override]
        mine = f"{shard.pipeline}/{shard.operator}"
        self._encoding = Encoding(lambda record: json.dumps({"of": mine, "record": record}))
        return self._open_writer(shard)


def tagged(messages: Sequence[Any], shard: SinkShard) -> list[Mapping[str, Any]]:
    values = [json.loads(message.value()) for message in messages]
    mine = f"{shard.pipeline}/{shard.operator}"
    return [value["record"] for value in values if value["of"] == mine]
