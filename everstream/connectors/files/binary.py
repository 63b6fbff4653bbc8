"""`Binary`: records as bytes, one directly after the other, for output that is not text.

Such files can often be concatenated: bzip2 streams, the images of a Motion JPEG video, the rows of
a picture. The part files of a sink with one shard, concatenated in the order of their names, are
what one program would have written into one file.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import polars as pl

from everstream.connectors.files.connector import PartSink
from everstream.connectors.files.filesystem import filesystem_of
from everstream.connectors.files.layout import FileLayout
from everstream.connectors.files.parts import BYTES_PER_READ, PartFolder, PartWriter
from everstream.connectors.refusing import encoded_or_refused
from everstream.errors import UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import SinkShard, Writer

ENDING = ".bin"


class Binary(PartSink):
    """Writes each record's bytes after those of the record before it, exactly once.

    A record is anything with bytes in it (`bytes`, a numpy array), or what `encode(record)` turns
    into that. One part file per shard and checkpoint appears in the folder when its checkpoint is
    stable. `pieces()` reads them all, in order. `roll_bytes` ("128MB") ends a part that has that
    size, and begins another; `prefix` begins the names of the files.

    >>> words = es.Pipeline("bytes").source(es.FromList([b"to ", b"be"]))
    >>> written = es.Binary("words/")
    >>> _ = words.sink(written, ordered=True).run()
    >>> b"".join(written.pieces())
    b'to be'
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        encode: Callable[[Any], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        roll_bytes: str | int | None = None,
        prefix: str = "",
    ) -> None:
        self._layout = FileLayout.of(roll_bytes, None, prefix)
        self._fs, self._path = filesystem_of(folder, storage_options)
        self._encode = encode

    def pieces(self) -> Iterator[bytes]:
        """The contents of the part files, by checkpoint and shard, a piece at a time."""
        folder = self._part_folder()
        for part in folder.parts():
            with self._fs.open(folder.path_of(part), "rb") as file:
                while piece := file.read(BYTES_PER_READ):
                    yield piece

    def open(self, shard: SinkShard) -> Writer:
        folder = self._part_folder()
        return self._writer(lambda: _BinaryWriter(folder, shard, self._encode))

    def check(self) -> None:
        if self._fs.isfile(self._path):
            raise UserError(f"Binary writes into a folder, but '{self._path}' is a file.")

    def _part_folder(self) -> PartFolder:
        return self._layout.folder(PartFolder(self._fs, self._path, ENDING))


class _BinaryWriter(PartWriter):
    def __init__(
        self, folder: PartFolder, shard: SinkShard, encode: Callable[[Any], Any] | None
    ) -> None:
        super().__init__(folder, shard)
        self._operator = shard.operator
        self._encode = encode

    def encode(self, batch: Batch) -> bytes:
        return encoded_or_refused(batch, self._encoded, self._operator)

    def _encoded(self, batch: Batch) -> bytes:
        if isinstance(batch, pl.DataFrame):
            raise UserError(
                f"operator '{self._operator}': Binary takes records with bytes in them, not "
                "columns. Use Parquet for columns."
            )
        try:
            return b"".join(batch if self._encode is None else map(self._encode, batch))
        except (TypeError, ValueError, BufferError) as error:
            if self._encode is not None:
                raise
            raise UserError(
                f"operator '{self._operator}': a record has no bytes to write: {error}. "
                "Convert records with Binary(folder, encode=...)."
            ) from error
