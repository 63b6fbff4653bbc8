"""Messages into a Kafka topic: exactly-once, or at once.

Exactly-once: messages are kept in the run's store (`connectors.staged`), because no client can
complete a transaction that another process has begun. At commit they are produced in one Kafka
transaction with a mark of the checkpoint (`kafka.commits`). Nothing can be removed from a topic: a
run that would resume from before the last commit is refused.
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import polars as pl

from everstream.connectors.encoding import encode
from everstream.connectors.files.parts import PartTransaction
from everstream.connectors.kafka.client import (
    ANSWER_S,
    Cluster,
    administration,
    driver,
    until_answered,
)
from everstream.connectors.kafka.commits import CommitMark, Marks, ShardCommits, partitions_of
from everstream.connectors.kafka.producer import AtOnceWriter, Encoding
from everstream.connectors.ownership import Claim, Owner
from everstream.connectors.refusing import encoded_or_refused
from everstream.connectors.retry import Deadline
from everstream.connectors.staged import StagedTransaction, StagedWriter, waiting_folder
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Committable, Delivery, Permit, Sink, SinkShard, Writer

ENDING = ".messages"
R = TypeVar("R")


class KafkaSink(Sink):
    """The writing half of a connector; a subclass defines the topic and the options."""

    delivery = Delivery.EXACTLY_ONCE

    @property
    @abstractmethod
    def output(self) -> "TopicOutput":
        """Where messages go, and how they are made; a UserError if it cannot be a sink."""

    def _open_writer(self, shard: SinkShard) -> Writer:
        output = self.output
        if self.delivery is Delivery.AT_LEAST_ONCE:
            return AtOnceWriter(
                output.cluster, output.topic, output.encoding, shard, output.patience_s
            )
        return _KafkaWriter(output, shard)

    def describe_output(self) -> dict[str, Any]:
        return {**super().describe_output(), "topic": self.output.topic}

    def irrevocable(self) -> str | None:
        return f"Kafka cannot remove messages from topic '{self.output.topic}'"

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        output = self.output
        if output.audit_copy is not None:
            output.make_audit_copy()
        if self.delivery is not Delivery.EXACTLY_ONCE:
            return
        claim = output.claim(pipeline, operator, store)
        claim.check()
        if output.committed(pipeline, operator) and not replace:
            raise UserError(
                f"topic '{output.topic}' already holds messages of pipeline '{pipeline}', operator "
                f"'{operator}', from an earlier run. Name another topic, or use --fresh, which "
                "deletes the records of that run's commits. Its messages stay in the topic, before "
                "those of this run, because Kafka cannot remove them."
            )
        claim.take()
        output.forget(claim.owner)
        waiting_folder(store, operator, ENDING).start_fresh(pipeline, operator, replace)

    def before_resume(self, pipeline: str, operator: str, store: str) -> None:
        output = self.output
        if self.delivery is Delivery.EXACTLY_ONCE:
            output.claim(pipeline, operator, store).keep()

    def check_resume(
        self, pipeline: str, operator: str, store: str, checkpoints: Mapping[int, int]
    ) -> None:
        output = self.output
        if self.delivery is not Delivery.EXACTLY_ONCE or not checkpoints:
            return
        for shard, mark in enumerate(output.read(output.marks(pipeline, operator))):
            checkpoint = checkpoints.get(shard, max(checkpoints.values()))
            if mark is not None and mark.checkpoint > checkpoint:
                raise _too_far(output.topic, mark.checkpoint, checkpoint)

    def clear_audit_copy(self, pipeline: str, operator: str) -> None:
        if self.output.audit_copy is not None:
            self.output.clear_audit_copy(pipeline, operator)

    def results(self, pipeline: str, operator: str, store: str) -> list[Batch] | None:
        return None if self.output.audit_copy is None else [self.output.read_audit_copy()]

    def left_behind(self, pipeline: str, operator: str, store: str) -> str | None:
        output = self.output
        if self.delivery is Delivery.EXACTLY_ONCE and output.committed(pipeline, operator):
            return (
                f"the marks of the messages in Kafka topic '{output.topic}', which stay there "
                "and will be written again"
            )
        return None


@dataclass(frozen=True)
class TopicOutput:
    cluster: Cluster
    named: str
    """The topic that the user named."""
    encoding: Encoding
    patience_s: float = 60.0
    """How long brokers may be unreachable before the shard fails."""
    audit_copy: str | None = None
    """Label of the separate topic of an audit to write to instead."""

    @property
    def topic(self) -> str:
        label = "" if self.audit_copy is None else f"-everstream-audit-{self.audit_copy}"
        return self.named + label

    def make_audit_copy(self) -> None:
        self._answer(lambda: _make_like(self.cluster, self.named, self.topic))

    def read_audit_copy(self) -> Batch:
        return self._answer(lambda: committed(self.cluster, self.topic, self.patience_s))

    def clear_audit_copy(self, pipeline: str, operator: str) -> None:
        marks = self.marks(pipeline, operator).topic
        self._answer(lambda: _remove_topics(self.cluster, self.topic, marks))

    def read(self, marks: Marks) -> list[CommitMark | None]:
        return self._answer(marks.all)

    def _answer(self, ask: Callable[[], R]) -> R:
        return until_answered(ask, self.cluster, self.topic, self.patience_s)

    def marks(self, pipeline: str, operator: str) -> Marks:
        return Marks(self.cluster, pipeline, operator, self.topic)

    def claim(self, pipeline: str, operator: str, store: str) -> Claim:
        return TopicClaim(self, Owner.of(pipeline, operator, store))

    def committed(self, pipeline: str, operator: str) -> bool:
        marks = self.read(self.marks(pipeline, operator))
        return any(mark is not None and mark.checkpoint > 0 for mark in marks)

    def forget(self, owner: Owner) -> None:
        """Let the next run begin with checkpoint 1, and fence all producers of earlier ones."""
        for shard, mark in enumerate(self.read(self.marks(owner.pipeline, owner.operator))):
            if mark is not None and (mark.checkpoint or mark.generation):
                self.note(owner, lambda mark: mark and CommitMark(0, 0, mark.owner), shard)

    def note(
        self, owner: Owner, decide: Callable[[CommitMark | None], CommitMark | None], shard: int = 0
    ) -> bool:
        """For the driver, which records the owner of the output and commits nothing."""
        sink_shard = SinkShard(owner.pipeline, owner.operator, shard, 1, 0, owner.store)
        commits = self.commits(sink_shard)
        try:
            return commits.change(decide)
        finally:
            commits.close()

    def commits(self, shard: SinkShard) -> ShardCommits:
        return ShardCommits(self.cluster, self.topic, shard, self.patience_s)


class TopicClaim(Claim):
    """A claim to a topic, recorded in the mark of the first shard."""

    kind = "topic"

    def __init__(self, output: TopicOutput, owner: Owner) -> None:
        super().__init__(f"topic '{output.topic}'", owner)
        self._output = output
        self._marks = output.marks(owner.pipeline, owner.operator)

    def read(self) -> Owner | None:
        marks = self._output.read(self._marks)
        return marks[0].owner if marks and marks[0] is not None else None

    def create(self) -> bool:
        if self.read() is not None:
            return False  # without fencing a producer that may be alive

        def claimed(existing: CommitMark | None) -> CommitMark | None:
            mark = existing or CommitMark(0, 0)
            return replace(mark, owner=self.owner) if mark.owner is None else None

        return self._output.note(self.owner, claimed)

    def remove(self) -> None:
        self._output.note(self.owner, lambda mark: mark and replace(mark, owner=None))

    def how_to_free(self) -> str:
        return f"delete the topic '{self._marks.topic}', which records it"


def _too_far(topic: str, sent: int, checkpoint: int) -> UserError:
    return UserError(
        f"topic '{topic}' has the messages up to checkpoint {sent}, but this run would resume from "
        f"checkpoint {checkpoint}: all messages since then would be duplicated, because Kafka cannot "
        "remove them. "
        f"If you went back with `everstream rewind`, undo that: `everstream rewind STORE --to "
        f"{sent}`, or the newest epoch that `everstream checkpoints STORE` shows as given up. Or write "
        "to another topic and start over with --fresh, which deletes the checkpoints."
    )


@dataclass
class KafkaTransaction(StagedTransaction, word="kafka-transaction"):
    """Messages that are written to the topic in one transaction with their mark."""

    topic: str
    target: ShardCommits | None = field(default=None, repr=False, compare=False, kw_only=True)

    def deliver(self) -> None:
        assert self.target is not None
        self.target.commit(self.checkpoint, self._messages)

    def _messages(self) -> Iterator[pl.DataFrame]:
        try:
            yield from (frame for frame in self.frames() if len(frame))
        except FileNotFoundError:
            raise ConnectorError(
                f"the messages of checkpoint {self.checkpoint} for topic '{self.topic}' are neither "
                f"in it nor in '{self.part.path}': that file was removed. Restore it, or start "
                "over with --fresh, which deletes the existing checkpoints."
            ) from None


class _KafkaWriter(StagedWriter):
    def __init__(self, output: TopicOutput, shard: SinkShard) -> None:
        super().__init__(shard, ENDING)
        self._output = output
        self._commits = output.commits(shard)

    def encode(self, batch: Batch) -> bytes:
        operator, encoding = self._shard.operator, self._output.encoding
        return encode(encoded_or_refused(batch, lambda b: encoding.messages(b, operator), operator))

    def stage(self, part: PartTransaction) -> KafkaTransaction:
        return KafkaTransaction(part, part.checkpoint, self._output.topic)

    def target(self) -> ShardCommits:
        return self._commits

    def recover(self, transactions: Sequence[Committable], permit: Permit) -> Sequence[Committable]:
        bound = [self._bound(transaction) for transaction in transactions]
        due = [t for t in bound if t.checkpoint <= permit.checkpoint]
        self._commits.take_over(lambda mark: self._allowed(mark, due, permit.checkpoint))
        return super().recover(transactions, permit)

    def close(self) -> None:
        super().close()
        self._commits.close()

    def _allowed(
        self, mark: CommitMark | None, due: Sequence[StagedTransaction], checkpoint: int
    ) -> CommitMark:
        """The mark to resume from, if that is possible without duplicate messages."""
        topic = self._output.topic
        if mark is not None and mark.checkpoint > checkpoint:
            raise _too_far(topic, mark.checkpoint, checkpoint)
        if mark is not None and mark.generation > 0:
            return mark
        # No generation has ever taken over, or the marks are gone.
        unknown = [transaction for transaction in due if transaction.waits]
        if unknown:
            raise UserError(
                f"it is unknown whether topic '{topic}' has the messages of checkpoint {unknown[0].checkpoint}: "
                f"the topic '{self._output.marks(self._shard.pipeline, self._shard.operator).topic}' "
                "that records it is gone. Restore it, or write to another topic and start over "
                "with --fresh, which deletes the checkpoints."
            )
        return replace(mark or CommitMark(0, 0), checkpoint=checkpoint)


# A separate topic for an audit beside the user's: created like it, read back, removed.


def _make_like(cluster: Cluster, topic: str, audit_copy: str) -> None:
    """Create a topic with as many partitions and replicas as the other; harmless if it exists."""
    kafka, like = driver(), partitions_of(cluster, topic)
    copies = max(like.values(), default=-1)
    new, admin = administration().NewTopic(audit_copy, len(like) or 1, copies), cluster.admin()
    try:
        admin.create_topics([new], operation_timeout=ANSWER_S)[audit_copy].result()
    except kafka.KafkaException as error:
        if error.args[0].code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    while len(partitions_of(cluster, audit_copy)) < (len(like) or 1):
        time.sleep(0.05)


def _remove_topics(cluster: Cluster, *topics: str) -> None:
    there, admin = [topic for topic in topics if partitions_of(cluster, topic)], cluster.admin()
    if there:
        for asked in admin.delete_topics(there, operation_timeout=ANSWER_S).values():
            asked.result()


def committed(cluster: Cluster, topic: str, patience_s: float) -> Batch:
    """Every message of a topic that is no longer written to: key, value and headers."""
    messages: list[dict[str, Any]] = []
    deadline = Deadline(patience_s)
    with (
        closing(cluster.consumer(isolation_level="read_uncommitted")) as asking,
        closing(cluster.consumer(isolation_level="read_committed")) as reading,
    ):
        for number in sorted(partitions_of(cluster, topic)):
            place = driver().TopicPartition(topic, number)
            _, end = asking.get_watermark_offsets(place, timeout=ANSWER_S)
            # Brokers report a transaction as committed a little before it is visible everywhere.
            while reading.get_watermark_offsets(place, timeout=ANSWER_S)[1] < end:
                _refuse_if_late(deadline, topic)
            messages += _read(reading, topic, number, end, deadline)
    return messages


def _read(
    reading: Any, topic: str, number: int, end: int, deadline: Deadline
) -> list[dict[str, Any]]:
    kafka, messages, at = driver(), list[dict[str, Any]](), 0
    reading.assign([kafka.TopicPartition(topic, number, 0)])
    while at < end:
        _refuse_if_late(deadline, topic)
        for message in reading.consume(10_000, timeout=0.1):
            error = message.error()
            if error is None:
                messages.append(
                    {"key": message.key(), "value": message.value(), "headers": message.headers()}
                )
            elif error.code() != kafka.KafkaError._PARTITION_EOF:
                raise kafka.KafkaException(error)
            at = max(at, message.offset() + (error is None))
    return messages


def _refuse_if_late(deadline: Deadline, topic: str) -> None:
    if deadline.passed:
        raise ConnectorError(
            f"topic '{topic}' could not be read back to its end. Check that its brokers run and "
            "that no transaction is left open in it."
        )
