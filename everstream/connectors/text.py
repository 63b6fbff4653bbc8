"""Text files as a source: one record per line, read and decoded a chunk at a time."""

import codecs
import os
from collections.abc import Mapping
from typing import Any

from everstream.connectors.files import filesystem_of
from everstream.connectors.splits import Chunk, ChunkReader, FileSet, LinesOffset
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.source import END, EndOfStream, Reader, Source


def decoded_lines(chunk: Chunk, encoding: str) -> list[str]:
    """The lines of a chunk without their ends, which are \\n or \\r\\n."""
    if encoding == "utf-8-sig" and chunk.position:
        encoding = "utf-8"  # only the start of a file can have the mark
    try:
        text = chunk.data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ConnectorError(
            f"'{chunk.path}' is not {encoding} at byte {chunk.position + error.start}: "
            f"{error.reason}. Name the right encoding, for example encoding='latin-1'."
        ) from error
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


class TextLines(Source):
    """The lines of text files, as str without the line end.

    `path` names a file, a folder or a pattern ("books/*.txt") on any fsspec filesystem. Large
    files are cut into byte ranges, so that all shards read one file together; lines of one
    range keep their order.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        batch_bytes: int = 1 << 20,
        encoding: str = "utf-8",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if batch_bytes < 1:
            raise UserError(f"batch_bytes must be at least 1, not {batch_bytes}.")
        try:
            codec = codecs.lookup(encoding).name
        except LookupError as error:
            raise UserError(f"there is no encoding '{encoding}'.") from error
        if codec != "utf-8-sig" and "\n".encode(codec) != b"\n":
            raise UserError(
                f"lines in '{encoding}' do not end with a single newline byte, so files cannot "
                "be cut into lines. Convert them to UTF-8 first."
            )
        self._files = FileSet(*filesystem_of(path, storage_options))
        self._batch_bytes = batch_bytes
        self._encoding = codec

    def open(self, shard: int, shards: int) -> Reader:
        return _TextReader(self._files.reader(shard, shards, self._batch_bytes), self._encoding)

    def check(self) -> None:
        self._files.check()


class _TextReader(Reader):
    def __init__(self, chunks: ChunkReader, encoding: str) -> None:
        self._chunks = chunks
        self._encoding = encoding

    @property
    def offset(self) -> LinesOffset:
        return self._chunks.offset

    def seek(self, offset: LinesOffset) -> None:
        self._chunks.seek(offset)

    def read(self) -> Batch | EndOfStream | None:
        before = self._chunks.offset
        chunks = self._chunks.read()
        if not chunks:
            return END
        try:
            return [line for chunk in chunks for line in decoded_lines(chunk, self._encoding)]
        except ConnectorError:
            self._chunks.seek(before)
            raise

    def close(self) -> None:
        self._chunks.close()
