"""Where it is noted what a sink has committed to Kafka: a small compacted topic beside the output.

It has one partition for each shard. Each transaction of a shard puts a mark there together with
its records: checkpoint and generation. Only the shard's own transactions write to its partition, so
that once an heir has fenced off all others, the last mark to be read there is the truth; no
transaction of somebody else can hide it. Unlike the offsets of a consumer group, marks do not expire.
"""

import hashlib
import json
import re
import time
from dataclasses import asdict, dataclass
from typing import Any

from everstream.connectors.kafka_client import ANSWER_S, Cluster, administration, driver
from everstream.connectors.ownership import Owner
from everstream.errors import ConnectorError

KEY = b"commit"
"""Of every mark: compaction keeps the newest."""
SEGMENT_BYTES = 16 << 20
"""Compaction leaves the newest segment alone: so much, at most, lies there for each shard."""
TAIL = 64
"""How many offsets from the end a mark is looked for at first."""
FARTHER = 32
LONGEST_SLUG = 60


@dataclass(frozen=True)
class Mark:
    """What a shard has committed, and which of its generations may go on."""

    generation: int
    checkpoint: int
    owner: Owner | None = None

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decoded(data: bytes) -> "Mark":
        found = json.loads(data)
        owner = found["owner"]
        return Mark(
            int(found["generation"]), int(found["checkpoint"]), Owner(**owner) if owner else None
        )


def topic_of_marks(pipeline: str, operator: str, topic: str) -> str:
    """Its name: of letters that Kafka takes, and no two outputs have the same."""
    names = (pipeline, operator, topic)
    said = "-".join(re.sub(r"[^A-Za-z0-9]+", "-", name)[:LONGEST_SLUG] for name in names[:2])
    whole = "\0".join(names).encode()
    return f"everstream-commits-{said}-{hashlib.sha256(whole).hexdigest()[:12]}"


def partitions_of(cluster: Cluster, topic: str) -> dict[int, int]:
    """How many copies each partition of a topic has; none if there is no such topic.

    Like all here it raises what the client raises: whoever asks may ask again.
    """
    kafka = driver()
    found = cluster.admin().list_topics(topic, timeout=ANSWER_S).topics[topic]
    if found.error is None:
        return {number: len(each.replicas) for number, each in found.partitions.items()}
    if found.error.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
        return {}
    raise kafka.KafkaException(found.error)


class Marks:
    """The marks of one pipeline's operator for one topic."""

    def __init__(self, cluster: Cluster, pipeline: str, operator: str, topic: str) -> None:
        self.cluster = cluster
        self.output = topic
        self.topic = topic_of_marks(pipeline, operator, topic)

    def shards(self) -> int:
        """How many shards have a partition here."""
        return len(partitions_of(self.cluster, self.topic))

    def ensure(self, shards: int, patience_s: float) -> None:
        """Make the topic, or give it more partitions, and wait until it is there."""
        until_s = time.monotonic() + patience_s
        while self.shards() < shards:
            self._make(shards)
            if time.monotonic() > until_s:
                raise ConnectorError(
                    f"the topic '{self.topic}', Kafka at {self.cluster.bootstrap}, does not appear. "
                    f"It notes what was committed to '{self.output}': check that this user may "
                    f"create it, or create it with {shards} partition(s) and cleanup.policy=compact."
                )

    def _make(self, shards: int) -> None:
        kafka, admin = driver(), self.cluster.admin()
        there = self.shards()
        if there:
            wanted = [administration().NewPartitions(self.topic, shards)]
            asked = admin.create_partitions(wanted, operation_timeout=ANSWER_S)
        else:
            copies = max(partitions_of(self.cluster, self.output).values(), default=-1)
            settings = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES)}
            if copies > 2:
                settings["min.insync.replicas"] = "2"
            new = administration().NewTopic(self.topic, shards, copies, config=settings)
            asked = admin.create_topics([new], operation_timeout=ANSWER_S)
        codes = kafka.KafkaError
        try:
            asked[self.topic].result()
        except kafka.KafkaException as error:
            # Another shard was faster.
            if error.args[0].code() not in (codes.TOPIC_ALREADY_EXISTS, codes.INVALID_PARTITIONS):
                raise

    def read(self, shard: int) -> Mark | None:
        """The newest mark of a shard; None if there never was one."""
        kafka = driver()
        settings = {
            **self.cluster.settings(),
            "group.id": "everstream",  # never joined: the client wants a name
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,
        }
        consumer = kafka.Consumer(settings)
        try:
            partition = kafka.TopicPartition(self.topic, shard)
            first, end = consumer.get_watermark_offsets(partition, timeout=ANSWER_S)
            window = TAIL
            while True:
                start = max(first, end - window)
                found = self._last(consumer, shard, start, end)
                if found is not None or start == first:
                    return found
                window *= FARTHER
        finally:
            consumer.close()

    def all(self) -> list[Mark | None]:
        """The newest mark of every shard that ever wrote."""
        return [self.read(shard) for shard in range(self.shards())]

    def _last(self, consumer: Any, shard: int, start: int, end: int) -> Mark | None:
        """The last mark of those from `start` to `end`."""
        if start >= end:
            return None
        kafka = driver()
        consumer.assign([kafka.TopicPartition(self.topic, shard, start)])
        found: bytes | None = None
        until_s = time.monotonic() + ANSWER_S
        while time.monotonic() < until_s:
            for message in consumer.consume(1000, timeout=0.05):
                error = message.error()
                if error is None:
                    found = message.value()
                elif error.code() != kafka.KafkaError._PARTITION_EOF:
                    raise kafka.KafkaException(error)
                # A broker that has just become the leader may see less of the end than there is.
                elif message.offset() >= end:
                    return None if found is None else Mark.decoded(found)
        raise kafka.KafkaException(
            kafka.KafkaError(kafka.KafkaError._TIMED_OUT, f"'{self.topic}' could not be read")
        )
