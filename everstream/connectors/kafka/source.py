"""Kafka as a source: one reader reads the partitions of its shard, whichever brokers have them.

Nothing here waits for a broker. Slow requests (where topics begin and end, whether there are new
partitions, whether brokers are gone for good) run on a background thread, and the client fetches on
its own threads. The interleaving of partitions differs from one reading to the next; within a
partition, records are in order.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import polars as pl

from everstream.connectors.kafka.client import LOG, Cluster, driver
from everstream.connectors.kafka.formats import Decoder
from everstream.connectors.kafka.offsets import (
    OVER,
    Ends,
    KafkaOffset,
    Partition,
    Topics,
    redistribute_places,
    unread_places,
)
from everstream.connectors.kafka.records import Messages, PartitionTimes, RecordLayout
from everstream.connectors.retry import Deadline
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.rejects import Rejected
from everstream.pipeline.source import END, EndOfStream, Reader, Source
from everstream.pipeline.times import NO_WATERMARK

T = TypeVar("T")
LOOK_AGAIN_S = 0.005
TRY_AGAIN_S = 0.25
LAST_COMMIT_S = 5.0
"""How long a reader that closes waits for its last offsets to reach the consumer group."""
TRUNCATED = "truncat"
"""Part of the client's message when a log is shorter in an epoch than it was."""
CHUNK = 1000
"""Messages taken from the client at a time: few enough to be still in the cache."""


@dataclass(frozen=True)
class Reading:
    cluster: Cluster
    topics: tuple[str, ...]
    start: Any
    stop: Any
    committed: bool
    group: str | None
    batch_records: int
    discover_s: float
    patience_s: float
    shape: RecordLayout
    lateness_us: int | None
    """None: the source gives no event time."""
    idle_after_s: float | None

    @property
    def bounded(self) -> bool:
        return self.stop is not None

    def asking(self) -> Topics:
        return Topics(self.cluster, self.topics, self.committed)

    def begin(self) -> KafkaOffset:
        asking = self.asking()
        offset = asking.begin(self.start, self.stop)
        for topic in asking.compacted():
            LOG.warning(
                "topic '%s' is compacted: of records with the same key only the last one is sure to "
                "be read, and a replay may give fewer of them",
                topic,
            )
        if self.bounded and not offset.places:
            raise UserError(
                f"no topic at {self.cluster.bootstrap} matches {self.topics[0]!r}, and with "
                "stop=... topics that are created later are not read. Check the pattern."
            )
        return offset

    def consumer(self, on_error: Callable[[Any], None]) -> Any:
        return self.cluster.consumer(
            on_error,
            **({} if self.group is None else {"group_id": self.group}),
            enable_auto_offset_store=False,
            auto_offset_reset="error",
            isolation_level="read_committed" if self.committed else "read_uncommitted",
            # The client's default is to wait a second once it has fetched enough ahead.
            fetch_queue_backoff_ms=5,
            # How long a commit waits for the group's coordinator; the default is ten minutes.
            coordinator_query_interval_ms=1000,
        )


class KafkaSource(Source[Any]):
    """The reading half of a connector; a subclass defines the options."""

    _reading: Reading
    _decoder: Decoder
    _begin: KafkaOffset | None = None

    def describe_offsets(self) -> dict[str, Any]:
        return {
            **super().describe_offsets(),
            "topics": list(self._reading.topics),
            "bounded": self._reading.bounded,
        }

    def redistribute(self, offsets: Sequence[KafkaOffset], shards: int) -> Sequence[KafkaOffset]:
        return redistribute_places(offsets, shards)

    def stopping_point(self) -> Ends:
        return self._reading.asking().ends()

    def unread(self, offsets: Sequence[KafkaOffset], point: Ends) -> str | None:
        return unread_places(offsets, point)

    def check(self) -> None:
        """Query the topics, and where they begin and end: once for all shards."""
        self._begin = self._reading.begin()

    def _open_reader(self, shard: int, shards: int) -> Reader:
        begin = self._begin if self._begin is not None else self._reading.begin()
        mine = begin.of_shard(shard, shards)
        reading = self._reading
        if self.event_time is not None and reading.idle_after_s is None and not mine.places:
            raise UserError(
                f"shard {shard} has none of the {len(begin.places)} partitions and would hold back "
                "event time for all. Use fewer shards, or give idle_after='30s'."
            )
        return KafkaReader(reading, self._decoder, mine, shard, shards)

    def waits_for(self) -> str | None:
        if self._begin is None or self._begin.places:
            return None
        where = f"at {self._reading.cluster.bootstrap} matches {self._reading.topics[0]!r}"
        return f"no topic {where} yet: the run waits for one"

    def column_names(self) -> list[str] | None:
        names = self._decoder.column_names()
        return None if names is None else self._reading.shape.column_names(names)


class KafkaReader(Reader):
    def __init__(
        self, reading: Reading, decoder: Decoder, begin: KafkaOffset, shard: int, shards: int
    ) -> None:
        self._reading = reading
        self._decoder = decoder
        self._shard, self._shards = shard, shards
        self._consumer: Any = None
        self._stable: list[Any] = []
        """The offsets that were last committed to the group, until the commit is confirmed."""
        self._times = PartitionTimes(reading.lateness_us, reading.idle_after_s)
        self._ends: Ends | None = None
        """Where partitions ended when the run started, if the run ends there."""
        self._steady_s: Callable[[], float] = time.monotonic
        self._stand_at(begin)

    def keep_time(self, wall_s: Callable[[], float], steady_s: Callable[[], float]) -> None:
        self._steady_s = steady_s
        self._times.keep_time(wall_s, steady_s)

    def stop_at(self, point: Ends) -> None:
        self._ends = point

    @property
    def offset(self) -> KafkaOffset:
        times = self._times.greatest
        places = {
            partition: (at, self._stops.get(partition), times.get(partition, NO_WATERMARK))
            for partition, at in self._next.items()
        }
        return KafkaOffset(dict(self._topics), places, dict(self._epochs))

    def seek(self, offset: KafkaOffset) -> None:
        self.close()
        self._stand_at(offset)

    def _stand_at(self, offset: KafkaOffset) -> None:
        self._topics = dict(offset.topics)
        self._next = {partition: place[0] for partition, place in offset.places.items()}
        self._epochs = dict(offset.epochs or {})
        self._stops = {p: place[1] for p, place in offset.places.items() if place[1] is not None}
        self._times.restore({p: place[2] for p, place in offset.places.items()})
        self._open: set[Partition] = set()
        """The partitions that may give more records."""
        self._rejected: list[Rejected] = []
        self._held: list[Any] = []
        """Taken from the client, but too large to be unpacked with those before."""
        self._look: Future[KafkaOffset] | None = None
        self._look_at_s = 0.0
        self._drained = False
        """Whether the client had no more than the last read has taken."""
        self._alarmed = False
        """Whether an error of the brokers was reported and they have not been queried since."""

    def read(self) -> Batch | EndOfStream | None:
        self._look_around()
        if self._consumer is None:
            return None
        if (self._reading.bounded or self._ends is not None) and not self._open:
            return END
        batches, left = list[Batch](), self._reading.batch_records
        while left > 0:
            wanted = min(left, CHUNK)
            messages = self._held or self._consumer.consume(wanted, 0)
            messages, self._held = self._fitting(messages)
            if messages and (batch := self._decoded(messages)) is not None and len(batch):
                batches.append(batch)
            self._drained = len(messages) < wanted and not self._held
            left = left - wanted if len(messages) == wanted and not self._held else 0
        return _together(batches)

    def _fitting(self, messages: list[Any]) -> tuple[list[Any], list[Any]]:
        """The messages that may be unpacked at once, and the rest."""
        if not messages or type(self._decoder).fitting is Decoder.fitting:
            return messages, []
        kind = driver().Message
        values = [None if kind.error(message) else kind.value(message) for message in messages]
        count = self._decoder.fitting(values)
        return messages[:count], messages[count:]

    def _decoded(self, messages: list[Any]) -> Batch | None:
        errors = list[Any]()
        if any(map(driver().Message.error, messages)):
            errors = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
        batch = self._given(messages) if messages else None
        # Last: the end of a partition may come together with the records before it.
        for message in errors:
            self._heed(message, message.error())
        return batch

    def _given(self, messages: list[Any]) -> Batch | None:
        last = self._last_of_each(messages)
        ended = [p for p, m in last.items() if not self._goes_on(p, m.offset() + 1)]
        if ended:
            messages = [m for m in messages if self._is_wanted(m)]
            last = self._last_of_each(messages)
        for partition, message in last.items():
            self._next[partition] = message.offset() + 1
            self._keep_epoch(partition, message.leader_epoch())
        for partition in ended:
            self._finish(partition)
        if not messages:
            return None
        batch = Messages(messages)
        if self._times.on:
            topics, partitions = batch.all("topic"), batch.all("partition")
            each = list(zip(topics, partitions, strict=True)) if len(last) > 1 else []
            self._times.seen(last, each, batch.milliseconds())
        return self._reading.shape.batch(batch, self._decoder, self._rejected)

    def _keep_epoch(self, partition: Partition, epoch: int | None) -> None:
        """Lets the brokers check that the records before are still the ones that were read."""
        if epoch is None:
            self._epochs.pop(partition, None)
        else:
            self._epochs[partition] = epoch

    def _last_of_each(self, messages: list[Any]) -> dict[Partition, Any]:
        if not messages:
            return {}
        if len(self._next) == 1:
            return dict.fromkeys(self._next, messages[-1])
        kind = driver().Message
        if len(self._topics) > 1:
            names = zip(map(kind.topic, messages), map(kind.partition, messages), strict=True)
            return dict(zip(names, messages, strict=True))
        (topic,), numbers = self._topics, list(map(kind.partition, messages))
        if numbers.count(numbers[-1]) == len(numbers):  # usually a fetch has many of one
            return {(topic, numbers[-1]): messages[-1]}
        last = dict(zip(numbers, messages, strict=True))
        return {(topic, number): message for number, message in last.items()}

    def _is_before_end(self, partition: Partition, position: int) -> bool:
        """Whether this run reads the record there; new partitions are left for the next run."""
        if self._ends is not None and position >= self._ends.get(partition, 0):
            return False
        return position < self._stops.get(partition, position + 1)

    def _goes_on(self, partition: Partition, position: int) -> bool:
        return partition in self._open and self._is_before_end(partition, position)

    def _is_wanted(self, message: Any) -> bool:
        """Whether it is before the end; later messages may have been fetched already."""
        return self._goes_on((message.topic(), message.partition()), message.offset())

    def _finish(self, partition: Partition) -> None:
        if partition in self._open:
            self._open.remove(partition)
            self._consumer.incremental_unassign([driver().TopicPartition(*partition)])

    def _heed(self, message: Any, error: Any) -> None:
        partition = (message.topic(), message.partition())
        codes, code = driver().KafkaError, error.code()
        if code == codes._PARTITION_EOF:
            # More may have come after what was the end just before.
            if partition in self._open and self._next[partition] <= message.offset():
                # After the last record there may be markers of transactions, which are not
                # delivered, and whose epoch is not reported.
                if self._next[partition] < message.offset():
                    self._keep_epoch(partition, None)
                self._next[partition] = message.offset()
                self._times.at_end(partition)
                if not self._goes_on(partition, self._next[partition]):
                    self._finish(partition)
        elif code == codes._AUTO_OFFSET_RESET and TRUNCATED in error.str().lower():
            raise UserError(
                f"topic '{partition[0]}', partition {partition[1]}: the log was truncated before offset "
                f"{self._next.get(partition)} and rewritten (an unclean leader election), so "
                "records that were read are gone and others have their offsets. Set "
                "unclean.leader.election.enable=false for the topic; read it again under another "
                f"name, {OVER}"
            )
        elif code in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            raise UserError(
                f"topic '{partition[0]}', partition {partition[1]}: the record at offset "
                f"{self._next.get(partition)} no longer exists: the retention of the topic has "
                f"deleted it before it was read, or the topic was recreated. Give it a longer "
                f"retention (retention.ms, retention.bytes), {OVER}"
            )
        else:
            self._alarm(error)

    def _alarm(self, error: Any) -> None:
        """An error that may be temporary: query the brokers, and fail if it persists."""
        codes = driver().KafkaError
        hopeless = (codes._AUTHENTICATION, codes.TOPIC_AUTHORIZATION_FAILED, codes._SSL)
        if error.fatal() or error.code() in hopeless:
            raise self._reading.cluster.explained(error)
        if not self._alarmed:
            LOG.warning("%s", self._reading.cluster.explained(error))
        self._alarmed, self._look_at_s = True, 0.0

    def _look_around(self) -> None:
        """Start to query the brokers if it is time to, and take their answers."""
        reading = self._reading
        if self._look is None:
            if self._steady_s() < self._look_at_s:
                return
            known, began = self.offset, self._consumer is not None
            self._look = _beside(lambda gone_on: self._asked(known, began, gone_on))
        if not self._look.done():
            return
        look, self._look, self._alarmed = self._look.result(), None, False
        new = {p: place for p, place in look.places.items() if p not in self._open}
        self._look_at_s = self._steady_s() + reading.discover_s
        if reading.bounded:
            self._look_at_s = float("inf")
        if self._consumer is None:
            self._consumer = reading.consumer(self._alarm)
        else:
            new = {p: place for p, place in new.items() if p not in self._next}
        self._topics.update(look.topics)
        self._next.update({partition: place[0] for partition, place in new.items()})
        self._assign(new)

    def _assign(self, partitions: Collection[Partition]) -> None:
        kind, opened = driver().TopicPartition, list[Any]()
        for partition in partitions:
            position = self._next[partition]
            if self._is_before_end(partition, position):
                self._open.add(partition)
                epoch = self._epochs.get(partition)
                known = {} if epoch is None else {"leader_epoch": epoch}
                opened.append(kind(*partition, position, **known))
        if opened:
            self._consumer.incremental_assign(opened)

    def _asked(self, known: KafkaOffset, began: bool, goes_on: Callable[[], bool]) -> KafkaOffset:
        """On a background thread: are these positions still valid, and what is new?"""
        reading, deadline = self._reading, Deadline(self._reading.patience_s, TRY_AGAIN_S)
        shard, shards = self._shard, self._shards
        while True:
            try:
                asking = reading.asking()
                return asking.resume(known, shard, shards, reading.bounded, checks_places=not began)
            except ConnectorError:
                if not goes_on() or not deadline.pause():
                    raise

    def ready_in_s(self) -> float:
        return LOOK_AGAIN_S

    def drained(self) -> bool:
        return self._drained

    def watermark(self) -> int:
        return self._times.watermark(self._open) if self._consumer is not None else NO_WATERMARK

    def take_rejected(self) -> list[Rejected]:
        rejected, self._rejected = self._rejected, []
        return rejected

    def slowest_split(self) -> str | None:
        slowest = self._times.slowest(self._open)
        return None if slowest is None else f"partition {slowest[1]} of topic '{slowest[0]}'"

    def stable(self, offset: KafkaOffset) -> None:
        """Commit the offsets to the group, for others to read; we never do."""
        if self._reading.group is None or self._consumer is None:
            return
        kind = driver().TopicPartition
        self._stable = [kind(*partition, place[0]) for partition, place in offset.places.items()]
        try:
            if self._stable:
                self._consumer.commit(offsets=self._stable, asynchronous=True)
        except driver().KafkaException as error:
            self._warn_of_commit(error)

    def _warn_of_commit(self, error: Exception) -> None:
        LOG.warning("%s", self._reading.cluster.explained(error, ", committing offsets"))

    def _commit_last_offsets(self) -> None:
        """Repeat the last commit and wait for it: the one in the background may not have arrived.

        A broker that has just restarted refuses commits for a moment, and closing the consumer
        drops pending ones.
        """
        places, self._stable = self._stable, []
        deadline = Deadline(LAST_COMMIT_S, TRY_AGAIN_S)
        while places:
            try:
                self._consumer.commit(offsets=places, asynchronous=False)
                return
            except driver().KafkaException as error:
                if not deadline.pause():
                    self._warn_of_commit(error)
                    return

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if self._consumer is not None:
            self._commit_last_offsets()
            self._consumer.close()
            self._consumer = None


def _together(batches: list[Batch]) -> Batch | None:
    if len(batches) < 2:
        return batches[0] if batches else None
    frames = [batch for batch in batches if isinstance(batch, pl.DataFrame)]
    if frames:
        return pl.concat(frames, rechunk=True)
    return list(chain.from_iterable(batches))


def _beside(question: Callable[[Callable[[], bool]], T]) -> "Future[T]":
    """The answer to `question(is_wanted)`, asked on its own thread; cancel it if not wanted."""
    answer: Future[T] = Future()

    def ask() -> None:
        with suppress(InvalidStateError):  # it was cancelled in the meantime
            try:
                answer.set_result(question(lambda: not answer.cancelled()))
            except BaseException as error:  # raised again when the answer is taken
                answer.set_exception(error)

    # A daemon: a process that ends does not wait for brokers that do not answer.
    threading.Thread(target=ask, daemon=True, name="kafka").start()
    return answer
