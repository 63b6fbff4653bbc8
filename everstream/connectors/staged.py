"""Output that is kept in the run's store until its checkpoint is stable, and is then delivered.

This is for systems that cannot hold a prepared transaction for us: a Kafka topic, a database table,
a web server. At a checkpoint the records are in a part file in `<store>/waiting/<operator>/`, whose
size and checksum are saved with the checkpoint. `commit` checks the permit, verifies the whole file
before decoding anything in it, delivers it and removes it. After a crash in between, the next run
commits again, so every `deliver` must recognize what it has already delivered.
"""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Any

import polars as pl

from everstream.connectors.encoding import decode_frames
from everstream.connectors.files.parts import (
    PartFolder,
    PartTransaction,
    PartWriter,
    PendingName,
    require_permit,
)
from everstream.errors import ConnectorError, InternalError
from everstream.pipeline.sink import Committable, Permit, SinkShard
from everstream.state.saved import Saved


def waiting_folder(store: str, operator: str, ending: str) -> PartFolder:
    return PartFolder.in_store(store, "waiting", operator, ending)


@dataclass
class StagedTransaction(Committable, Saved):
    """The records of one checkpoint, in a part file; a subclass defines how they are delivered.

    It pickles without its target: a checkpoint must contain no password, and servers may move. The
    writer's `recover` sets the target of the run that commits it.
    """

    part: PartTransaction
    checkpoint: int
    target: Any = field(default=None, repr=False, compare=False, kw_only=True)

    @abstractmethod
    def deliver(self) -> None:
        """Write the records to the target; do nothing if it already has them."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "target": None}

    def persist(self) -> None:
        self.part.persist()

    def abort(self) -> None:
        self.part.abort()

    def commit(self, permit: Permit) -> None:
        require_permit(permit, self.checkpoint, f"output in part {self.part.part}")
        if self.target is None:
            raise InternalError(f"part {self.part.part} was not passed to `recover`")
        if self.part.file is not None:
            self.part.persist()
        self.deliver()
        self.part.place.remove(self.part.pending)

    @property
    def waits(self) -> bool:
        """Whether the records are still in the store: `commit` removes them."""
        folder = self.part.place
        folder.fs.invalidate_cache(folder.pending_path)
        return bool(folder.fs.exists(self.part.path))

    @contextmanager
    def content(self) -> Iterator[IO[bytes]]:
        """The pending bytes, all of them verified; FileNotFoundError if they were removed."""
        try:
            with self.part.content() as file:
                yield file
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise ConnectorError(f"cannot read '{self.part.path}': {error}") from error

    def frames(self) -> Iterator[pl.DataFrame]:
        with self.content() as file:
            yield from decode_frames(file)


class StagedWriter(PartWriter):
    """Writes part files in the store; a subclass turns them into transactions."""

    def __init__(self, shard: SinkShard, ending: str) -> None:
        super().__init__(waiting_folder(shard.store, shard.operator, ending), shard)

    @abstractmethod
    def stage(self, part: PartTransaction) -> StagedTransaction:
        """The transaction that delivers this part."""

    @abstractmethod
    def target(self) -> Any:
        """Where this writer's transactions are delivered."""

    def prepare(self, checkpoint: int) -> Committable | None:
        part = super().prepare(checkpoint)
        if part is None:
            return None
        assert isinstance(part, PartTransaction)
        return replace(self.stage(part), target=self.target())

    def _bound(self, transaction: Committable) -> StagedTransaction:
        assert isinstance(transaction, StagedTransaction)
        part = replace(transaction.part, folder=self._folder)
        return replace(transaction, part=part, target=self.target())

    def _pending_of(self, transaction: Committable) -> list[PendingName]:
        assert isinstance(transaction, StagedTransaction)
        return [transaction.part.pending]
