"""A shard's transactions: each writes its records and a mark to Kafka together, or nothing.

Kafka lets one producer at a time write under a shard's transactional id: the one that starts last
fences all before it and has their open transactions aborted. So the order is always: fence, read
the mark, write. After any error, also when it is not known whether a transaction was committed,
the same order starts again. A mark that was read after fencing stays true until our own
transaction changes it or another producer fences us, and then our transaction fails.

A zombie may fence its successor in this way, but it finds the successor's generation in the mark
and stops; the successor fences and reads again.

Marks are in a small compacted topic beside the output, with one partition for each shard. A mark
has a checkpoint and a generation. Only the shard's own transactions write to its partition, so
after fencing the last mark there is correct. Unlike the offsets of a consumer group, marks do not
expire.
"""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import polars as pl

from everstream.connectors.kafka.client import (
    ANSWER_S,
    Cluster,
    administration,
    driver,
    until_answered,
)
from everstream.connectors.kafka.producer import producer_of, producing, send, wait_for_room
from everstream.connectors.ownership import Owner, refuse_replaced
from everstream.connectors.retry import Deadline
from everstream.errors import ConnectorError
from everstream.pipeline.sink import SinkShard

KEY = b"commit"
"""The key of every mark: compaction keeps the newest."""
SEGMENT_BYTES = 16 << 20
"""Compaction never touches the newest segment: at most this much remains for each shard."""
TAIL = 64
"""How many offsets from the end the search for a mark begins."""
FARTHER = 32
LONGEST_SLUG = 60


@dataclass(frozen=True)
class CommitMark:
    """What a shard has committed, and which of its generations may write."""

    generation: int
    checkpoint: int
    owner: Owner | None = None

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decoded(data: bytes) -> "CommitMark":
        fields = json.loads(data)
        owner = fields["owner"]
        return CommitMark(
            int(fields["generation"]), int(fields["checkpoint"]), Owner(**owner) if owner else None
        )


def topic_of_marks(pipeline: str, operator: str, topic: str) -> str:
    """The name of the topic: valid in Kafka, and different for every output."""
    names = (pipeline, operator, topic)
    slug = "-".join(re.sub(r"[^A-Za-z0-9]+", "-", name)[:LONGEST_SLUG] for name in names[:2])
    whole = "\0".join(names).encode()
    return f"everstream-commits-{slug}-{hashlib.sha256(whole).hexdigest()[:12]}"


def partitions_of(cluster: Cluster, topic: str) -> dict[int, int]:
    """How many replicas each partition of a topic has; empty if there is no such topic.

    Like everything here it raises what the client raises, and the caller may retry.
    """
    kafka = driver()
    metadata = cluster.admin().list_topics(topic, timeout=ANSWER_S).topics[topic]
    if metadata.error is None:
        return {number: len(each.replicas) for number, each in metadata.partitions.items()}
    if metadata.error.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
        return {}
    raise kafka.KafkaException(metadata.error)


class Marks:
    """The marks of one pipeline's operator for one topic."""

    def __init__(self, cluster: Cluster, pipeline: str, operator: str, topic: str) -> None:
        self.cluster = cluster
        self.output = topic
        self.topic = topic_of_marks(pipeline, operator, topic)

    def shards(self) -> int:
        return len(partitions_of(self.cluster, self.topic))

    def ensure(self, shards: int, patience_s: float) -> None:
        """Create the topic, or add partitions, and wait until they exist."""
        deadline = Deadline(patience_s)
        while self.shards() < shards:
            self._make(shards)
            if deadline.passed:
                raise ConnectorError(
                    f"the topic '{self.topic}', Kafka at {self.cluster.bootstrap}, does not appear. "
                    f"It records what was committed to '{self.output}'. Check that this user may "
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

    def read(self, shard: int) -> CommitMark | None:
        consumer = self.cluster.consumer(
            isolation_level="read_committed", auto_offset_reset="error", fetch_wait_max_ms=10
        )
        with closing(consumer):
            partition = driver().TopicPartition(self.topic, shard)
            first, end = consumer.get_watermark_offsets(partition, timeout=ANSWER_S)
            window = TAIL
            while True:
                start = max(first, end - window)
                mark = self._last(consumer, shard, start, end)
                if mark is not None or start == first:
                    return mark
                window *= FARTHER

    def all(self) -> list[CommitMark | None]:
        return [self.read(shard) for shard in range(self.shards())]

    def _last(self, consumer: Any, shard: int, start: int, end: int) -> CommitMark | None:
        if start >= end:
            return None
        kafka = driver()
        consumer.assign([kafka.TopicPartition(self.topic, shard, start)])
        newest: bytes | None = None
        deadline = Deadline(ANSWER_S)
        while not deadline.passed:
            for message in consumer.consume(1000, timeout=0.05):
                error = message.error()
                if error is None:
                    newest = message.value()
                elif error.code() != kafka.KafkaError._PARTITION_EOF:
                    raise kafka.KafkaException(error)
                # A broker that has just become the leader may not see the whole log yet.
                elif message.offset() >= end:
                    return None if newest is None else CommitMark.decoded(newest)
        raise kafka.KafkaException(
            kafka.KafkaError(kafka.KafkaError._TIMED_OUT, f"'{self.topic}' could not be read")
        )


GIVING_UP_S = 1.0
"""Timeout for aborting a transaction; otherwise the next producer would have it aborted."""
R = TypeVar("R")
Frames = Callable[[], Iterable[pl.DataFrame]]


class ShardCommits:
    """Writes to a topic for one generation of one shard."""

    def __init__(self, cluster: Cluster, topic: str, shard: SinkShard, patience_s: float) -> None:
        self._cluster = cluster
        self._topic = topic
        self._shard = shard
        self._patience_s = patience_s
        self._marks = Marks(cluster, shard.pipeline, shard.operator, topic)
        self._lock = threading.Lock()
        self._producer: Any = None
        self._mark = CommitMark(0, 0)
        self._heard: Any = None

    def change(self, decide: Callable[[CommitMark | None], CommitMark | None]) -> bool:
        """Fence all other producers, then write what `decide` returns; returns if it did so."""

        def once() -> bool:
            self._marks.ensure(max(self._shard.shards, self._shard.shard + 1), self._patience_s)
            self._begin()
            wanted = decide(self._marks.read(self._shard.shard))
            if wanted is not None:
                self._transact(wanted, None)
            return wanted is not None

        with self._lock:
            return self._until_it_works(once)

    def take_over(self, allowed: Callable[[CommitMark | None], CommitMark]) -> None:
        """Fence all older generations; `allowed` sees the mark and may raise."""

        def taken_over(mark: CommitMark | None) -> CommitMark:
            self._refuse_if_replaced(mark)
            return replace(allowed(mark), generation=self._shard.generation)

        self.change(taken_over)

    def commit(self, checkpoint: int, frames: Frames) -> None:
        def once() -> None:
            if self._producer is None:
                self._fence()
            if self._mark.checkpoint < checkpoint:
                self._transact(replace(self._mark, checkpoint=checkpoint), frames)

        with self._lock:
            self._until_it_works(once)

    def close(self) -> None:
        """Close, unless a commit is in progress, which then completes."""
        if self._lock.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._lock.release()

    def _fence(self) -> None:
        """Become the only producer that can write, and read what was committed."""
        self._begin()
        mark = self._marks.read(self._shard.shard)
        self._refuse_if_replaced(mark)
        self._mark = mark or CommitMark(0, 0)

    def _refuse_if_replaced(self, mark: CommitMark | None) -> None:
        if mark is not None:
            refuse_replaced(self._shard, mark.generation, f"topic '{self._topic}'")

    def _begin(self) -> None:
        self._drop()
        named = f"{self._marks.topic}-{self._shard.shard}"
        settings = {**producing(self._cluster), "transactional.id": named, "error_cb": self._hear}
        self._producer = producer_of(self._cluster, settings)
        self._producer.init_transactions(ANSWER_S)

    def _hear(self, error: Any) -> None:
        self._heard = error

    def _transact(self, mark: CommitMark, frames: Frames | None) -> None:
        producer = self._producer
        producer.begin_transaction()
        for frame in frames() if frames is not None else ():
            send(producer, self._topic, frame, self._patience_s)
        wait_for_room(producer, self._topic, self._patience_s)
        producer.produce(self._marks.topic, mark.encoded(), KEY, partition=self._shard.shard)
        producer.commit_transaction(self._patience_s)
        self._mark = mark

    def _until_it_works(self, once: Callable[[], R]) -> R:
        return until_answered(
            once,
            self._cluster,
            self._topic,
            self._patience_s,
            after_failure=self._drop,
            heard=lambda: self._heard,
        )

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(driver().KafkaException):
                producer.purge()
                producer.abort_transaction(GIVING_UP_S)
