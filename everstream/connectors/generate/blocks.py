"""A stream cut into blocks, which shards take in turn: block 0 to shard 0, block 1 to shard 1.

Block and stride are part of the offset, so a later change of the batch size does not move them.
When the number of shards changes, the blocks that slower shards left behind are redistributed, and
from there on the shards take turns again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from everstream.errors import UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.source import END, EndOfStream, Reader
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
        """Whether there is anything to read before this record."""
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
