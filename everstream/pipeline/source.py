"""Where records come from: the interface of every source.

A source is replayable: reopened at any offset it has reported, it gives the same records again.
One `Reader` serves one shard. The engine saves `reader.offset` with each checkpoint and passes it
to `seek` after a failure. Nothing else is saved, so the offset must contain everything needed to
resume (also which files belong to this shard).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic

from everstream.errors import UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.rejects import OnError, Rejected
from everstream.pipeline.times import NO_WATERMARK, TimeOf
from everstream.pipeline.types import T


class EndOfStream:
    """The type of `END`."""


END = EndOfStream()
"""Returned by `Reader.read` when there are no more records, ever or up to the stopping point."""


NOT_KNOWN: Final = "what it has is not known before it is read"
"""Returned by `Source.unread` if only reading shows whether there are records."""


@dataclass(frozen=True)
class LoadSeen:
    """How a source keeps up with the load it should produce."""

    target_per_s: float = 0.0
    """0 if it reads as fast as it can."""
    behind: float = 0.0
    """Records that are due but not emitted yet."""
    forfeited: float = 0.0
    """Records whose time has passed and that will not be made up for."""


NO_LOAD = LoadSeen()


class Reader(ABC):
    """Reads the records of one shard of a source."""

    @property
    @abstractmethod
    def offset(self) -> Any:
        """Where the next `read` starts; a value that pickles and is never changed in place."""

    @abstractmethod
    def seek(self, offset: Any) -> None:
        """Move to an offset that was reported earlier, by this or another process."""

    def fence(self, generation: int) -> None:
        """Called once, before the first `read`, with the generation of the shard.

        For readers that write, such as a journal: a reader of a lower generation is a zombie.
        """

    @abstractmethod
    def read(self) -> Batch | EndOfStream | None:
        """The next batch; None if there is nothing at present; END if there never will be.

        Must not block for long: the shard's checkpoints wait for it.
        """

    def ready_in_s(self) -> float:
        """After a `read` that returned None: how long the engine may wait before the next `read`."""
        return 0.05

    def drained(self) -> bool:
        """After a `read` that returned records: whether there were no more of them at that moment.

        The engine then waits for as long as the option `latency` allows, so that the records that
        arrive next travel together. The default suits sources that read what exists already.
        """
        return False

    def stop_at(self, point: Any) -> None:
        """Called once, before `seek` and `read`: read up to this point, then return END.

        The point is a `Source.stopping_point`; a later run resumes from `offset` with another one.
        Only called if the run ends when it has caught up. The default suits readers that return
        END once they have read everything, and find new records when they are opened again.
        """

    def keep_time(self, wall_s: Callable[[], float], steady_s: Callable[[], float]) -> None:
        """Called once, before `seek` and `read`, with the engine's clocks, which may be virtual.

        `wall_s` is seconds since 1970; `steady_s` never goes back nor jumps. For readers that
        depend on the time.
        """

    def use_store(self, store: str) -> None:
        """Called once, before `seek` and `read`, with the location of the run's store.

        For readers that keep their own files, which must be signed if the store is.
        """

    def tune(self, settings: Mapping[str, str], version: int) -> None:
        """Called when settings of `Source.tunable` change; `version` numbers the last change.

        Also called after `seek`: the offset must record whether it already includes a change.
        """

    def born_s(self) -> float:
        """After a `read`: when its records came in, by the wall clock; 0 for just now."""
        return 0.0

    def load(self) -> LoadSeen:
        """How a paced reader keeps up; called several times a second."""
        return NO_LOAD

    def take_rejected(self) -> list[Rejected]:
        """What was rejected since the last call, before the present offset.

        Called after each `read`, if the source's `on_error` is not "fail".
        """
        return []

    def watermark(self) -> int:
        """After a `read`, taken as a whole: later records have at least this time, or are late.

        In microseconds, as the source's `event_time` reads it; also called after a `read` that
        returned None. Default: no watermark.
        """
        return NO_WATERMARK

    def slowest_split(self) -> str | None:
        """Which part of what it reads determines its `watermark`, in words; None if it has no parts.

        For example "partition 3 of topic 'orders'": the run's page and a warning name it.
        """
        return None

    def stable(self, offset: Any) -> None:
        """Records before this offset are final: no failure will cause them to be read again."""

    def forget(self, offset: Any) -> None:
        """No `seek` will ever go before this offset: what is before it may be removed."""

    def close(self) -> None:
        """Close files and connections."""


class Source(ABC, Generic[T]):
    """Describes a source of records of type T; picklable. Opened once per shard, on its worker.

    >>> class Greetings(es.Source[str]):
    ...     max_shards = 1
    ...     def open(self, shard, shards):
    ...         return es.FromList(["hello", "hi"]).open(shard, shards)
    >>> es.Pipeline("greetings").source(Greetings()).collect().run().collected()
    ['hello', 'hi']
    """

    max_shards: int | None = None
    """How many shards can share this source; None for any number."""
    on_error: OnError = "fail"
    """What happens to input that cannot be parsed: "fail", "skip" or "dead_letter"."""
    exact_batches: bool = False
    """Whether reading again at an offset gives the very same batch, not only the same records."""
    event_time: TimeOf | None = None
    """Where its records have their time, if its readers report progress with `watermark`."""
    own_slots: int = 0
    """How many of Spark's slots the source itself needs during the run: no worker gets these."""
    needs_spark: bool = False
    """Whether the source reads from Spark, so that a run without Spark is refused."""
    replayable: bool = True
    """Whether records can be read again; a source that cannot must be wrapped in a journal."""

    @abstractmethod
    def open(self, shard: int, shards: int) -> Reader:
        """The reader for one shard. All shards together read every record exactly once."""

    def total_records(self) -> int | None:
        """The total number of records, if it is cheap to know: for the progress bar."""
        return None

    def tunable(self) -> dict[str, str]:
        """What can be changed while running: name -> initial value, as text."""
        return {}

    def as_source(self) -> "Source[T]":
        """The source a pipeline reads; raises a UserError for options that a source does not take."""
        return self

    def check(self) -> None:
        """Raise a UserError that explains the fix if this source cannot work (no such file)."""

    def describe_offsets(self) -> dict[str, Any]:
        """Describes what saved offsets belong to, as plain JSON without secrets.

        A later run resumes from a checkpoint only if this is unchanged: include the folder, table
        or address that is read. Default: the class.
        """
        return {"source": type(self).__name__}

    def redistribute(self, offsets: Sequence[Any], shards: int) -> Sequence[Any]:
        """Offsets for this many shards, which together resume where the given offsets stopped.

        `offsets` has the last one that each of the earlier shards reported, in their order,
        including shards that had nothing more to read. Records that none of them has read are read
        by exactly one of the new shards, and no others. Every new shard computes this separately,
        so the same offsets must give the same answer everywhere. Default: the number of shards
        cannot change.
        """
        if shards == len(offsets):
            return offsets
        raise UserError(
            f"{type(self).__name__} cannot be redistributed over {shards} shard(s) instead of "
            f"{len(offsets)}: it does not define Source.redistribute. Keep the number of shards."
        )

    def stopping_point(self) -> Any:
        """What there is to read now, for a run that ends when it has caught up.

        Called on the driver when the run starts. Return any value that pickles and is not None:
        readers receive it (`Reader.stop_at`). What arrives later is left for the next run.
        Default: a UserError, because a source without a stopping point might never catch up.
        """
        raise UserError(
            f"{type(self).__name__} does not know what there is to read now, so a run cannot end "
            "when it has caught up. Remove until='caught-up' (--until caught-up) and stop the run "
            "with timeout= (--timeout) instead."
        )

    def unread(self, offsets: Sequence[Any], point: Any) -> str | None:
        """What readers at these offsets have not read yet, in words; None if nothing.

        offsets: one per shard, in their order. point: a `stopping_point`. Called on the driver,
        before Spark starts, to find out whether there is anything to do. Default: not known.
        """
        return NOT_KNOWN

    def overlooked(self, offsets: Sequence[Any], point: Any) -> str | None:
        """What exists but no run that resumes from these offsets will read, in words, if anything."""
        return None

    def column_names(self) -> list[str] | None:
        """The columns of its rows, after `check`; None if it does not know, or has none."""
        return None

    def column_types(self) -> Mapping[str, Any] | None:
        """The Polars types of its columns, before anything runs; None if it does not know them."""
        return None

    def waits_for(self) -> str | None:
        """What is missing although the run can start, in words; shown when the run starts."""
        return None

    def before_run(self, pipeline: str, operator: str, store: str, resuming: bool) -> None:
        """Called on the driver before the source is sent to the workers.

        Use it to put into the store what the workers will read. `resuming`: the run resumes from a
        checkpoint, whose offsets must remain valid.
        """

    def after_run(self) -> None:
        """Called on the driver when the run has ended, in any way, if `before_run` was called."""
