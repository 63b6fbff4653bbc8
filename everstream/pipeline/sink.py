"""Where records go: the interface of every sink, and the three kinds of delivery.

An exactly-once writer collects records into a transaction. `prepare` closes the transaction at
the instant of a checkpoint. `Committable.persist` makes it durable in the background before that
checkpoint counts. It is committed only with a `Permit`, which exists only for checkpoints that can
no longer be rolled back. Committing twice must be harmless. Idempotent sinks (keyed upsert) and
at-least-once sinks (callbacks) need no transactions.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn, final

import polars as pl

from everstream.pipeline.batch import Batch
from everstream.pipeline.operator import Moment
from everstream.state.saved import Saved


class Delivery(Enum):
    """What a sink guarantees when there are failures."""

    EXACTLY_ONCE = "exactly-once"
    IDEMPOTENT = "idempotent"
    AT_LEAST_ONCE = "at-least-once"


@final
@dataclass(frozen=True, init=False)
class Permit:
    """The right to make everything up to this checkpoint visible.

    Only the core makes one, from a `Stable` event or from restoring a stable checkpoint. It
    cannot be made by hand, nor sent to another process.
    """

    checkpoint: int
    takes_back: bool
    """Whether later checkpoints may have been committed before the store was rewound to this one. If
    not, nothing was committed since, and `recover` need not look for it."""

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError(
            "a permit cannot be made by hand: the engine passes it to commit and recover"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a permit is valid only in the process it was given to")


@dataclass(frozen=True)
class SinkShard(Saved, word="sink-shard"):
    """Identifies a writer. The names it writes must contain all of this, so that no two collide."""

    pipeline: str
    operator: str
    shard: int
    shards: int
    generation: int
    store: str
    """URL of the store of this run, for sinks that keep their output with the checkpoints."""


class Committable(ABC):
    """Records of one checkpoint, waiting to be committed. Must pickle.

    `persist`, `commit` and `abort` run on a background thread while the writer writes its next
    transaction: they must not share mutable state with the writer.
    """

    checkpoint: int

    def persist(self) -> None:
        """Make the records durable. The checkpoint counts only after this returns."""

    @abstractmethod
    def commit(self, permit: Permit) -> None:
        """Make the records visible. May be called again after it succeeded: must be harmless."""

    @abstractmethod
    def abort(self) -> None:
        """Discard the records. May be called again: must be harmless."""


class Writer(ABC):
    """Writes the records of one shard to a sink."""

    def keep_moment(self, moment: Moment) -> None:
        """Called once, before `write`. While `write` runs, `moment` has the arrival time of its records.

        For writers that measure latency.
        """

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Write these records (exactly-once: into the open transaction).

        Raise `RefusedRecords` to write none of them because some cannot be stored exactly. The
        sink's `on_error` is applied to those, and the others are written again.
        """

    def saved(self) -> Any:
        """What the next checkpoint saves besides transactions, as plain JSON; None for nothing."""
        return None

    def restore(self, saved: Any) -> None:
        """Receives what `saved` returned at the checkpoint being restored; called before `recover`."""

    def prepare(self, checkpoint: int) -> Committable | None:
        """Close the open transaction at this checkpoint and open the next. Be fast: no fsync here.

        Return None if nothing was written, or if the sink has no transactions.
        """
        return None

    def recover(self, transactions: Sequence[Committable], permit: Permit) -> Sequence[Committable]:
        """Make the output show exactly what the permit covers.

        Called once, before the first `write` of a new generation, also at the very first start
        (then with no transactions). Commits those of the given transactions that the permit
        covers (they may have been committed before). Removes everything else that this shard left
        behind from later checkpoints or other generations, prepared or committed. Returns the
        transactions that no permit covers yet, ready to be committed by this generation.
        """
        return ()

    def adopt(self, transactions: Sequence[Committable]) -> Sequence[Committable]:
        """Make transactions that a writer in another process has prepared ready to be committed here.

        They were pickled on the way. If pickling leaves out a folder or a connection, set it again
        here, as `recover` does. Default: returns them unchanged.
        """
        return transactions

    def close(self) -> None:
        """Close files and connections, and abandon the open transaction."""


class Sink(ABC):
    """Describes a sink; picklable. Opened once per shard and generation, on the shard's worker.

    >>> class Shout(es.Sink):
    ...     def open(self, shard):
    ...         return ShoutWriter()
    >>> from everstream.connectors import Writer
    >>> class ShoutWriter(Writer):
    ...     def write(self, batch):
    ...         print(*batch, sep="!", end="!")
    >>> _ = es.Pipeline("loud").source(es.FromList(["to", "be"])).sink(Shout()).run()
    to!be!
    """

    delivery: Delivery = Delivery.AT_LEAST_ONCE
    """What it guarantees when there are failures."""
    max_shards: int | None = None
    """How many shards can write to this sink; None for any number."""
    permanent_process = False
    """Whether a shard needs one process for the whole run: only its next process may roll back what
    it has prepared."""

    @abstractmethod
    def open(self, shard: SinkShard) -> Writer:
        """The writer for one shard."""

    def columns(self, shard: SinkShard) -> Any:
        """What decides how this sink stores rows, for a sink that replaces it; None if nothing does.

        Returns a `connectors.columns.Columns`. Reads and changes only the store of the run.
        """
        return None

    def as_sink(self) -> "Sink":
        """The sink a stream ends in; raises a UserError for options that a sink does not take."""
        return self

    def check(self) -> None:
        """Raise a UserError that explains the fix if this sink cannot work."""

    def check_columns(self, operator: str, schema: pl.Schema) -> None:
        """Raise a UserError if it cannot store rows with these columns; called before anything runs.

        `schema` has the columns of all rows that will come. Reads nothing outside.
        """
        columns = self.columns(SinkShard("", operator, 0, 1, 0, ""))
        if columns is not None:
            columns.check(schema)

    def describe_output(self) -> dict[str, Any]:
        """Describes what saved transactions belong to, as plain JSON without secrets.

        A later run resumes from a checkpoint only if this is unchanged. Default: the class and its
        delivery guarantee.
        """
        return {"sink": type(self).__name__, "delivery": self.delivery.value}

    def irrevocable(self) -> str | None:
        """Why committed output cannot be removed, as a sentence; None if `recover` removes it.

        Saved with every checkpoint. `everstream rewind` refuses, with this reason, to go behind
        records that an exactly-once sink has received since.
        """
        return None

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        """Called on the driver before a run that does not resume from a checkpoint.

        If there is output of an earlier run of this pipeline and operator: with `replace`, remove
        it; otherwise raise a UserError that tells the user what to do (--fresh, which deletes it,
        or another folder). Never touch anything this sink did not write.
        """

    def before_resume(self, pipeline: str, operator: str, store: str) -> None:
        """Called on the driver before a run that resumes from a checkpoint in this store.

        Raise a UserError if the output now belongs to a run with another store.
        """

    def check_resume(
        self, pipeline: str, operator: str, store: str, checkpoints: Mapping[int, int]
    ) -> None:
        """Called on the driver after `before_resume`: shard -> the checkpoint the run resumes from.

        Raise a UserError if the sink has committed later output and cannot remove it. All sinks
        are asked before any of them removes anything, so a rewind can still be undone. See also
        `irrevocable`, with which the rewind itself is refused.
        """

    def left_behind(self, pipeline: str, operator: str, store: str) -> str | None:
        """What `start_fresh` with `replace` would delete, in words ("3 part files in 'out'").

        Shown to a user who passes --fresh, before asking for confirmation; None if nothing.
        """
        return None

    def audit_copy(self, label: str) -> "Sink | None":
        """The same sink with a separate location beside the real one, for an audit.

        `label` consists of letters, digits and hyphens, and is part of the location's name. The
        location is created when needed, `results` returns what was committed there, and
        `clear_audit_copy` removes it. Default: None, for a sink without such a location.
        """
        return None

    def clear_audit_copy(self, pipeline: str, operator: str) -> None:
        """Remove the location that `audit_copy` chose, and everything in it."""

    def results(self, pipeline: str, operator: str, store: str) -> list[Batch] | None:
        """What was committed, for sinks whose output is returned to the caller; otherwise None."""
        return None
