"""A last stage that writes to a system of the user's, in two phases, as an exactly-once sink.

The stage's code writes into a transaction that the user has opened. With each checkpoint
`before_snapshot` prepares it under a name, and once the checkpoint can no longer be rolled back,
`on_commit` commits that name. After a failure, names that the checkpoint covers are committed, also
if they were before, and `on_rollback` learns which prepared transactions never will be.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from everstream.annotations.stage import StageOperator, call
from everstream.errors import InternalError
from everstream.pipeline.batch import Batch
from everstream.pipeline.operator import Context
from everstream.pipeline.sink import Committable, Delivery, Permit, Sink, SinkShard, Writer
from everstream.state.backends.memory import MemoryBackend
from everstream.state.saved import Saved

OPTIONS = ("before_snapshot", "on_commit", "on_rollback")
"""What makes a stage such a sink."""


class StageTransaction(Committable, Saved, word="stage-transaction"):
    """A prepared transaction, by its name. The hook that commits it is not saved."""

    def __init__(self, checkpoint: int, name: str) -> None:
        self.checkpoint = checkpoint
        self.name = name
        self._on_commit: Callable[[str], object] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"checkpoint": self.checkpoint, "name": self.name, "_on_commit": None}

    def with_hook(self, on_commit: Callable[[str], object]) -> "StageTransaction":
        self._on_commit = on_commit
        return self

    def commit(self, permit: Permit) -> None:
        if self._on_commit is None:
            raise InternalError(f"transaction {self.name} was not adopted")
        if permit.checkpoint < self.checkpoint:
            raise InternalError(f"no permit for checkpoint {self.checkpoint}")
        self._on_commit(self.name)

    def abort(self) -> None:
        """Left to `on_rollback`, which finds it prepared."""


class StageSink(Sink):
    """The sink that a stage with `before_snapshot` and `on_commit` becomes."""

    delivery = Delivery.EXACTLY_ONCE
    permanent_process = True

    def __init__(
        self,
        stage: StageOperator,
        *,
        before_snapshot: Callable[..., object],
        on_commit: Callable[[str], object],
        on_rollback: Callable[..., object] | None = None,
    ) -> None:
        self.stage = stage
        self.before_snapshot = before_snapshot
        self.on_commit = on_commit
        self.on_rollback = on_rollback

    def open(self, shard: SinkShard) -> Writer:
        return StageWriter(self, shard)

    def describe_output(self) -> dict[str, Any]:
        return {**super().describe_output(), "stage": type(self.stage).__name__}

    def irrevocable(self) -> str | None:
        return "what on_commit has committed cannot be taken back"


class StageWriter(Writer):
    """Runs the stage's code; the resource is opened with the first item."""

    def __init__(self, sink: StageSink, shard: SinkShard) -> None:
        self._sink = sink
        store = hashlib.sha256(shard.store.encode()).hexdigest()[:12]
        parts = ("everstream", store, shard.pipeline, shard.operator, str(shard.shard))
        self._prefix = "/".join(parts) + "/"
        self._generation = shard.generation
        self._ctx = Context(shard.operator, shard.shard, shard.shards, MemoryBackend())
        self._open = False
        self._written = False

    def write(self, batch: Batch) -> None:
        if not self._open:
            self._sink.stage.on_start(self._ctx)
            self._open = True
        self._written = True
        self._sink.stage.process_batch(batch, self._ctx)

    def prepare(self, checkpoint: int) -> Committable | None:
        if not self._written:
            return None
        self._written = False
        name = f"{self._prefix}{self._generation}/{checkpoint}"
        call(self._sink.before_snapshot, name, self._sink.stage.resource)
        return StageTransaction(checkpoint, name).with_hook(self._sink.on_commit)

    def recover(self, transactions: Sequence[Committable], permit: Permit) -> Sequence[Committable]:
        waiting: list[StageTransaction] = []
        covered: set[str] = set()
        for transaction in self.adopt(transactions):
            assert isinstance(transaction, StageTransaction)
            if transaction.checkpoint <= permit.checkpoint:
                transaction.commit(permit)
                covered.add(transaction.name)
            else:
                waiting.append(transaction)
        if self._sink.on_rollback is not None:
            covered |= {transaction.name for transaction in waiting}
            call(self._sink.on_rollback, Abandoned(self._prefix, covered))
        return waiting

    def adopt(self, transactions: Sequence[Committable]) -> Sequence[Committable]:
        return [
            one.with_hook(self._sink.on_commit)
            for one in transactions
            if isinstance(one, StageTransaction)
        ]

    def close(self) -> None:
        if self._open:
            self._open = self._written = False
            self._sink.stage.on_stop(self._ctx)


class Abandoned:
    """Says of a name whether its transaction is from before a failure, and will never be committed."""

    def __init__(self, prefix: str, kept: Collection[str]) -> None:
        self._prefix = prefix
        self._kept = frozenset(kept)

    def __call__(self, name: str) -> bool:
        return name.startswith(self._prefix) and name not in self._kept
