"""Where records come from: the interface every source fills.

A source is replayable: it can be reopened at any offset it has reported and then gives the same
records again. One `Reader` serves one shard. The engine saves `reader.offset` with each
checkpoint and hands it back through `seek` after a failure; nothing else is remembered, so the
offset must hold all that is needed to go on (also which files belong to this shard).
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
"""What `Reader.read` returns when the source has nothing more: ever, or up to its stopping point."""


NOT_KNOWN: Final = "what it has is not known before it is read"
"""What `Source.unread` returns if only reading shows whether there is anything."""


@dataclass(frozen=True)
class LoadSeen:
    """How a source keeps up with what it is to give."""

    target_per_s: float = 0.0
    """0 if it gives what it can."""
    behind: float = 0.0
    """Records that are due and not given yet."""
    forfeited: float = 0.0
    """Records whose time has passed and that are not made up for."""


NO_LOAD = LoadSeen()


class Reader(ABC):
    """One shard's view of a source."""

    @property
    @abstractmethod
    def offset(self) -> Any:
        """Where the next `read` starts; a value that pickles and is never changed in place."""

    @abstractmethod
    def seek(self, offset: Any) -> None:
        """Go to an offset that was reported earlier, by this or another process."""

    def fence(self, generation: int) -> None:
        """Called once, before the first `read`: which generation of the shard this is.

        For readers that write, as a journal does: one of a lower generation is a zombie.
        """

    @abstractmethod
    def read(self) -> Batch | EndOfStream | None:
        """The next batch; None if there is nothing just now; END if there never will be.

        Must not block for long: the shard's checkpoints wait for it.
        """

    def ready_in_s(self) -> float:
        """After a `read` that returned None: how long the engine may wait before it asks again."""
        return 0.05

    def stop_at(self, point: Any) -> None:
        """Called once, before `seek` and `read`: give what there was at this point, then return END.

        The point is a `Source.stopping_point`; a later run goes on from `offset` with another one.
        Only called if the run ends when it has caught up. As given here: for readers that return
        END once they have given everything, and find what is new when they are opened again.
        """

    def keep_time(self, wall_s: Callable[[], float], steady_s: Callable[[], float]) -> None:
        """Called once, before `seek` and `read`: the engine's clocks, which may be virtual.

        `wall_s` is seconds since 1970, `steady_s` never goes back nor jumps. For readers that
        depend on the time.
        """

    def use_store(self, store: str) -> None:
        """Called once, before `seek` and `read`: where the run's store is.

        For readers that keep files of their own, which must be signed if the store is.
        """

    def tune(self, settings: Mapping[str, str], version: int) -> None:
        """These settings of `Source.tunable` have been changed, at last by change number `version`.

        Also called after `seek`: whether a change is in the offset already is for the offset to say.
        """

    def born_s(self) -> float:
        """After a `read`: when its records came in, by the wall clock; 0 for just now."""
        return 0.0

    def load(self) -> LoadSeen:
        """How a paced reader keeps up; asked for several times a second."""
        return NO_LOAD

    def take_rejected(self) -> list[Rejected]:
        """What was left out since the last call, before the present offset.

        Asked for after each `read`, if the source's `on_error` is not "fail".
        """
        return []

    def watermark(self) -> int:
        """After a `read`, given as a whole: later records have at least this time, or are late.

        In microseconds, as the source's `event_time` reads it; also asked for after a `read` that
        returned None. As given here: nothing is promised.
        """
        return NO_WATERMARK

    def stable(self, offset: Any) -> None:
        """What lies before this offset was read for good: no failure will have it read again."""

    def forget(self, offset: Any) -> None:
        """Nobody will ever seek an offset before this one: what lies there may be removed."""

    def close(self) -> None:
        """Let go of files and connections."""


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
    """What happens to input that cannot be parsed."""
    exact_batches: bool = False
    """Whether reading again at an offset gives the very same batch, not only the same records."""
    event_time: TimeOf | None = None
    """Where its records have their time, if its readers tell with `watermark` how far it has come."""
    own_slots: int = 0
    """How many of Spark's slots its own work needs while the run goes on: no worker gets these."""
    replayable: bool = True
    """Whether records can be had again; one that is not must be wrapped in a journal."""

    @abstractmethod
    def open(self, shard: int, shards: int) -> Reader:
        """The reader for one shard. All shards together give every record exactly once."""

    def total_records(self) -> int | None:
        """How many records there are in all, if that is cheap to know: for the progress bar."""
        return None

    def tunable(self) -> dict[str, str]:
        """What can be changed while running, by name, with the values it was made with, in words."""
        return {}

    def as_source(self) -> "Source[T]":
        """What a pipeline reads from; raises a UserError for options that a source does not take."""
        return self

    def check(self) -> None:
        """Raise a UserError that says what to fix if this source cannot work (no such file)."""

    def describe_offsets(self) -> dict[str, Any]:
        """What offsets that are saved here belong to, as plain JSON, without any secret.

        A later run goes on from a checkpoint only if this is still the same: say here which
        folder, table or address is read. As given here: the class.
        """
        return {"source": type(self).__name__}

    def redistribute(self, offsets: Sequence[Any], shards: int) -> Sequence[Any]:
        """Offsets for so many shards, which together go on where those at these offsets stopped.

        One offset was last reported by each of the earlier shards, in their order, also by those
        that had nothing more. Whatever none of them has given is given by one of the new shards, and
        nothing else. Every new shard works this out by itself, so the same offsets give the same
        answer everywhere. As given here: the number of shards cannot change.
        """
        if shards == len(offsets):
            return offsets
        raise UserError(
            f"{type(self).__name__} cannot be spread over {shards} shard(s) instead of "
            f"{len(offsets)}: it does not say how (Source.redistribute). Keep the number of shards."
        )

    def stopping_point(self) -> Any:
        """What there is to read now, for a run that ends when it has caught up.

        Called on the driver when the run starts. Any value that pickles and is not None: readers
        are given it (`Reader.stop_at`). What arrives later is left for the next run. As given here:
        a UserError, because a source that does not say what there is might never catch up.
        """
        raise UserError(
            f"{type(self).__name__} cannot tell what there is to read now, so a run cannot end when "
            "it has caught up with it. Leave out until='caught-up' (--until caught-up) and stop the "
            "run with timeout= (--timeout) instead."
        )

    def unread(self, offsets: Sequence[Any], point: Any) -> str | None:
        """What readers at these offsets have not read of what there is, in words; None if nothing.

        offsets: one per shard, in their order. point: a `stopping_point`. Asked on the driver, before
        Spark starts, to find out whether there is anything to do. As given here: perhaps.
        """
        return NOT_KNOWN

    def overlooked(self, offsets: Sequence[Any], point: Any) -> str | None:
        """What is there that no run will read that goes on from these offsets, in words, if anything."""
        return None

    def column_names(self) -> list[str] | None:
        """The columns of its rows, once it was checked; None if it does not know, or has none."""
        return None

    def waits_for(self) -> str | None:
        """What is not there yet although the run can begin, in words; shown when it does."""
        return None

    def before_run(self, pipeline: str, operator: str, store: str, resuming: bool) -> None:
        """Called on the driver before the source is sent to the workers.

        A chance to put into the store what the workers will read. `resuming`: the run goes on from
        a checkpoint, whose offsets must stay good.
        """

    def after_run(self) -> None:
        """Called on the driver when the run is over, however it ended, if `before_run` was called."""
