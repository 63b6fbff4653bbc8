"""Which byte ranges of which files a shard reads, and its position in them.

When the number of shards changes, the remaining ranges are redistributed. A range that was begun
goes to one shard, with the position reached. `FileReader` is what all readers of them share.

A compressed file (gzip, Zstandard, bzip2, lz4, by its ending) is unpacked while it is read. Reading
cannot start in the middle of one, so it is one range, whose end is known only when it is reached.
"""

import heapq
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any, Final

import pyarrow as pa

from everstream.pipeline.rejects import OnError, Rejected
from everstream.pipeline.source import Reader
from everstream.pipeline.types import T
from everstream.state.saved import Saved

CODECS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
ENDLESS: Final = 1 << 62
"""The end of the range of a compressed file, which is not known before it was read."""
SKIP_BYTES: Final = 1 << 20


def codec_of(path: str) -> str | None:
    return next((codec for ending, codec in CODECS.items() if path.endswith(ending)), None)


def start_of(fs: Any, path: str, count: int) -> bytes:
    codec = codec_of(path)
    if codec is None:
        return bytes(fs.cat_file(path, 0, count))
    file = Unpacked(fs, path, codec)
    try:
        return file.read(count)
    finally:
        file.close()


class Unpacked:
    """The unpacked bytes of a compressed file. Seeking backwards starts again from the beginning."""

    def __init__(self, fs: Any, path: str, codec: str) -> None:
        self._fs = fs
        self._path = path
        self._codec = codec
        self._open()

    def seek(self, position: int) -> None:
        if position < self._position:
            self.close()
            self._open()
        while self._position < position:
            if not self.read(min(SKIP_BYTES, position - self._position)):
                raise OSError(f"it ends after {self._position} bytes, unpacked")

    def read(self, count: int) -> bytes:
        """This many bytes; fewer only at the end. Raises an OSError if the file is damaged."""
        pieces = []
        try:
            while count > 0 and (data := self._stream.read(count)):
                pieces.append(data)
                count -= len(data)
                self._position += len(data)
        except pa.ArrowException as error:
            raise OSError(f"it cannot be unpacked: {error}") from error
        return b"".join(pieces)

    def close(self) -> None:
        self._stream.close()
        self._file.close()

    def _open(self) -> None:
        self._file = self._fs.open(self._path, "rb")
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._file, mode="r"), self._codec)
        self._position = 0


LARGEST_SPLIT_BYTES = 64 << 20
SPLITS_PER_SHARD = 4


@dataclass(frozen=True)
class Split(Saved, word="file-range"):
    """A byte range of one file, and the size of the whole file when it was listed.

    For a compressed file the range counts unpacked bytes, and the size packed ones.
    """

    path: str
    start: int
    stop: int
    file_bytes: int
    resumes_at: int | None = None
    """Where to resume, if another shard has begun it."""

    @staticmethod
    def of(path: str, size: int) -> "Split":
        return Split(path, 0, ENDLESS if codec_of(path) else size, size)

    @property
    def left_bytes(self) -> int:
        """Approximately how many bytes are left to read."""
        return min(self.stop - self.start, self.file_bytes)


@dataclass(frozen=True)
class LinesOffset(Saved, word="files-offset"):
    """A shard's splits, which of them is being read, and where in it the next line starts.

    `position` is None while that split has not been begun. `seen` maps files that need no further
    attention to the sizes they had: of the files the source began with and those that came later,
    the ones assigned to this shard by name. Earlier versions saved all the files the source began
    with, without sizes, and None for a source that does not follow.
    """

    splits: tuple[Split, ...]
    index: int = 0
    position: int | None = None
    seen: Mapping[str, int | None] | frozenset[str] | None = None

    def next_split(self) -> "LinesOffset":
        return replace(self, index=self.index + 1, position=None)

    @property
    def place(self) -> int | None:
        """Where in the split to resume; None if it has not been begun."""
        return self.position if self.position is not None else self.splits[self.index].resumes_at

    def left(self) -> list[Split]:
        splits = list(self.splits[self.index :])
        if splits:
            splits[0] = replace(splits[0], resumes_at=self.place)
        return splits


def deal(
    files: Sequence[tuple[str, int]], shards: int, smallest_bytes: int
) -> list[tuple[Split, ...]]:
    """Cut the files into ranges; each next range goes to the shard with the fewest bytes so far."""
    total_bytes = sum(size for _, size in files)
    wanted = -(-total_bytes // (shards * SPLITS_PER_SHARD))
    split_bytes = max(smallest_bytes, min(wanted, LARGEST_SPLIT_BYTES))
    whole = [Split.of(path, size) for path, size in files if size]
    splits = [piece for split in whole for piece in _cut(split, split_bytes)]
    return deal_by_size(splits, shards, lambda split: split.left_bytes)


def _cut(split: Split, split_bytes: int) -> list[Split]:
    """Ranges of about equal size, none larger than this; one that was begun stays whole."""
    if split.resumes_at is not None or split.stop == ENDLESS:
        return [split]
    size = split.stop - split.start
    pieces = -(-size // split_bytes)
    bounds = [split.start + size * piece // pieces for piece in range(pieces + 1)] if pieces else []
    return [replace(split, start=start, stop=stop) for start, stop in pairwise(bounds)]


def deal_by_size(
    items: Iterable[T], shards: int, size_bytes: Callable[[T], int]
) -> list[tuple[T, ...]]:
    """Each next item goes to the shard with the fewest bytes so far."""
    hands: list[list[T]] = [[] for _ in range(shards)]
    loads = [(0, shard) for shard in range(shards)]
    for item in items:
        load, shard = heapq.heappop(loads)
        hands[shard].append(item)
        heapq.heappush(loads, (load + size_bytes(item), shard))
    return [tuple(hand) for hand in hands]


def redistribute_splits(
    offsets: Sequence[LinesOffset], shards: int, smallest_bytes: int | None
) -> list[LinesOffset]:
    """The remaining ranges for this many shards, in the order in which they would have been read.

    If there are few ranges, those not begun are cut further, but not smaller than `smallest_bytes`;
    None if they must stay as they are.
    """
    turns = zip_longest(*(offset.left() for offset in offsets))
    splits = [split for turn in turns for split in turn if split is not None]
    if smallest_bytes is not None:
        wanted = -(-sum(split.left_bytes for split in splits) // (shards * SPLITS_PER_SHARD))
        split_bytes = max(smallest_bytes, wanted)
        splits = [piece for split in splits for piece in _cut(split, split_bytes)]
    seen = seen_by(offsets)
    return [
        LinesOffset(hand, seen=None if seen is None else seen_of(seen, shard, shards))
        for shard, hand in enumerate(deal_by_size(splits, shards, lambda split: split.left_bytes))
    ]


def seen_by(offsets: Iterable[LinesOffset]) -> dict[str, int | None] | None:
    """The files that any of these shards has seen; None if one of them did not record them."""
    seen = dict[str, int | None]()
    for offset in offsets:
        if offset.seen is None:
            return None
        sizes = offset.seen if isinstance(offset.seen, Mapping) else dict.fromkeys(offset.seen)
        seen.update({path: size for path, size in sizes.items() if seen.get(path) is None})
    return seen


def seen_of(files: Mapping[str, int | None], shard: int, shards: int) -> dict[str, int | None]:
    """Those of these files that would be assigned to this shard if they came later."""
    return {path: size for path, size in files.items() if falls_to(path, shards) == shard}


def falls_to(path: str, shards: int) -> int:
    return zlib.crc32(path.encode()) % shards


LOOK_FOR_FILES_EVERY_S = 1.0


class FileReader(Reader):
    """Keeps rejected input until it is taken, and knows when there is nothing to read yet."""

    def __init__(self, on_error: OnError) -> None:
        self._on_error = on_error
        self._rejected: list[Rejected] = []
        self._idle = False
        """Whether all present files have been read, and more may come."""

    def ready_in_s(self) -> float:
        return LOOK_FOR_FILES_EVERY_S if self._idle else 0.0

    def take_rejected(self) -> list[Rejected]:
        rejected, self._rejected = self._rejected, []
        return rejected
