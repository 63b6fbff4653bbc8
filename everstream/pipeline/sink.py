"""Where records go: the interface every sink fills, and the three honest kinds of delivery.

An exactly-once writer collects records into a transaction. `prepare` closes the transaction at
the instant of a checkpoint; it is made durable in the background (`Committable.persist`) before
that checkpoint counts; and it is committed only with a `Permit`, which exists only for
checkpoints that can no longer be rolled back. Committing twice must be harmless. Idempotent
sinks (keyed upsert) and at-least-once sinks (callbacks) need no transactions.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn, final

from everstream.pipeline.batch import Batch
from everstream.pipeline.operator import Moment
from everstream.state.saved import Saved


class Delivery(Enum):
    """What a sink promises when there are failures."""

    EXACTLY_ONCE = "exactly-once"
    IDEMPOTENT = "idempotent"
    AT_LEAST_ONCE = "at-least-once"


@final
@dataclass(frozen=True, init=False)
class Permit:
    """The right to show everything up to this checkpoint to the world.

    Only the core makes one, from a `Stable` event or from restoring a stable checkpoint; it
    cannot be made by hand, nor sent to another process.
    """

    checkpoint: int
    takes_back: bool
    """Later checkpoints may have been shown, and were given up: the store went back to this one. If
    not, nothing was shown since, and `recover` need not look for it."""

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError(
            "a permit cannot be made by hand: the engine hands it to commit and recover"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a permit is good in the process it was given to, and nowhere else")


@dataclass(frozen=True)
class SinkShard(Saved, word="sink-shard"):
    """Who a writer is. The names it writes must hold all of this, so that no two collide."""

    pipeline: str
    operator: str
    shard: int
    shards: int
    generation: int
    store: str
    """URL of the store of this run, for sinks that keep their output with the checkpoints."""


class Committable(ABC):
    """Records closed off at one checkpoint, waiting to be committed. Must pickle.

    `persist`, `commit` and `abort` run on a background thread while the writer goes on writing
    its next transaction: they must not share anything changeable with the writer.
    """

    checkpoint: int

    def persist(self) -> None:
        """Make the records durable. The checkpoint counts only after this returns."""

    @abstractmethod
    def commit(self, permit: Permit) -> None:
        """Show the records to the world. May be called again after it succeeded: harmless."""

    @abstractmethod
    def abort(self) -> None:
        """Forget the records. May be called again: harmless."""


class Writer(ABC):
    """One shard's hand on a sink."""

    def keep_moment(self, moment: Moment) -> None:
        """Called once, before `write`: tells, while that runs, when what it is given came in.

        For writers that measure.
        """

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Take these records (exactly-once: into the open transaction).

        Raise `RefusedRecords` to take none of them because some cannot be stored exactly: what the
        sink's `on_error` says is done with those, and the others are written again.
        """

    def saved(self) -> Any:
        """What the next checkpoint keeps besides transactions, as plain JSON; None for nothing."""
        return None

    def restore(self, saved: Any) -> None:
        """What `saved` gave at the checkpoint this generation begins with; before `recover`."""

    def prepare(self, checkpoint: int) -> Committable | None:
        """Close the open transaction at this checkpoint and open the next; fast, no fsync here.

        None if nothing was written, or if the sink has no transactions.
        """
        return None

    def recover(self, transactions: Sequence[Committable], permit: Permit) -> Sequence[Committable]:
        """Make the outside world show exactly what the permit says.

        Called once, before the first `write` of a new generation, also at the very first start
        (then with no transactions). Commits those of the given transactions that the permit
        covers (they may have been committed before) and removes whatever else this shard left
        behind from later checkpoints or other generations, prepared or committed. Gives back the
        transactions that no permit covers yet, ready to be committed by this generation.
        """
        return ()

    def adopt(self, transactions: Sequence[Committable]) -> Sequence[Committable]:
        """Make transactions that a writer in another process has prepared ready to be committed here.

        They were pickled on their way. Whoever leaves a folder or a connection out of that gives
        it back here, as `recover` does. As given here: they need nothing.
        """
        return transactions

    def close(self) -> None:
        """Let go of files and connections; the open transaction is given up."""


class Sink(ABC):
    """Describes a sink; picklable. Opened once per shard and generation, on the shard's worker.

    >>> class Shout(es.Sink):
    ...     def open(self, who):
    ...         return ShoutWriter()
    >>> from everstream.connectors import Writer
    >>> class ShoutWriter(Writer):
    ...     def write(self, batch):
    ...         print(*batch, sep="!", end="!")
    >>> _ = es.Pipeline("loud").source(es.FromList(["to", "be"])).sink(Shout()).run()
    to!be!
    """

    delivery: Delivery = Delivery.AT_LEAST_ONCE
    """What it promises when there are failures."""
    max_shards: int | None = None
    """How many shards can write to this sink; None for any number."""

    @abstractmethod
    def open(self, who: SinkShard) -> Writer:
        """The writer for one shard."""

    def columns(self, who: SinkShard) -> Any:
        """What decides how this sink stores rows, for whatever takes its place; None if it has none.

        Of the class `connectors.columns.Columns`. Reads and changes nothing but the store of the run.
        """
        return None

    def as_sink(self) -> "Sink":
        """What a stream ends in; raises a UserError for options that a sink does not take."""
        return self

    def check(self) -> None:
        """Raise a UserError that says what to fix if this sink cannot work."""

    def describe_output(self) -> dict[str, Any]:
        """What transactions that are saved here belong to, as plain JSON, without any secret.

        A later run goes on from a checkpoint only if this is still the same. As given here: the
        class, and what it promises.
        """
        return {"sink": type(self).__name__, "delivery": self.delivery.value}

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        """Called on the driver before a run that starts from nothing.

        If output of an earlier run of this pipeline and operator is there: with `replace`
        remove it, else raise a UserError that says how to go on (--fresh, which deletes it, or
        another folder). Never touch anything this sink did not write.
        """

    def before_resume(self, pipeline: str, operator: str, store: str) -> None:
        """Called on the driver before a run that goes on from a checkpoint in this store.

        Raises a UserError if the output belongs to a run with another store by now.
        """

    def check_resume(
        self, pipeline: str, operator: str, store: str, checkpoints: Mapping[int, int]
    ) -> None:
        """Called on the driver after `before_resume`: shard -> the checkpoint the run resumes from.

        Raises a UserError if the sink has shown what came later and cannot take it back. All sinks
        are asked before any of them takes anything back, so a rewind can still be undone.
        """

    def left_behind(self, pipeline: str, operator: str, store: str) -> str | None:
        """What `start_fresh` with `replace` would delete, in words ("3 part files in 'out'").

        Shown before somebody who says --fresh is asked whether that is meant; None if nothing.
        """
        return None

    def audit_copy(self, label: str) -> "Sink | None":
        """The same sink with a place of its own beside the real one, for an audit.

        `label` is made of letters, digits and hyphens, and part of the place's name. The place is
        made when it is needed, `results` gives what was committed there, and `clear_audit_copy` removes
        it. None, as given here, for a sink that has no such place.
        """
        return None

    def clear_audit_copy(self, pipeline: str, operator: str) -> None:
        """Remove the place that `audit_copy` has chosen, and all that is in it."""

    def results(self, pipeline: str, operator: str, store: str) -> list[Batch] | None:
        """What was committed, for sinks whose output goes back to the caller; else None."""
        return None
