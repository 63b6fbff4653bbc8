"""Sources that generate their records: ranges, lists, vectorised functions and generators.

All but generators cut the stream into blocks that the shards take in turn: block 0 to shard 0, block
1 to shard 1. Block and stride are part of the offset, so a later change of the batch size does not
move them. When the number of shards changes, the blocks that slower shards left behind are
redistributed, and from there on the shards take turns again.
"""

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import polars as pl

from everstream.connectors.options import at_least_one
from everstream.errors import UserError
from everstream.pipeline.batch import Batch, columns_of
from everstream.pipeline.source import END, EndOfStream, Reader, Source
from everstream.pipeline.types import Row, T, U
from everstream.state.saved import Saved


class Run(NamedTuple):
    """Blocks that start at `start` and every `stride` records from there, before `stop`."""

    start: int
    stride: int
    stop: int

    @property
    def blocks(self) -> int:
        return max(0, -(-(self.stop - self.start) // self.stride))


@dataclass(frozen=True)
class BlockOffset(Saved, word="block-offset"):
    """The next block starts at record `start`, has `block` records; the one after is `stride` on.

    The blocks in `left` start before it and come first: they are from an earlier number of shards.
    `rest` is what the stream's last block lacked when this shard read it: if a later run finds more
    records, these come first.
    """

    start: int
    block: int
    stride: int
    left: tuple[tuple[int, int, int], ...] = ()
    rest: tuple[int, int] | None = None

    def has_before(self, stop: int) -> bool:
        return bool(self.runs_before(stop)) or (self.rest is not None and self.rest[0] < stop)

    def runs_before(self, stop: int) -> list[Run]:
        """Everything to read of blocks that start before this record."""
        runs = [*map(Run._make, self.left), Run(self.start, self.stride, stop)]
        return [run._replace(stop=min(run.stop, stop)) for run in runs if run.start < stop]


def redistribute_blocks(offsets: Sequence[BlockOffset], shards: int) -> list[BlockOffset]:
    """The same blocks for this many shards: equal parts of those left behind, then in turn.

    Includes blocks past the end, because a later run may find more records there.
    """
    block = offsets[0].block
    furthest = max(offset.start for offset in offsets)
    left = sorted(run for offset in offsets for run in offset.runs_before(furthest))
    hands = _cut(left, shards)
    rest = next((offset.rest for offset in offsets if offset.rest is not None), None)
    return [
        BlockOffset(
            furthest + shard * block,
            block,
            shards * block,
            tuple((*run,) for run in hand),
            rest if shard == 0 else None,
        )
        for shard, hand in enumerate(hands)
    ]


def _cut(runs: Sequence[Run], shards: int) -> list[list[Run]]:
    """One after the other, cut into equal parts, with few cuts so that repeating it does no harm."""
    blocks, passed = sum(run.blocks for run in runs), 0
    hands: list[list[Run]] = [[] for _ in range(shards)]
    for run in runs:
        for shard, hand in enumerate(hands):
            first = max(blocks * shard // shards - passed, 0)
            last = min(blocks * (shard + 1) // shards - passed, run.blocks)
            if first < last:
                stop = min(run.start + last * run.stride, run.stop)
                hand.append(Run(run.start + first * run.stride, run.stride, stop))
        passed += run.blocks
    return hands


class BlockReader(Reader):
    """Makes the blocks of one shard, each when it is read."""

    def __init__(
        self, make: Callable[[int, int], Batch], total: int | None, offset: BlockOffset
    ) -> None:
        self._make = make
        self._total = total
        self.seek(offset)

    @property
    def offset(self) -> BlockOffset:
        return BlockOffset(self._start, self._block, self._stride, self._left, self._rest)

    def seek(self, offset: BlockOffset) -> None:
        self._start, self._block, self._stride = offset.start, offset.block, offset.stride
        self._left, self._rest = offset.left, offset.rest

    def read(self) -> Batch | EndOfStream | None:
        if self._rest is not None and self._total is not None and self._rest[0] < self._total:
            start, end = self._rest
            return self._made(start, min(end, self._total), end)
        start = min(self._left)[0] if self._left else self._start
        end = start + self._block
        stop = end if self._total is None else min(end, self._total)
        if start >= stop:
            return END
        batch = self._made(start, stop, end)
        if self._left:
            self._pass_left()
        else:
            self._start += self._stride
        return batch

    def _made(self, start: int, stop: int, end: int) -> Batch:
        """These records, of a block that ends at `end`."""
        batch = self._make(start, stop)
        if len(batch) != stop - start:
            raise UserError(
                f"make({start}, {stop}) must give {stop - start} records, but gave {len(batch)}."
            )
        if stop < end or (self._rest is not None and start == self._rest[0]):
            self._rest = (stop, end) if stop < end else None
        return batch

    def _pass_left(self) -> None:
        """Drop the first block left behind, which was read; they are in order, as their times may be."""
        (start, stride, stop), *others = sorted(self._left)
        rest = [(start + stride, stride, stop)] if start + stride < stop else []
        self._left = (*rest, *others)


ROWS_PER_BATCH = 65_536
OBJECTS_PER_BATCH = 4_096
LONGEST_WAIT_S = 0.05


class FromFunction(Source[T]):
    """Records from `make(start, stop)`, which returns the batch of records start to stop - 1.

    `make` must return the same records each time it is called for them. Endless if `total` is None.

    >>> squares = es.FromFunction(lambda start, stop: [n * n for n in range(start, stop)], 4)
    >>> es.Pipeline("squares").source(squares).collect().run().collected()
    [0, 1, 4, 9]
    """

    exact_batches = True

    @overload
    def __init__(
        self: "FromFunction[Row]",
        make: Callable[[int, int], pl.DataFrame],
        total: int | None = None,
        batch: int = ROWS_PER_BATCH,
    ) -> None: ...
    @overload
    def __init__(
        self: "FromFunction[U]",
        make: Callable[[int, int], list[U]],
        total: int | None = None,
        batch: int = ROWS_PER_BATCH,
    ) -> None: ...
    @overload
    def __init__(
        self,
        make: Callable[[int, int], Batch],
        total: int | None = None,
        batch: int = ROWS_PER_BATCH,
    ) -> None: ...
    def __init__(
        self,
        make: Callable[[int, int], Batch],
        total: int | None = None,
        batch: int = ROWS_PER_BATCH,
    ) -> None:
        at_least_one(batch=batch)
        if total is not None and total < 0:
            raise UserError(f"total must be 0 or more, not {total}; leave it out for no end.")
        self._make = make
        self._total = total
        self._batch = batch

    def open(self, shard: int, shards: int) -> Reader:
        offset = BlockOffset(shard * self._batch, self._batch, shards * self._batch)
        return BlockReader(self._make, self._total, offset)

    def redistribute(self, offsets: Sequence[BlockOffset], shards: int) -> Sequence[BlockOffset]:
        return redistribute_blocks(offsets, shards)

    def total_records(self) -> int | None:
        return self._total

    def stopping_point(self) -> int:
        if self._total is None:
            raise UserError(
                f"{type(self).__name__} is endless without total=, so a run never catches up with "
                "it. Give it a total, or stop the run with timeout= (--timeout)."
            )
        return self._total

    def unread(self, offsets: Sequence[BlockOffset], point: int) -> str | None:
        left = any(offset.has_before(point) for offset in offsets)
        return f"records before number {point}" if left else None


class Range(FromFunction[T]):
    """The whole numbers from start (default 0) to stop - 1.

    Python ints; with `column="n"`, rows of a DataFrame with that int64 column.

    >>> es.Pipeline("numbers").source(es.Range(3)).collect().run().collected()
    [0, 1, 2]
    >>> es.Pipeline("rows").source(es.Range(7, 9, column="n")).collect().run().collected()
    [{'n': 7}, {'n': 8}]
    """

    @overload
    def __init__(
        self: "Range[int]",
        start: int,
        stop: int | None = None,
        *,
        column: None = None,
        batch: int | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: "Range[Row]",
        start: int,
        stop: int | None = None,
        *,
        column: str,
        batch: int | None = None,
    ) -> None: ...
    def __init__(
        self,
        start: int,
        stop: int | None = None,
        *,
        column: str | None = None,
        batch: int | None = None,
    ) -> None:
        if stop is None:
            start, stop = 0, start
        if column is not None and (start < -(2**63) or stop > 2**63 - 1):
            raise UserError(f"Range({start}, {stop}) does not fit the int64 column '{column}'.")
        if batch is None:
            batch = OBJECTS_PER_BATCH if column is None else ROWS_PER_BATCH
        super().__init__(_Numbers(start, column), max(stop - start, 0), batch)
        self._column = column
        self._start = start

    def column_types(self) -> dict[str, Any] | None:
        return None if self._column is None else {self._column: pl.Int64()}

    def describe_offsets(self) -> dict[str, Any]:
        return {**super().describe_offsets(), "start": self._start}


@dataclass(frozen=True)
class _Numbers:
    first: int
    column: str | None

    def __call__(self, start: int, stop: int) -> Batch:
        first, last = self.first + start, self.first + stop
        if self.column is None:
            return list(range(first, last))
        return pl.select(pl.int_range(first, last, dtype=pl.Int64).alias(self.column))


class FromList(FromFunction[T]):
    """The records of a list, which travels with the pipeline: for tests and small inputs.

    Any other sequence is not copied: it is sliced where its records are read, so a sequence that
    reads its items from a file can be of any size.

    >>> es.Pipeline("words").source(es.FromList(["to", "be"])).collect().run().collected()
    ['to', 'be']
    """

    def __init__(self, records: Iterable[T], batch: int = OBJECTS_PER_BATCH) -> None:
        lazy = isinstance(records, Sequence) and not isinstance(records, list)
        kept: Sequence[T] = records if lazy else list(records)  # type: ignore[assignment]
        super().__init__(_Slice(kept), len(kept), batch)
        self._records = None if lazy else kept
        self._types: tuple[dict[str, Any] | None] | None = None

    def column_types(self) -> dict[str, Any] | None:
        """The types that hold all records, if these are rows and each column has one type."""
        if self._types is None:
            self._types = (self._found_types(),)
        return self._types[0]

    def _found_types(self) -> dict[str, Any] | None:
        rows = self._records
        if not rows or not all(isinstance(row, dict) for row in rows):
            return None
        try:
            return dict(columns_of(list(rows), "FromList").schema)
        except UserError:
            return None


@dataclass(frozen=True)
class _Slice:
    records: Sequence[Any]

    def __call__(self, start: int, stop: int) -> Batch:
        return list(self.records[start:stop])


class FromGenerator(Source[T]):
    """Records from a Python generator function that can resume.

    `function(offset)` is called with the number of records given so far and yields the rest.
    A function that takes `(offset, shard, shards)` can have many shards: it yields its shard's
    part, and offset counts that shard's records only. A batch is emitted when it is full or
    `wait_s` seconds old. The shard's checkpoints wait while the generator waits: yield often.

    >>> def countdown(offset):
    ...     for n in range(3 - offset, 0, -1):
    ...         yield n
    >>> es.Pipeline("down").source(es.FromGenerator(countdown)).collect().run().collected()
    [3, 2, 1]
    """

    def __init__(
        self,
        function: Callable[..., Iterable[T]],
        *,
        batch: int = OBJECTS_PER_BATCH,
        wait_s: float = LONGEST_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        at_least_one(batch=batch)
        self._function = function
        self._sharded = _takes_shards(function)
        self._batch = batch
        self._wait_s = wait_s
        self._clock = clock
        if not self._sharded:
            self.max_shards = 1

    def open(self, shard: int, shards: int) -> Reader:
        if shards > 1 and not self._sharded:
            raise UserError(
                f"FromGenerator cannot split '{_name(self._function)}' over {shards} shards, "
                "because the function takes only an offset. Use shards=1, or write it as "
                f"def {_name(self._function)}(offset, shard, shards)."
            )
        return _GeneratorReader(self, (shard, shards) if self._sharded else ())

    def stopping_point(self) -> str:
        """Each run reads what the function yields from its offset on, until it returns."""
        return "when the generator returns"

    def redistribute(self, offsets: Sequence[int], shards: int) -> Sequence[int]:
        if shards == len(offsets):
            return offsets
        name = _name(self._function)
        raise UserError(
            f"FromGenerator cannot change from {len(offsets)} shard(s) to {shards}: '{name}' "
            "divides its records by shard and shards, so it is unknown which of them are "
            "left. Keep the number of shards of this source, or write it as es.FromFunction, whose "
            "records are counted over all shards."
        )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _takes_shards(function: Callable[..., Any]) -> bool:
    """Whether the function takes (offset, shard, shards) rather than (offset)."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise UserError(
            "FromGenerator needs a function def numbers(offset): ... yield record, "
            f"not {_name(function)}."
        ) from error

    def accepts(*arguments: int) -> bool:
        try:
            signature.bind(*arguments)
        except TypeError:
            return False
        return True

    if accepts(0, 0, 1) and ("shards" in signature.parameters or not accepts(0)):
        return True
    if accepts(0):
        return False
    raise UserError(
        f"the generator function '{_name(function)}' must take (offset) or "
        f"(offset, shard, shards), not {signature}."
    )


class _GeneratorReader(Reader):
    def __init__(self, source: FromGenerator[Any], where: tuple[int, ...]) -> None:
        self._source = source
        self._where = where
        self._records: Iterator[Any] | None = None
        self._offset = 0

    @property
    def offset(self) -> int:
        return self._offset

    def seek(self, offset: int) -> None:
        self.close()
        self._offset = offset

    def read(self) -> Batch | EndOfStream | None:
        if self._records is None:
            self._records = self._start()
        records: list[Any] = []
        clock, most = self._source._clock, self._source._batch
        deadline_s = clock() + self._source._wait_s
        for record in self._records:
            records.append(record)
            if len(records) == most or clock() >= deadline_s:
                break
        self._offset += len(records)
        return records or END

    def close(self) -> None:
        stop = getattr(self._records, "close", None)
        self._records = None
        if stop is not None:
            stop()

    def _start(self) -> Iterator[Any]:
        function = self._source._function
        made = function(self._offset, *self._where)
        if not isinstance(made, Iterable):
            raise UserError(
                f"'{_name(function)}' must yield its records, but it returned "
                f"{type(made).__name__}. Write it as a generator function, with yield."
            )
        return iter(made)
