"""A shard's transactions: each puts its records into the topic, and a mark of it, or nothing.

Kafka lets one producer at a time write under a shard's transactional id: whoever begins last fences
off all before and has what they left open aborted. So the way is always fence, then read the mark,
then write; and when anything goes wrong, when it is not even known whether a transaction was
committed, the same way again. A mark that was read behind the fence stays true until our own
transaction changes it or somebody else fences us off, and then ours fails.

A zombie may fence off its heir in that way, but finds the heir's generation in the mark and stops;
the heir goes the way once more.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import polars as pl

from everstream.connectors.kafka_client import ANSWER_S, Cluster, driver
from everstream.connectors.kafka_marks import KEY, Mark, Marks
from everstream.connectors.kafka_patience import patiently
from everstream.connectors.kafka_sending import producer_of, producing, send, wait_for_room
from everstream.errors import ConnectorError
from everstream.pipeline.sink import SinkShard

GIVING_UP_S = 1.0
"""For telling the broker that a transaction is given up; its heir would have it aborted, too."""
R = TypeVar("R")
Frames = Callable[[], Iterable[pl.DataFrame]]


class ShardCommits:
    """The hand of one generation of one shard on a topic."""

    def __init__(self, cluster: Cluster, topic: str, who: SinkShard, patience_s: float) -> None:
        self._cluster = cluster
        self._topic = topic
        self._who = who
        self._patience_s = patience_s
        self._marks = Marks(cluster, who.pipeline, who.operator, topic)
        self._lock = threading.Lock()
        self._producer: Any = None
        self._mark = Mark(0, 0)
        self._heard: Any = None

    def change(self, decide: Callable[[Mark | None], Mark | None]) -> bool:
        """Fence off all others and note what is decided from the mark that is there; None: nothing.

        Gives whether anything was noted. In between nobody else can note anything.
        """

        def once() -> bool:
            self._marks.ensure(max(self._who.shards, self._who.shard + 1), self._patience_s)
            self._begin()
            wanted = decide(self._marks.read(self._who.shard))
            if wanted is not None:
                self._transact(wanted, None)
            return wanted is not None

        with self._lock:
            return self._until_it_works(once)

    def take_over(self, allowed: Callable[[Mark | None], Mark]) -> None:
        """Keep all older generations from writing; `allowed` sees the mark and may raise."""

        def ours(found: Mark | None) -> Mark:
            self._refuse_if_replaced(found)
            return replace(allowed(found), generation=self._who.generation)

        self.change(ours)

    def commit(self, checkpoint: int, frames: Frames) -> None:
        """Show these records unless they have been shown before."""

        def once() -> None:
            if self._producer is None:
                self._fence()
            if self._mark.checkpoint < checkpoint:
                self._transact(replace(self._mark, checkpoint=checkpoint), frames)

        with self._lock:
            self._until_it_works(once)

    def close(self) -> None:
        """Let go, unless a commit is going on, which then comes to its own end."""
        if self._lock.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._lock.release()

    def _fence(self) -> None:
        """Become the only one who can write, and learn what was committed."""
        self._begin()
        found = self._marks.read(self._who.shard)
        self._refuse_if_replaced(found)
        self._mark = found or Mark(0, 0)

    def _refuse_if_replaced(self, found: Mark | None) -> None:
        if found is not None and found.generation > self._who.generation:
            raise ConnectorError(
                f"generation {found.generation} of shard {self._who.shard} of "
                f"'{self._who.operator}' has taken over topic '{self._topic}'; generation "
                f"{self._who.generation} must stop."
            )

    def _begin(self) -> None:
        self._drop()
        named = f"{self._marks.topic}-{self._who.shard}"
        settings = {**producing(self._cluster), "transactional.id": named, "error_cb": self._hear}
        self._producer = producer_of(self._cluster, settings)
        self._producer.init_transactions(ANSWER_S)

    def _hear(self, error: Any) -> None:
        self._heard = error

    def _transact(self, mark: Mark, frames: Frames | None) -> None:
        producer = self._producer
        producer.begin_transaction()
        for frame in frames() if frames is not None else ():
            send(producer, self._topic, frame, self._patience_s)
        wait_for_room(producer, self._topic, self._patience_s)
        producer.produce(self._marks.topic, mark.encoded(), KEY, partition=self._who.shard)
        producer.commit_transaction(self._patience_s)
        self._mark = mark

    def _until_it_works(self, once: Callable[[], R]) -> R:
        return patiently(
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
