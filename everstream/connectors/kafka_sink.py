"""Messages into a Kafka topic: exactly-once, or at once.

Exactly-once: messages wait as part files in the run's store, as durable as the checkpoint they
belong to, because no client can finish a transaction that another process has begun. At commit they
are produced in one Kafka transaction with a mark of the checkpoint (`kafka_commits`). Nothing can
be taken back from a topic: a run that would go on from before what was committed is refused.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import polars as pl

from everstream.connectors.encoding import LENGTH_BYTES, decode, encode
from everstream.connectors.files import remove
from everstream.connectors.kafka_aside import committed, make_like
from everstream.connectors.kafka_aside import remove as remove_topics
from everstream.connectors.kafka_at_once import AtOnceWriter
from everstream.connectors.kafka_client import Cluster
from everstream.connectors.kafka_commits import ShardCommits
from everstream.connectors.kafka_encoding import Encoding
from everstream.connectors.kafka_marks import Mark, Marks
from everstream.connectors.kafka_patience import patiently
from everstream.connectors.ownership import Claim, Owner
from everstream.connectors.parts import PartFolder, PartTransaction, PartWriter, PendingName
from everstream.connectors.summing import RunningSum
from everstream.errors import ConnectorError, InternalError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Delivery, Permit, Sink, SinkShard, Transaction, Writer
from everstream.state.saved import Saved

ENDING = ".messages"
R = TypeVar("R")


class KafkaSink(Sink):
    """The half of a connector that writes to a topic; whoever inherits it says to which and how."""

    delivery = Delivery.EXACTLY_ONCE

    @property
    @abstractmethod
    def output(self) -> "Output":
        """Where messages go, and what they are made of; a UserError if it cannot be a sink."""

    def _open_writer(self, who: SinkShard) -> Writer:
        output = self.output
        if self.delivery is Delivery.AT_LEAST_ONCE:
            return AtOnceWriter(
                output.cluster, output.topic, output.encoding, who, output.patience_s
            )
        return _KafkaWriter(output, who)

    def describe_output(self) -> dict[str, Any]:
        return {**super().describe_output(), "topic": self.output.topic}

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        output = self.output
        if output.aside is not None:
            output.make_aside()
        if self.delivery is not Delivery.EXACTLY_ONCE:
            return
        claim = output.claim(pipeline, operator, store)
        claim.check()
        if output.committed(pipeline, operator) and not replace:
            raise UserError(
                f"topic '{output.topic}' already holds messages of pipeline '{pipeline}', operator "
                f"'{operator}', from an earlier run. Name another topic, or say --fresh, which "
                "deletes what was kept of that run; its messages stay where they are, and those of "
                "this run come after them: Kafka takes none back."
            )
        claim.take()
        output.forget(claim.owner)
        _waiting(store, operator).start_fresh(pipeline, operator, replace)

    def before_resume(self, pipeline: str, operator: str, store: str) -> None:
        output = self.output
        if self.delivery is Delivery.EXACTLY_ONCE:
            output.claim(pipeline, operator, store).keep()

    def clear_aside(self, pipeline: str, operator: str) -> None:
        if self.output.aside is not None:
            self.output.clear_aside(pipeline, operator)

    def results(self, pipeline: str, operator: str, store: str) -> list[Batch] | None:
        return None if self.output.aside is None else [self.output.read_aside()]

    def left_behind(self, pipeline: str, operator: str, store: str) -> str | None:
        output = self.output
        if self.delivery is Delivery.EXACTLY_ONCE and output.committed(pipeline, operator):
            return (
                f"what is noted of the messages in Kafka topic '{output.topic}', which stay there "
                "and will come once more"
            )
        return None


@dataclass(frozen=True)
class Output:
    """A topic, and how records become its messages."""

    cluster: Cluster
    named: str
    """The topic that the user has named."""
    encoding: Encoding
    patience_s: float = 60.0
    """So long brokers may be gone before we give up, and with us the shard."""
    aside: str | None = None
    """Write to a topic of an audit's own that this labels."""

    @property
    def topic(self) -> str:
        return self.named if self.aside is None else f"{self.named}-everstream-audit-{self.aside}"

    def make_aside(self) -> None:
        self._patiently(lambda: make_like(self.cluster, self.named, self.topic))

    def read_aside(self) -> Batch:
        return self._patiently(lambda: committed(self.cluster, self.topic, self.patience_s))

    def clear_aside(self, pipeline: str, operator: str) -> None:
        marks = self.marks(pipeline, operator).topic
        self._patiently(lambda: remove_topics(self.cluster, self.topic, marks))

    def read(self, marks: Marks) -> list[Mark | None]:
        return self._patiently(marks.all)

    def _patiently(self, ask: Callable[[], R]) -> R:
        return patiently(ask, self.cluster, self.topic, self.patience_s)

    def marks(self, pipeline: str, operator: str) -> Marks:
        return Marks(self.cluster, pipeline, operator, self.topic)

    def claim(self, pipeline: str, operator: str, store: str) -> Claim:
        return TopicClaim(self, Owner.of(pipeline, operator, store))

    def committed(self, pipeline: str, operator: str) -> bool:
        """Whether any shard has shown messages."""
        found = self.read(self.marks(pipeline, operator))
        return any(mark is not None and mark.checkpoint > 0 for mark in found)

    def forget(self, owner: Owner) -> None:
        """Let the next run begin with checkpoint 1, and nobody of an earlier one go on."""
        for shard, mark in enumerate(self.read(self.marks(owner.pipeline, owner.operator))):
            if mark is not None and (mark.checkpoint or mark.generation):
                self.note(owner, lambda found: found and Mark(0, 0, found.owner), shard)

    def note(
        self, owner: Owner, decide: Callable[[Mark | None], Mark | None], shard: int = 0
    ) -> bool:
        """For the driver, which says whose output it is and commits nothing."""
        who = SinkShard(owner.pipeline, owner.operator, shard, 1, 0, owner.store)
        commits = self.commits(who)
        try:
            return commits.change(decide)
        finally:
            commits.close()

    def commits(self, who: SinkShard) -> ShardCommits:
        return ShardCommits(self.cluster, self.topic, who, self.patience_s)


class TopicClaim(Claim):
    """To a topic, noted in the mark of the first shard."""

    kind = "topic"

    def __init__(self, output: Output, owner: Owner) -> None:
        super().__init__(f"topic '{output.topic}'", owner)
        self._output = output
        self._marks = output.marks(owner.pipeline, owner.operator)

    def read(self) -> Owner | None:
        found = self._output.read(self._marks)
        return found[0].owner if found and found[0] is not None else None

    def create(self) -> bool:
        if self.read() is not None:
            return False  # without fencing off anybody who may be alive

        def ours(found: Mark | None) -> Mark | None:
            mark = found or Mark(0, 0)
            return replace(mark, owner=self.owner) if mark.owner is None else None

        return self._output.note(self.owner, ours)

    def remove(self) -> None:
        self._output.note(self.owner, lambda found: found and replace(found, owner=None))

    def how_to_free(self) -> str:
        return f"delete the topic '{self._marks.topic}', which says so"


def _waiting(store: str, operator: str) -> PartFolder:
    return PartFolder.in_store(store, "waiting", operator, ENDING)


@dataclass
class KafkaTransaction(Transaction, Saved, word="kafka-transaction"):
    """Messages in a part file that go into the topic together with a mark that they are in.

    Pickles without its hand on Kafka: a checkpoint must hold no password, and brokers may move.
    """

    topic: str
    part: PartTransaction
    checkpoint: int
    commits: ShardCommits | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "commits": None}

    def persist(self) -> None:
        self.part.persist()

    def abort(self) -> None:
        self.part.abort()

    def commit(self, permit: Permit) -> None:
        if permit.checkpoint < self.checkpoint:
            raise InternalError(
                f"messages of checkpoint {self.checkpoint} for topic '{self.topic}' were to be "
                f"committed with a permit for checkpoint {permit.checkpoint} only"
            )
        if self.part.file is not None:
            self.part.persist()
        if self.commits is None:
            raise InternalError(f"messages for topic '{self.topic}' were given to no `recover`")
        self.commits.commit(self.checkpoint, self._frames)
        remove(self.part.place.fs, self.part.path)

    @property
    def waits(self) -> bool:
        """Whether its messages are still in the store: they are removed when they are committed."""
        fs = self.part.place.fs
        fs.invalidate_cache(self.part.place.pending_path)
        return bool(fs.exists(self.part.path))

    def _frames(self) -> Iterator[pl.DataFrame]:
        """What waits; that it is whole shows at the end, so commit nothing before that."""
        size_bytes, checksum = 0, RunningSum()
        try:
            with self.part.place.fs.open(self.part.path, "rb") as file:
                while head := file.read(1 + LENGTH_BYTES):
                    length = int.from_bytes(head[1:], "little")
                    data = head + file.read(min(length, self.part.size_bytes))
                    size_bytes += len(data)
                    checksum.add(data)
                    with suppress(ValueError):  # damaged: the checksum says so
                        yield from (batch for batch in decode(data) if len(batch))  # type: ignore[misc]
        except FileNotFoundError:
            raise ConnectorError(
                f"the messages of checkpoint {self.checkpoint} for topic '{self.topic}' are neither "
                f"in it nor in '{self.part.path}'. Someone removed that file: put it back, or start "
                "over with --fresh, which deletes the checkpoints there are."
            ) from None
        except OSError as error:
            raise ConnectorError(f"cannot read '{self.part.path}': {error}") from error
        self.part.require_whole(size_bytes, str(checksum))


class _KafkaWriter(PartWriter):
    def __init__(self, output: Output, who: SinkShard) -> None:
        super().__init__(_waiting(who.store, who.operator), who)
        self._output = output
        self._commits = output.commits(who)

    def encode(self, batch: Batch) -> bytes:
        return encode(self._output.encoding.messages(batch, self._who.operator))

    def prepare(self, checkpoint: int) -> Transaction | None:
        part = super().prepare(checkpoint)
        if part is None:
            return None
        assert isinstance(part, PartTransaction)
        return KafkaTransaction(self._output.topic, part, checkpoint, self._commits)

    def recover(self, transactions: Sequence[Transaction], permit: Permit) -> Sequence[Transaction]:
        ours = [self._bound(transaction) for transaction in transactions]
        due = [t for t in ours if t.checkpoint <= permit.checkpoint]
        self._commits.take_over(lambda found: self._allowed(found, due, permit.checkpoint))
        return super().recover(transactions, permit)

    def close(self) -> None:
        super().close()
        self._commits.close()

    def _allowed(self, found: Mark | None, due: Sequence[Transaction], checkpoint: int) -> Mark:
        """What to go on from, if that can be done without messages that come twice."""
        topic = self._output.topic
        if found is not None and found.checkpoint > checkpoint:
            raise UserError(
                f"topic '{topic}' has the messages up to checkpoint {found.checkpoint}, but this "
                f"run would go on from checkpoint {checkpoint}: all since then would come twice, "
                "because Kafka takes none back. Go on from the newest checkpoint; or write to "
                "another topic and start over with --fresh, which deletes the checkpoints."
            )
        if found is not None and found.generation > 0:
            return found
        # Nobody has ever taken over, or what was noted is gone.
        unknown = [t for t in due if isinstance(t, KafkaTransaction) and t.waits]
        if unknown:
            raise UserError(
                f"whether topic '{topic}' has the messages of checkpoint {unknown[0].checkpoint} is "
                f"not known: the topic '{self._output.marks(self._who.pipeline, self._who.operator).topic}' "
                "that says so is gone. Bring it back; or write to another topic and start over "
                "with --fresh, which deletes the checkpoints."
            )
        return replace(found or Mark(0, 0), checkpoint=checkpoint)

    def _bound(self, transaction: Transaction) -> Transaction:
        assert isinstance(transaction, KafkaTransaction)
        part = replace(transaction.part, folder=self._folder)
        return replace(transaction, part=part, commits=self._commits)

    def _pending_of(self, transaction: Transaction) -> list[PendingName]:
        assert isinstance(transaction, KafkaTransaction)
        return [transaction.part.pending]
