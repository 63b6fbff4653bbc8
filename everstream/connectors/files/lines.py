"""Text files cut into byte ranges that many shards read in parallel, chunk by chunk.

A line belongs to the range that contains its first byte: the reader of that range follows it past
the end, and the reader of the next range skips to the first line that starts there. A chunk depends
only on its start position, so reading again from any offset gives the same chunks. Files are read
up to the size they had when they were listed: data appended later is not seen. Files that appear
later are read by a source that follows, and by the next run of a pipeline that ends when it has
caught up; each of them is read by one shard.

A chunk is parsed whole, because that is fast. Only if that fails is it parsed line by line, to
name the line at fault or, with `on_error`, to reject that line and keep the rest.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from everstream.connectors.files.filesystem import is_pattern
from everstream.connectors.files.parts import PENDING
from everstream.connectors.files.ranges import (
    ENDLESS,
    FileReader,
    LinesOffset,
    Split,
    Unpacked,
    codec_of,
    deal,
    falls_to,
    seen_by,
    seen_of,
)
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.rejects import OnError, Rejected
from everstream.pipeline.source import END, EndOfStream

UNREADABLE = (".xz", ".zip")
LONG_LINE_START_BYTES = 1_000
"""How many bytes are kept of a line that is too long."""


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one file, as bytes; only the last line of a file may lack its newline."""

    path: str
    position: int
    data: bytes
    long_bytes: int = 0
    """If not 0: this is one line of this many bytes, more than allowed, and `data` is its start."""


class LongLine(Exception):
    """A line longer than allowed: its start, and how many bytes it has."""

    def __init__(self, start: bytes, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.start = start
        self.size_bytes = size_bytes


def list_files(fs: Any, path: str) -> list[tuple[str, int]]:
    """The files of a path, folder or pattern, with their sizes, by name.

    A folder means the files directly in it whose names start with neither '_' nor '.'.
    """
    fs.invalidate_cache()
    if fs.isfile(path):
        return [(path, fs.info(path)["size"])]
    if is_pattern(path):
        entries = fs.glob(path, detail=True).values()
        files = [entry for entry in entries if f"/{PENDING}/" not in entry["name"]]
    elif fs.isdir(path):
        files = [
            entry
            for entry in fs.ls(path, detail=True)
            if entry["name"].rsplit("/", 1)[-1][:1] not in ("_", ".")
        ]
    else:
        files = []
    return sorted((entry["name"], entry["size"]) for entry in files if entry["type"] == "file")


Listing = Sequence[tuple[str, int]]
"""Files with their sizes, by name."""


def listing(fs: Any, path: str) -> Listing:
    """The same; a ConnectorError if the filesystem does not answer."""
    try:
        return list_files(fs, path)
    except OSError as error:
        raise ConnectorError(f"cannot list '{path}': {error}.") from error


@dataclass(frozen=True)
class Follower:
    """Finds files that appear later. Each belongs to the shard its name is assigned to."""

    fs: Any
    path: str
    shard: int
    shards: int
    follows: bool
    """Whether files that appear during the run are read, too."""
    listed: "Listing | None" = None
    """The files at the start of the run, if it ends when it has read them."""

    @property
    def looks(self) -> bool:
        return self.follows or self.listed is not None

    @property
    def ends(self) -> bool:
        """Whether the source ends once all files that were found have been read."""
        return not self.follows or self.listed is not None

    def extended(self, offset: LinesOffset) -> LinesOffset:
        """The offset with this shard's new files as its last splits, and finished splits removed.

        Empty files may still be being written, so they wait. A deleted file is forgotten, so the
        list of seen files is never larger than the folder.
        """
        if offset.seen is None:
            raise UserError(
                f"an earlier version of Everstream read '{self.path}' without recording which files "
                "there were, so new files cannot be recognized. Remove "
                "follow=True and until='caught-up', or start over with --fresh, which deletes the "
                "output."
            )
        listed = self.listed if self.listed is not None else listing(self.fs, self.path)
        mine = [
            Split.of(path, size)
            for path, size in listed
            if size and path not in offset.seen and falls_to(path, self.shards) == self.shard
        ]
        if not mine:
            return offset
        refuse_unreadable([split.path for split in mine])
        left = offset.splits[offset.index :]
        known = seen_by([offset]) or {}
        there = {path for path, _ in listed}
        seen = {path: size for path, size in known.items() if path in there}
        seen |= {split.path: split.file_bytes for split in (*left, *mine)}
        return LinesOffset((*left, *mine), 0, offset.position, seen)


class ChunkReader:
    """Reads the lines of a shard's splits as chunks of about `chunk_bytes`."""

    def __init__(
        self, fs: Any, offset: LinesOffset, chunk_bytes: int, follower: Follower, most_bytes: int
    ) -> None:
        """most_bytes: the longest line allowed; a longer one is never in memory as a whole."""
        self.fs = fs
        self.follower = follower
        self.most_bytes = most_bytes
        self._chunk_bytes = min(chunk_bytes, most_bytes)
        self._file: Any = None
        self._file_path = ""
        self._ahead_at = 0
        self._ahead = b""
        self.offset = offset

    def seek(self, offset: LinesOffset) -> None:
        self.offset = offset

    def read(self) -> list[Chunk]:
        """Chunks of about `chunk_bytes` together; none at the end. An error moves no offset."""
        offset, chunks, left = self.offset, list[Chunk](), self._chunk_bytes
        if offset.index == len(offset.splits) and self.follower.looks:
            offset = self.follower.extended(offset)
        while offset.index < len(offset.splits) and left > 0:
            split, position = offset.splits[offset.index], offset.place
            if position is None:
                position = self._first_line(split)
            if position < split.stop:
                try:
                    data = self._lines(split, position, left)
                except LongLine as long:
                    chunks.append(Chunk(split.path, position, long.start, long.size_bytes))
                    position += long.size_bytes
                    left = 0
                else:
                    if data:
                        chunks.append(Chunk(split.path, position, data))
                    # Without data a compressed file ends here.
                    position = position + len(data) if data else split.stop
                    left -= len(data)
            if position < split.stop:
                offset = replace(offset, position=position)
                break
            offset = offset.next_split()
        self.offset = offset
        return chunks

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._file_path, self._ahead = None, "", b""

    def _first_line(self, split: Split) -> int:
        """The position of the first line that starts in this split; `stop` if none does."""
        if split.start == 0:
            return 0
        position, last = split.start - 1, split.stop - 1
        while position < last:
            data = b"".join(self._pieces(split, position, min(position + self._chunk_bytes, last)))
            end = data.find(b"\n") + 1
            if end:
                self._ahead_at, self._ahead = position + end, data[end:]
                return position + end
            position += len(data)
        return split.stop

    def _lines(self, split: Split, position: int, limit_bytes: int) -> bytes:
        """Whole lines from `position`, at least one, none that starts at or after `stop`."""
        stop = min(position + limit_bytes, split.stop)
        ahead, data = self._pieces(split, position, stop)
        if stop < split.stop and (whole := data.rfind(b"\n") + 1):
            # The usual case, with a single copy.
            self._ahead_at, self._ahead = position + len(ahead) + whole, data[whole:]
            return b"".join((ahead, memoryview(data)[:whole]))
        data = ahead + data
        whole = data.rfind(b"\n") + 1
        if whole == len(data) or (whole and stop < split.stop):
            self._ahead_at, self._ahead = position + whole, data[whole:]
            return data[:whole]
        try:
            return data + self._line_end(split, position + len(data), len(data) - whole)
        except LongLine as long:
            if whole:  # the lines before it come first
                return data[:whole]
            raise LongLine(data[:LONG_LINE_START_BYTES], long.size_bytes) from None

    def _line_end(self, split: Split, position: int, known_bytes: int) -> bytes:
        """The bytes from `position` to the end of its line, of which `known_bytes` are known."""
        pieces: list[bytes] = []
        size_bytes = known_bytes
        file_stop = max(split.stop, split.file_bytes)
        while position < file_stop:
            stop = min(position + self._chunk_bytes, file_stop)
            data = b"".join(self._pieces(split, position, stop))
            if not data:
                break
            end = data.find(b"\n") + 1
            size_bytes += end or len(data)
            if size_bytes > self.most_bytes:
                pieces = []  # it is scanned to its end, but not kept
            else:
                pieces.append(data[:end] if end else data)
            if end:
                self._ahead_at, self._ahead = position + end, data[end:]
                break
            position += len(data)
        if size_bytes > self.most_bytes:
            raise LongLine(b"", size_bytes)
        return b"".join(pieces)

    def _pieces(self, split: Split, start: int, stop: int) -> tuple[bytes, bytes]:
        """These bytes in two pieces: what was read past the last line is not read again."""
        ahead = b""
        if self._file_path == split.path and self._ahead_at == start:
            ahead = self._ahead[: stop - start]
        begin = start + len(ahead)
        if begin == stop:
            return ahead, b""
        try:
            if self._file_path != split.path:
                self.close()
                self._file = self._opened(split)
                self._file_path = split.path
            self._file.seek(begin)
            data: bytes = self._file.read(stop - begin)
        except OSError as error:
            raise ConnectorError(
                f"cannot read '{split.path}' at byte {begin}: {error}. "
                "Restore the file, or start over with --fresh, which deletes the output."
            ) from error
        if len(data) < stop - begin and split.stop != ENDLESS:
            raise ConnectorError(
                f"'{split.path}' cannot be read at byte {begin + len(data)}: it is shorter than the "
                f"{split.file_bytes} bytes it had when the run began. "
                "Restore the file, or start over with --fresh, which deletes the output."
            )
        return ahead, data

    def _opened(self, split: Split) -> Any:
        codec = codec_of(split.path)
        if codec is None:
            return self.fs.open(split.path, "rb")
        size = self.fs.info(split.path)["size"]
        if size != split.file_bytes:
            raise OSError(f"it has {size} bytes; it had {split.file_bytes} when it was listed")
        return Unpacked(self.fs, split.path, codec)


class FileSet:
    """The files of a source: listed once, where the pipeline is checked, and pickled with it.

    Every shard must see the same files. If the folder changed while shards start, each would cut
    it differently.
    """

    def __init__(self, fs: Any, path: str, follow: bool = False) -> None:
        self.fs = fs
        self.path = path
        self.follow = follow
        self._files: list[tuple[str, int]] | None = None

    @property
    def listed(self) -> bool:
        return self._files is not None

    def exists(self) -> bool:
        return bool(list_files(self.fs, self.path))

    def refresh(self) -> None:
        """List the files now; a UserError if there are none and the source does not follow."""
        files = list_files(self.fs, self.path)
        if not files and not self.follow:
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

    def waits_for(self) -> str | None:
        """What a source that follows has not found; an empty folder is normal."""
        if not self.follow or self.exists() or self.fs.isdir(self.path):
            return None
        missing = "no file matches" if is_pattern(self.path) else "there is no"
        return (
            f"{missing} '{self.path}' yet: the run waits for it. If you did not intend that, check "
            "the path; relative paths start at the folder the program was started in"
        )

    def check(self) -> None:
        self.refresh()
        refuse_unreadable([name for name, _ in self.files])

    def first_offset(self, shard: int, shards: int, smallest_bytes: int) -> LinesOffset:
        """Where a shard begins; ranges are not smaller than `smallest_bytes`."""
        # Empty files may still be being written: they are read when they have content.
        files = [(path, size) for path, size in self.files if size]
        seen = seen_of(dict(files), shard, shards)
        return LinesOffset(deal(files, shards, smallest_bytes)[shard], seen=seen)

    def follower(self, shard: int, shards: int) -> Follower:
        return Follower(self.fs, self.path, shard, shards, self.follow)

    def stopping_point(self) -> Listing:
        return tuple(listing(self.fs, self.path))

    def unread(self, offsets: Sequence[LinesOffset], point: Listing) -> str | None:
        """Files that appeared later, or have not been read to their end."""
        known = seen_by(offsets)
        if known is None:  # saved by an earlier version, which kept all the files it began with
            known = dict.fromkeys(split.path for offset in offsets for split in offset.splits)
        left = {split.path for offset in offsets for split in offset.left()}
        return _named([p for p, size in point if size and (p in left or p not in known)], "new")

    def overlooked(self, offsets: Sequence[LinesOffset], point: Listing) -> str | None:
        """Files that have grown since they were listed: appended data is not read."""
        known = seen_by(offsets) or {}
        grown = [path for path, size in point if size > (known.get(path) or size)]
        return _named(grown, "grown since it was read, and what was appended is not read:")

    def reader(
        self,
        shard: int,
        shards: int,
        chunk_bytes: int,
        most_bytes: int,
        *,
        kind: type[ChunkReader] = ChunkReader,
        smallest_bytes: int = 0,
    ) -> ChunkReader:
        """smallest_bytes: ranges are not smaller than this, nor than a chunk."""
        refuse_unreadable([name for name, _ in self.files])
        offset = self.first_offset(shard, shards, max(smallest_bytes, chunk_bytes))
        return kind(self.fs, offset, chunk_bytes, self.follower(shard, shards), most_bytes)


def _named(paths: Sequence[str], what: str) -> str | None:
    if not paths:
        return None
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{what} '{paths[0]}'{more}"


def refuse_unreadable(names: Sequence[str]) -> None:
    for name in names:
        if name.endswith(UNREADABLE):
            raise UserError(
                f"'{name}' has a compression that Everstream cannot read. Unpack it first, or exclude "
                "it from the pattern."
            )


COUNT_LINES_UP_TO_BYTES = 64 << 20
"""Up to this byte, lines are also named by number; beyond it, counting takes too long."""
SHOWN_BYTES = 120


class LineCounter:
    """Finds the line of a byte in a file; continues from the last answer where it can."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs
        self._path, self._position, self._lines = "", 0, 0

    def describe(self, path: str, position: int) -> str:
        """`'file', line 3, byte 17`"""
        if position > COUNT_LINES_UP_TO_BYTES:
            return f"'{path}', byte {position}"
        if path != self._path or position < self._position:
            self._path, self._position, self._lines = path, 0, 0
        if position > self._position:
            between: bytes = self._fs.cat_file(path, self._position, position)
            self._position, self._lines = position, self._lines + between.count(10)
        return f"'{path}', line {self._lines + 1}, byte {position}"


class LinesReader(FileReader):
    """Reads chunks and parses them; a subclass defines how."""

    advice = "Correct or remove the line."

    def __init__(self, chunks: ChunkReader, on_error: OnError) -> None:
        super().__init__(on_error)
        self._chunks = chunks
        self._counter = LineCounter(chunks.fs)

    @abstractmethod
    def parse(self, chunks: list[Chunk]) -> Batch:
        """The records of these chunks; rejects broken lines with `self.broken`."""

    @property
    def offset(self) -> Any:
        return self._chunks.offset

    def seek(self, offset: Any) -> None:
        self._chunks.seek(offset)
        self._rejected = []

    def stop_at(self, point: Listing) -> None:
        self._chunks.follower = replace(self._chunks.follower, listed=point)

    def read(self) -> Batch | EndOfStream | None:
        before, known = self._chunks.offset, len(self._rejected)
        self._idle = False
        while chunks := self._chunks.read():
            try:
                batch = self._parsed(chunks)
            except ConnectorError:
                self._chunks.seek(before)
                del self._rejected[known:]
                raise
            if len(batch):
                return batch
            if len(self._rejected) > known:
                return None  # only broken lines: let them be counted before the next read
        self._idle = not self._chunks.follower.ends
        return None if self._idle else END

    def _parsed(self, chunks: list[Chunk]) -> Batch:
        whole = [chunk for chunk in chunks if not chunk.long_bytes]
        batch = self.parse(whole) if whole else []
        for chunk in chunks:
            if chunk.long_bytes:
                problem = (
                    f"the line has {chunk.long_bytes:,} bytes, more than "
                    f"max_record_bytes={self._chunks.most_bytes:,}; only its start is kept."
                )
                self.broken(chunk.path, chunk.position, chunk.data, problem)
        return batch

    def close(self) -> None:
        self._chunks.close()

    def broken(self, path: str, position: int, line: bytes, problem: str) -> None:
        """Reject the line that starts at this byte, or raise the error that names it."""
        place = self._counter.describe(path, position)
        if self._on_error == "fail":
            shown = line[:SHOWN_BYTES].decode(errors="replace").rstrip("\r\n")
            raise ConnectorError(
                f"{place}: {problem}\n  line: {shown}\n{self.advice} "
                "To leave such lines out, use on_error='skip' or 'dead_letter'."
            )
        text = line.decode(errors="replace").rstrip("\r\n")
        self._rejected.append(Rejected(text, problem, place))


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their ends; bytes.splitlines would also cut at a lone \\r."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines
