"""Compressed text files, unpacked while reading: gzip, Zstandard, bzip2 and lz4, by file ending.

Reading cannot start in the middle of one, so each is one range that one shard reads. Its end is
known only when it is reached.
"""

from typing import Any, Final

import pyarrow as pa

CODECS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
ENDLESS: Final = 1 << 62
"""The end of the range of a compressed file, which is not known before it was read."""
SKIP_BYTES: Final = 1 << 20


def codec_of(path: str) -> str | None:
    return next((codec for ending, codec in CODECS.items() if path.endswith(ending)), None)


def start_of(fs: Any, path: str, count: int) -> bytes:
    """The first bytes of a file, unpacked if it is compressed."""
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
