"""Text files cut into byte ranges that many shards read side by side, chunk by chunk.

A line belongs to the range its first byte lies in; the reader of that range follows it past the
end, and the reader of the next range skips to the first line that starts there. A chunk depends
only on the position it starts at, so reading again from any offset gives the same chunks. Files
are read up to the size they had when they were listed: what is appended later is not seen.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from everstream.connectors.files import is_pattern
from everstream.connectors.parts import PENDING
from everstream.errors import ConnectorError, UserError

LARGEST_SPLIT_BYTES = 64 << 20
SPLITS_PER_SHARD = 4
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")


@dataclass(frozen=True)
class Split:
    """A byte range of one file, and the size of the whole file when it was listed."""

    path: str
    start: int
    stop: int
    file_bytes: int


@dataclass(frozen=True)
class LinesOffset:
    """A shard's splits, which of them is being read, and where in it the next line starts.

    `position` is None while that split has not been begun.
    """

    splits: tuple[Split, ...]
    index: int = 0
    position: int | None = None


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one file, as bytes; only the last line of a file may lack its newline."""

    path: str
    position: int
    data: bytes


def list_files(fs: Any, path: str) -> list[tuple[str, int]]:
    """The files a path, folder or pattern stands for, with their sizes, by name.

    A folder stands for the files directly in it whose names start with neither '_' nor '.'.
    """
    fs.invalidate_cache()
    if fs.isfile(path):
        return [(path, fs.info(path)["size"])]
    if is_pattern(path):
        found = fs.glob(path, detail=True).values()
        files = [entry for entry in found if f"/{PENDING}/" not in entry["name"]]
    elif fs.isdir(path):
        files = [
            entry
            for entry in fs.ls(path, detail=True)
            if entry["name"].rsplit("/", 1)[-1][:1] not in ("_", ".")
        ]
    else:
        files = []
    return sorted((entry["name"], entry["size"]) for entry in files if entry["type"] == "file")


def deal(
    files: Sequence[tuple[str, int]], shards: int, smallest_bytes: int
) -> list[tuple[Split, ...]]:
    """Cut the files into ranges; each next range goes to the shard with the fewest bytes yet."""
    total_bytes = sum(size for _, size in files)
    wanted = -(-total_bytes // (shards * SPLITS_PER_SHARD))
    split_bytes = max(smallest_bytes, min(wanted, LARGEST_SPLIT_BYTES))
    hands: list[list[Split]] = [[] for _ in range(shards)]
    loads = [(0, shard) for shard in range(shards)]
    for path, size in files:
        pieces = -(-size // split_bytes)
        for piece in range(pieces):
            start, stop = size * piece // pieces, size * (piece + 1) // pieces
            load, shard = heapq.heappop(loads)
            hands[shard].append(Split(path, start, stop, size))
            heapq.heappush(loads, (load + stop - start, shard))
    return [tuple(hand) for hand in hands]


class ChunkReader:
    """Reads the lines of a shard's splits as chunks of about `chunk_bytes`."""

    def __init__(self, fs: Any, splits: tuple[Split, ...], chunk_bytes: int) -> None:
        self.fs = fs
        self._chunk_bytes = chunk_bytes
        self._file: Any = None
        self._file_path = ""
        self._ahead_at = 0
        self._ahead = b""
        self.offset = LinesOffset(splits)

    def seek(self, offset: LinesOffset) -> None:
        self.offset = offset

    def read(self) -> list[Chunk]:
        """Chunks of about `chunk_bytes` together, from several splits if they are small.

        Empty at the end. If a file cannot be read, the offset stays where it was.
        """
        offset, chunks, left = self.offset, list[Chunk](), self._chunk_bytes
        while offset.index < len(offset.splits) and left > 0:
            split = offset.splits[offset.index]
            position = offset.position
            if position is None:
                position = self._first_line(split)
            if position < split.stop:
                data = self._lines(split, position, left)
                chunks.append(Chunk(split.path, position, data))
                position += len(data)
                left -= len(data)
            if position < split.stop:
                offset = replace(offset, position=position)
                break
            offset = LinesOffset(offset.splits, offset.index + 1)
        self.offset = offset
        return chunks

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._file_path, self._ahead = None, "", b""

    def _first_line(self, split: Split) -> int:
        """Where the first line that starts in this split starts; `stop` if none does."""
        if split.start == 0:
            return 0
        position, last = split.start - 1, split.stop - 1
        while position < last:
            data = self._bytes(split, position, min(position + self._chunk_bytes, last))
            found = data.find(b"\n") + 1
            if found:
                self._ahead_at, self._ahead = position + found, data[found:]
                return position + found
            position += len(data)
        return split.stop

    def _lines(self, split: Split, position: int, limit_bytes: int) -> bytes:
        """Whole lines from `position`, at least one, none that starts at or after `stop`."""
        stop = min(position + limit_bytes, split.stop)
        data = self._bytes(split, position, stop)
        whole = data.rfind(b"\n") + 1
        if whole == len(data) or (whole and stop < split.stop):
            self._ahead_at, self._ahead = position + whole, data[whole:]
            return data[:whole]
        return data + self._line_end(split, stop)

    def _line_end(self, split: Split, position: int) -> bytes:
        """The bytes from `position` to the end of its line."""
        pieces = []
        while position < split.file_bytes:
            stop = min(position + self._chunk_bytes, split.file_bytes)
            data = self._bytes(split, position, stop)
            end = data.find(b"\n") + 1
            if end:
                pieces.append(data[:end])
                self._ahead_at, self._ahead = position + end, data[end:]
                break
            pieces.append(data)
            position = stop
        return b"".join(pieces)

    def _bytes(self, split: Split, start: int, stop: int) -> bytes:
        """These bytes of the file; what was read past the last line is not read again."""
        ahead = b""
        if self._file_path == split.path and self._ahead_at == start:
            ahead = self._ahead[: stop - start]
        begin = start + len(ahead)
        if begin == stop:
            return ahead
        try:
            if self._file_path != split.path:
                self.close()
                self._file = self.fs.open(split.path, "rb")
                self._file_path = split.path
            self._file.seek(begin)
            data: bytes = self._file.read(stop - begin)
        except OSError as error:
            raise ConnectorError(
                f"cannot read '{split.path}' at byte {begin}: {error}. "
                "Put the file back, or start from nothing with --fresh."
            ) from error
        if len(data) < stop - begin:
            raise ConnectorError(
                f"'{split.path}' cannot be read at byte {begin + len(data)}: it is shorter than the "
                f"{split.file_bytes} bytes it had when the run began. "
                "Put the file back, or start from nothing with --fresh."
            )
        return ahead + data


class FileSet:
    """The files of a source: found once, where the pipeline is checked, and pickled with it.

    Every shard must see the same files; a folder that changes while shards start would
    otherwise be cut differently by each.
    """

    def __init__(self, fs: Any, path: str) -> None:
        self.fs = fs
        self.path = path
        self._files: list[tuple[str, int]] | None = None

    @property
    def listed(self) -> bool:
        return self._files is not None

    def exists(self) -> bool:
        return bool(list_files(self.fs, self.path))

    def refresh(self) -> None:
        """List the files now; a UserError if there are none."""
        files = list_files(self.fs, self.path)
        if not files:
            raise UserError(
                f"nothing to read: no file matches '{self.path}'. "
                "Check the path; relative paths start at the folder the program was started in."
            )
        self._files = files

    @property
    def files(self) -> list[tuple[str, int]]:
        if self._files is None:
            self.refresh()
        return self._files or []

    def check(self) -> None:
        """List the files now; a UserError if they cannot be read as lines."""
        self.refresh()
        self._refuse_compressed()

    def reader(self, shard: int, shards: int, chunk_bytes: int) -> ChunkReader:
        self._refuse_compressed()
        return ChunkReader(self.fs, deal(self.files, shards, chunk_bytes)[shard], chunk_bytes)

    def _refuse_compressed(self) -> None:
        for name, _ in self.files:
            if name.endswith(COMPRESSED):
                raise UserError(
                    f"'{name}' is compressed, and compressed files cannot be read from the middle. "
                    "Unpack it first, or leave it out of the pattern."
                )
