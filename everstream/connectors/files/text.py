"""Text files as a source: one record per line, read and decoded a chunk at a time."""

import codecs
import os
from collections.abc import Mapping
from typing import Any

from everstream.connectors.files.connector import FileSource
from everstream.connectors.files.filesystem import filesystem_of
from everstream.connectors.files.lines import Chunk, ChunkReader, FileSet, LinesReader, split_lines
from everstream.connectors.options import MAX_RECORD_BYTES, at_least_one
from everstream.errors import UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.rejects import OnError, checked
from everstream.pipeline.source import Reader


class TextLines(FileSource[str]):
    """The lines of text files, as str without the line end.

    `path` names a file, a folder or a pattern ("books/*.txt") on any fsspec filesystem. Large
    files are cut into byte ranges, so that all shards read one file together; lines of one
    range keep their order. With `follow=True` the source never ends: complete files that appear
    later are read too. `on_error` sets what happens to lines that are not in this encoding, or
    longer than `max_record_bytes` (default 64 MB), which are never in memory as a whole.

    >>> with open("poem.txt", "w") as file:
    ...     _ = file.write("to be\\nor not\\n")
    >>> es.Pipeline("lines").source(es.TextLines("*.txt")).collect().run().collected()
    ['to be', 'or not']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        batch_bytes: int = 1 << 20,
        max_record_bytes: int = MAX_RECORD_BYTES,
        encoding: str = "utf-8",
        follow: bool = False,
        on_error: OnError = "fail",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        at_least_one(batch_bytes=batch_bytes, max_record_bytes=max_record_bytes)
        try:
            codec = codecs.lookup(encoding).name
        except LookupError as error:
            raise UserError(f"there is no encoding '{encoding}'.") from error
        if codec != "utf-8-sig" and "\n".encode(codec) != b"\n":
            raise UserError(
                f"lines in '{encoding}' do not end with a single newline byte, so files cannot "
                "be cut into lines. Convert them to UTF-8 first."
            )
        self._files = FileSet(*filesystem_of(path, storage_options), follow=follow)
        self._batch_bytes = self._smallest_split_bytes = batch_bytes
        self._most_bytes = max_record_bytes
        self._encoding = codec
        self.on_error = checked(on_error, "TextLines")

    def open(self, shard: int, shards: int) -> Reader:
        chunks = self._files.reader(shard, shards, self._batch_bytes, self._most_bytes)
        return _TextReader(chunks, self.on_error, self._encoding)

    def check(self) -> None:
        self._files.check()


class _TextReader(LinesReader):
    advice = "Name the right encoding, for example encoding='latin-1'."

    def __init__(self, chunks: ChunkReader, on_error: OnError, encoding: str) -> None:
        super().__init__(chunks, on_error)
        self._encoding = encoding

    def parse(self, chunks: list[Chunk]) -> Batch:
        return [line for chunk in chunks for line in self._lines(chunk)]

    def _lines(self, chunk: Chunk) -> list[str]:
        """The lines of a chunk without their ends, which are \\n or \\r\\n."""
        encoding = self._encoding
        if encoding == "utf-8-sig" and chunk.position:
            encoding = "utf-8"  # only the start of a file can have the byte order mark
        try:
            text = chunk.data.decode(encoding)
        except UnicodeDecodeError:
            return self._decodable(chunk, encoding)
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        return lines

    def _decodable(self, chunk: Chunk, encoding: str) -> list[str]:
        lines = []
        position = chunk.position
        for line in split_lines(chunk.data):
            try:
                lines.append(line.decode(encoding).removesuffix("\n").removesuffix("\r"))
            except UnicodeDecodeError as error:
                problem = f"not {encoding} at byte {position + error.start}: {error.reason}."
                self.broken(chunk.path, position, line, problem)
            position += len(line)
        return lines
