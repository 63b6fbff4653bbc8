"""What all sources of text files share: chunks of lines in, batches out, broken lines rejected.

A chunk is parsed whole, because that is fast. Only if that fails is it parsed line by line, to
name the line at fault or, with `on_error`, to reject that line and keep the rest.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Any

from everstream.connectors.files.ranges import FileReader
from everstream.connectors.files.splits import Chunk, ChunkReader, Listing
from everstream.errors import ConnectorError
from everstream.pipeline.batch import Batch
from everstream.pipeline.rejects import OnError, Rejected
from everstream.pipeline.source import END, EndOfStream

COUNT_LINES_UP_TO_BYTES = 64 << 20
"""Up to this byte, lines are also named by number; beyond it, counting takes too long."""
SHOWN_BYTES = 120


class BrokenLine(Exception):
    """A line that cannot be parsed: where it starts, its bytes, and what is wrong with it."""

    def __init__(self, position: int, line: bytes, problem: str) -> None:
        super().__init__(problem)
        self.position = position
        self.line = line
        self.problem = problem


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
        assert self._chunks.follower is not None
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
        if self._chunks.follower is None or self._chunks.follower.ends:
            return END
        self._idle = True
        return None

    def _parsed(self, chunks: list[Chunk]) -> Batch:
        whole = [chunk for chunk in chunks if not chunk.long_bytes]
        batch = self.parse(whole) if whole else []
        for chunk in chunks:
            if chunk.long_bytes:
                problem = (
                    f"the line has {chunk.long_bytes:,} bytes, more than "
                    f"max_record_bytes={self._chunks.most_bytes:,}; only its start is kept."
                )
                self.broken(chunk.path, BrokenLine(chunk.position, chunk.data, problem))
        return batch

    def close(self) -> None:
        self._chunks.close()

    def broken(self, path: str, line: BrokenLine) -> None:
        """Reject the line, or raise the error that names it."""
        place = self._counter.describe(path, line.position)
        if self._on_error == "fail":
            shown = line.line[:SHOWN_BYTES].decode(errors="replace").rstrip("\r\n")
            raise ConnectorError(
                f"{place}: {line.problem}\n  line: {shown}\n{self.advice} "
                "To leave such lines out, use on_error='skip' or 'dead_letter'."
            )
        text = line.line.decode(errors="replace").rstrip("\r\n")
        self._rejected.append(Rejected(text, line.problem, place))


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their ends; bytes.splitlines would also cut at a lone \\r."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines
