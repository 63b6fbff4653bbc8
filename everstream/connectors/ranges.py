"""Which byte ranges of which files a shard reads, and how far it has come in them.

When the shards become more or fewer, the ranges that are left are dealt out anew; one that was begun
goes to one shard, with the place it was read to.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest

from everstream.connectors.compressed import ENDLESS, codec_of
from everstream.state.saved import Saved

LARGEST_SPLIT_BYTES = 64 << 20
SPLITS_PER_SHARD = 4


@dataclass(frozen=True)
class Split(Saved, word="file-range"):
    """A byte range of one file, and the size of the whole file when it was listed.

    The range of a compressed file counts the bytes it holds, its size those it has.
    """

    path: str
    start: int
    stop: int
    file_bytes: int
    resumes_at: int | None = None
    """Where to go on, if another shard has begun with it."""

    @property
    def left_bytes(self) -> int:
        """About how much there is to read."""
        return min(self.stop - self.start, self.file_bytes)


@dataclass(frozen=True)
class LinesOffset(Saved, word="files-offset"):
    """A shard's splits, which of them is being read, and where in it the next line starts.

    `position` is None while that split has not been begun. `seen` are the files that a source
    that follows need not take up any more: those it began with, and this shard's own since.
    """

    splits: tuple[Split, ...]
    index: int = 0
    position: int | None = None
    seen: frozenset[str] | None = None

    def next_split(self) -> "LinesOffset":
        return replace(self, index=self.index + 1, position=None)

    @property
    def place(self) -> int | None:
        """Where in the split to go on; None if nobody has begun it."""
        return self.position if self.position is not None else self.splits[self.index].resumes_at

    def left(self) -> list[Split]:
        """The splits from here on, each with its place."""
        splits = list(self.splits[self.index :])
        if splits:
            splits[0] = replace(splits[0], resumes_at=self.place)
        return splits


def deal(
    files: Sequence[tuple[str, int]], shards: int, smallest_bytes: int
) -> list[tuple[Split, ...]]:
    """Cut the files into ranges; each next range goes to the shard with the fewest bytes yet."""
    total_bytes = sum(size for _, size in files)
    wanted = -(-total_bytes // (shards * SPLITS_PER_SHARD))
    split_bytes = max(smallest_bytes, min(wanted, LARGEST_SPLIT_BYTES))
    splits = list[Split]()
    for path, size in files:
        if size and codec_of(path):
            splits.append(Split(path, 0, ENDLESS, size))
        else:
            splits += _cut(Split(path, 0, size, size), split_bytes)
    return _dealt(splits, shards)


def _cut(split: Split, split_bytes: int) -> list[Split]:
    """Ranges of about equal size, none larger than this."""
    size = split.stop - split.start
    pieces = -(-size // split_bytes)
    bounds = [split.start + size * piece // pieces for piece in range(pieces + 1)] if pieces else []
    return [replace(split, start=start, stop=stop) for start, stop in pairwise(bounds)]


def _dealt(splits: Iterable[Split], shards: int) -> list[tuple[Split, ...]]:
    hands: list[list[Split]] = [[] for _ in range(shards)]
    loads = [(0, shard) for shard in range(shards)]
    for split in splits:
        load, shard = heapq.heappop(loads)
        hands[shard].append(split)
        heapq.heappush(loads, (load + split.left_bytes, shard))
    return [tuple(hand) for hand in hands]


def respread_splits(
    offsets: Sequence[LinesOffset], shards: int, smallest_bytes: int | None
) -> list[LinesOffset]:
    """What is left to read for so many shards, as it would have come: the next of each, and so on.

    Ranges that nobody has begun are cut further if there are few of them, but not smaller than
    this; None if they must stay as they are.
    """
    turns = zip_longest(*(offset.left() for offset in offsets))
    splits = [split for turn in turns for split in turn if split is not None]
    if smallest_bytes is not None:
        wanted = -(-sum(split.left_bytes for split in splits) // (shards * SPLITS_PER_SHARD))
        split_bytes = max(smallest_bytes, wanted)
        splits = [
            piece
            for split in splits
            for piece in (_cut(split, split_bytes) if _can_be_cut(split) else [split])
        ]
    known = [offset.seen for offset in offsets if offset.seen is not None]
    seen = frozenset[str]().union(*known) if known else None
    return [LinesOffset(hand, seen=seen) for hand in _dealt(splits, shards)]


def _can_be_cut(split: Split) -> bool:
    return split.resumes_at is None and split.stop != ENDLESS
