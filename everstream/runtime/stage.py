"""One operator of a chain at work, with what a source or a sink must remember of its checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from everstream.core.frames import even_part
from everstream.pipeline.batch import Batch
from everstream.pipeline.keyed_state.expiry import ExpiringState
from everstream.pipeline.keys import Keying
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.sink import Committable, Writer
from everstream.pipeline.source import Reader
from everstream.pipeline.times import NO_WATERMARK
from everstream.runtime.engine_api import Persisting
from everstream.runtime.gathering import Gathered
from everstream.runtime.outlets import Outlet
from everstream.runtime.payload import BatchPayload


class PendingBatch:
    """The batch that a source shard has read and not fully emitted."""

    def __init__(self, saved: bytes | None = None) -> None:
        self._batch: Batch = BatchPayload(encoded=saved).batch if saved is not None else []
        self.start = 0
        """How many records of the batch were taken."""

    def __bool__(self) -> bool:
        return self.start < len(self._batch)

    def fill(self, batch: Batch) -> None:
        self._batch, self.start = batch, 0

    def take(self, most: int) -> Batch:
        """The next part, of at most `most` records."""
        batch, start = self._batch, self.start
        left = len(batch) - start
        if left <= most:
            self._batch, self.start = [], 0
            return batch[start:] if start else batch
        self.start = start + even_part(left, most)
        return batch[start : self.start]

    def saved(self) -> bytes:
        return bytes(BatchPayload(self._batch[self.start :]).encoded)


@dataclass(frozen=True)
class Inherited:
    """Output of an earlier shard of a sink, with the number of shards then, for the shard that
    replaces it."""

    shard: int
    shards: int
    transactions: Sequence[Committable]


@dataclass
class ChainStage:
    """One operator of a chain in one shard."""

    name: str
    ctx: Context
    number: int = 0
    """Its index in the chain."""
    operator: Operator | None = None
    reader: Reader | None = None
    writer: Writer | None = None
    targets: dict[str, list["ChainStage | Outlet"]] = field(default_factory=dict)
    keyings: dict[str, Keying] = field(default_factory=dict)
    """Input -> its keys, where no earlier stage has ensured that each record has one."""
    records_in: int = 0
    records_out: int = 0
    pending: list[Committable] = field(default_factory=list)
    """Transactions that are prepared and not known to be committed."""
    unpersisted: list[Persisting] = field(default_factory=list)
    """Those whose records may not be durable yet."""
    offsets: list[tuple[int, Any]] = field(default_factory=list)
    """Of a source: checkpoint and offset, for checkpoints that may become stable."""
    stable_offsets: list[tuple[float, Any]] = field(default_factory=list)
    """When checkpoints became stable that are kept, and their offsets, oldest first."""
    rest: PendingBatch = field(default_factory=PendingBatch)
    """Of a source: records that were read and are not processed."""
    dead_letters: "ChainStage | None" = None
    judged_behind: bool = False
    """Whether a later operator of this chain looks at the watermarks that records are judged by."""
    expiring: list[ExpiringState[Any]] = field(default_factory=list)
    """Of an operator: its state that has a time to live."""
    gathered: Gathered | None = None
    """Of an operator whose input may wait: the batches that do."""
    passed: int = NO_WATERMARK
    """The watermark that was passed on downstream."""

    def note_stable(self, checkpoint: int) -> None:
        """Let the source forget what no kept checkpoint needs."""
        stable = [offset for number, offset in self.offsets if number <= checkpoint]
        if self.reader is None or not stable:
            return
        self.offsets = [kept for kept in self.offsets if kept[0] > checkpoint]
        services, kept = self.ctx.services, self.stable_offsets
        now_s, before = services.now_s(), len(kept)
        kept.append((now_s, stable[-1]))
        self.reader.stable(stable[-1])
        while not services.retention.keeps(len(kept) - 1, now_s - kept[0][0]):
            del kept[0]
        if len(kept) <= before:
            self.reader.forget(kept[0][1])

    def hold(self, transactions: Sequence[Committable]) -> None:
        """These were restored and wait for their permit; they are durable."""
        self.pending = list(transactions)
        self.unpersisted = []
