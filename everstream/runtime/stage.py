"""One operator of a chain at work, with what a source or a sink must remember of its checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from everstream.core.manifest import KEPT_MANIFESTS
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.sink import Transaction, Writer
from everstream.pipeline.source import Reader
from everstream.pipeline.times import NO_WATERMARK
from everstream.runtime.jobs import Persisting
from everstream.runtime.outlets import Outlet
from everstream.runtime.rest import Rest


@dataclass(frozen=True)
class Inherited:
    """Output of an earlier shard of a sink, when there were so many, for one that takes its place."""

    shard: int
    shards: int
    transactions: Sequence[Transaction]


@dataclass
class Stage:
    """One operator of a chain in one shard."""

    name: str
    ctx: Context
    number: int = 0
    """Its place in the chain."""
    operator: Operator | None = None
    reader: Reader | None = None
    writer: Writer | None = None
    targets: dict[str, list["Stage | Outlet"]] = field(default_factory=dict)
    records_in: int = 0
    records_out: int = 0
    pending: list[Transaction] = field(default_factory=list)
    """Transactions that are prepared and not known to be committed."""
    unpersisted: list[Persisting] = field(default_factory=list)
    """Those whose records may not be durable yet."""
    offsets: list[tuple[int, Any]] = field(default_factory=list)
    """A source's: checkpoint, offset, of those that may become stable."""
    stable_offsets: list[Any] = field(default_factory=list)
    """The offsets of the stable checkpoints one can still go back to, oldest first."""
    rest: Rest = field(default_factory=Rest)
    """A source's: what was read and is not processed."""
    dead_letters: "Stage | None" = None
    passed: int = NO_WATERMARK
    """The watermark that was passed on to those behind."""

    def note_stable(self, checkpoint: int) -> None:
        """Let the source forget what no kept checkpoint needs."""
        stable = [offset for number, offset in self.offsets if number <= checkpoint]
        if self.reader is None or not stable:
            return
        self.offsets = [kept for kept in self.offsets if kept[0] > checkpoint]
        self.stable_offsets.append(stable[-1])
        self.reader.stable(stable[-1])
        if len(self.stable_offsets) > KEPT_MANIFESTS:
            del self.stable_offsets[:-KEPT_MANIFESTS]
            self.reader.forget(self.stable_offsets[0])

    def hold(self, transactions: Sequence[Transaction]) -> None:
        """These were restored and wait for their permit; they are durable."""
        self.pending = list(transactions)
        self.unpersisted = []
