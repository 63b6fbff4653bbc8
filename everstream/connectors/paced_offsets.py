"""How far a paced source has come: in its load, in its source, and in the batch it was giving.

When the shards become more or fewer, what they owed together they go on owing together. A batch that
was given in part is finished by one shard, which reads it again as the shard that had begun it did;
the source itself goes on behind it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everstream.connectors.load import Load
from everstream.errors import UserError
from everstream.state.saved import Saved


@dataclass(frozen=True)
class Begun(Saved, word="paced-begun"):
    """A batch of which a shard had given `skip` records; `count` more of it are to be given."""

    shard: int
    shards: int
    inner: Any
    skip: int
    count: int


@dataclass(frozen=True)
class PacedOffset(Saved, word="paced-offset"):
    """`given` records were given since `start_s`: all before `inner`, and `skip` from there on."""

    start_s: float
    given: int
    inner: Any
    skip: int
    steady_s: float | None = None
    """The start by the steady clock `clock`, if that has a name."""
    clock: str = ""
    shift: float = 0.0
    """So many records of the load do not count: they were forfeited, or less than none: are owed."""
    forfeited: float = 0.0
    load: str | None = None
    """The load if it was changed while running, in the words of `Load.parse`."""
    version: int = 0
    """Of the settings that the load was changed by."""
    held: int | None = None
    """With `skip`: so many records of the batch are left, and `after` is where the next one starts."""
    after: Any = None
    begun: tuple[Begun, ...] = ()
    """Before all else: batches that were begun by an earlier number of shards."""
    ended: bool = False
    """The source has nothing more for this shard: what is due is not given, nor owed."""
    forgets: bool = True
    """Not if some shard has a batch to finish: nobody here knows when that is done."""


def respread_paced(
    offsets: Sequence[PacedOffset],
    shards: int,
    written: Load,
    respread: Callable[[Sequence[Any], int], Sequence[Any]],
) -> list[PacedOffset]:
    """Offsets for so many shards; `respread` is the source's own."""
    before = len(offsets)
    inner = respread([_behind(offset) for offset in offsets], shards)
    begun = [
        piece for number, offset in enumerate(offsets) for piece in _begun(offset, number, before)
    ]
    newest = max(offsets, key=lambda offset: (offset.version, -offset.start_s))
    load = _load_of(newest, written)
    living = [offset for offset in offsets if not offset.ended]
    reached_s = max((_reached_s(offset, before, written) for offset in living), default=0.0)
    reached_s = max(reached_s, newest.start_s)
    owed = sum(_owed(offset, before, written, reached_s) for offset in living)
    given, more = divmod(sum(offset.given for offset in offsets), shards)
    counted = (load.items(reached_s - newest.start_s) - owed) / shards
    forfeited = sum(offset.forfeited for offset in offsets) / shards
    return [
        replace(
            newest,
            given=given + (shard < more),
            shift=counted - given - (shard < more),
            forfeited=forfeited,
            inner=inner[shard],
            skip=0,
            held=None,
            after=None,
            begun=tuple(begun[shard::shards]),
            ended=False,
            forgets=not begun,
        )
        for shard in range(shards)
    ]


def _load_of(offset: PacedOffset, written: Load) -> Load:
    return written if offset.load is None else Load.parse(offset.load)


def _reached_s(offset: PacedOffset, shards: int, written: Load) -> float:
    """When the last record that was given was due, by the wall clock."""
    number = max(0.0, offset.given + offset.shift) * shards
    due_s = _load_of(offset, written).due_s(number)
    return offset.start_s + (due_s if due_s < float("inf") else 0.0)


def _owed(offset: PacedOffset, shards: int, written: Load, at_s: float) -> float:
    items = _load_of(offset, written).items(max(0.0, at_s - offset.start_s))
    return items / shards - offset.shift - offset.given


def _behind(offset: PacedOffset) -> Any:
    """Where the source goes on behind a batch that was begun."""
    if not offset.skip:
        return offset.inner
    if offset.held is None:
        raise UserError(
            "the checkpoint is of an Everstream that did not know yet how to give a paced source "
            "another number of shards. Go on with the number it had until a checkpoint is "
            "complete, then change it."
        )
    return offset.after


def _begun(offset: PacedOffset, shard: int, shards: int) -> list[Begun]:
    if not offset.skip:
        return list(offset.begun)
    return [*offset.begun, Begun(shard, shards, offset.inner, offset.skip, offset.held or 0)]
