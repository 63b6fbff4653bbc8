"""Frames that wait on the local disk, because there are more of them than memory is for.

They are written in segments, as the bytes that would be sent, to files that have no names: a file is
gone when nobody holds a segment of it any more, be that because all was read, because the shard has gone
back, or because its process was killed. So nothing is ever left behind, and nobody trips over what
a process before has left.

A segment never changes. A checkpoint that has one puts it into the store as an object of its own, once,
however many checkpoints name it, and nobody needs all segments in memory to do so.
"""

import errno
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from everstream.core.frames import Frame
from everstream.core.ids import ChannelId
from everstream.errors import EnvironmentFault, InternalError
from everstream.pipeline.batch import Batch
from everstream.runtime.message_log import decode_segment, encode_segment, frames_in
from everstream.runtime.payload import BatchPayload, decode_batch
from everstream.state.objects import ObjectRef
from everstream.state.saved import Saved

MEMORY_BYTES: Final = 32 << 20
"""What may wait in memory at one feedback edge of a shard, or of frames for one checkpoint."""
LEAST_BYTES: Final = 4 << 20
"""What each channel of an edge may have of it, however many there are: tiny segments cost too much."""
FRAME_BYTES: Final = 256
"""What a frame that waits takes besides its records."""
FILE_BYTES: Final = 256 << 20
"""A file is given back to the system when all of it was read, so it should not grow for ever."""


class _File:
    """A file without a name."""

    def __init__(self, folder: str) -> None:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd, path = tempfile.mkstemp(prefix="spill-", dir=folder or None)
        os.unlink(path)
        self.size_bytes = 0

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def append(self, pieces: Sequence[Any]) -> "_Place":
        """Counts only when all of it is there."""
        with open(self._fd, "wb", buffering=1 << 18, closefd=False) as writer:
            writer.seek(self.size_bytes)
            at, checksum = self.size_bytes, 0
            for piece in pieces:
                writer.write(piece)
                checksum = zlib.crc32(piece, checksum)
            end = writer.tell()
        self.size_bytes = end
        return _Place(self, at, end - at, checksum)

    def read(self, at: int, size_bytes: int) -> bytes:
        parts: list[bytes] = []
        end = at + size_bytes
        while at < end:
            part = os.pread(self._fd, end - at, at)
            if not part:
                raise EnvironmentFault("a file of frames that wait on the local disk is cut short")
            parts.append(part)
            at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(frozen=True)
class _Place:
    """Where in a file a segment is; holding it keeps the file."""

    file: _File
    at: int
    size_bytes: int
    checksum: int

    def read(self) -> bytes:
        data = self.file.read(self.at, self.size_bytes)
        if zlib.crc32(data) != self.checksum:
            raise EnvironmentFault(
                "the local disk gave back other bytes than were written to it. Check the disk, or "
                "let TMPDIR name a folder on another one."
            )
        return data


class Spilled(Saved, word="spilled-frames"):
    """A segment: on the local disk, in the store, or in both."""

    _place: _Place | None = None
    """None as it comes out of a snapshot, before it is fetched."""
    _object: tuple[str, int, str] | None = None

    def __init__(self, place: _Place, length: int, ref: ObjectRef | None = None) -> None:
        self._place = place
        self.length = length
        """How many frames."""
        if ref is not None:
            self._object = (ref.name, ref.size_bytes, ref.checksum)

    def __getstate__(self) -> dict[str, Any]:
        if self._object is None:
            raise InternalError("a checkpoint names frames on the local disk that were not saved")
        return {"_object": self._object}

    @property
    def ref(self) -> ObjectRef | None:
        """Once it is in the store."""
        return None if self._object is None else ObjectRef(*self._object)

    @property
    def size_bytes(self) -> int:
        return self._here.size_bytes

    def save(self, put: Callable[[str, Any], ObjectRef], name: str) -> int:
        """Put it into the store, if nobody has; the bytes that took. May run on another thread."""
        if self._object is not None:
            return 0
        ref = put(name, self._here.read())
        self._object = (ref.name, ref.size_bytes, ref.checksum)
        return ref.size_bytes

    def frames(self, channels: Sequence[ChannelId]) -> Iterator[Frame]:
        """All of them, in memory. Each has its own, so that nobody who keeps one keeps all."""
        for frame in decode_segment(self._here.read(), channels):
            if frame.payload is not None:
                frame.payload = BatchPayload(encoded=bytes(frame.payload.encoded))
            yield frame

    def headers(self, channels: Sequence[ChannelId]) -> Iterator[Frame]:
        """The frames, with payloads that stay on disk until somebody looks at them."""
        here = self._here
        for frame, at, size_bytes in frames_in(here.read(), channels):
            if size_bytes is not None:
                frame.payload = _PayloadOnDisk(here.file, here.at + at, size_bytes)
            yield frame

    @property
    def _here(self) -> _Place:
        if self._place is None:
            raise InternalError("frames of a checkpoint were read before they were fetched")
        return self._place


class _PayloadOnDisk:
    """Read whenever it is wanted, and kept by nobody but who wants it."""

    __slots__ = ("_at", "_batch", "_file", "_size_bytes")

    def __init__(self, file: _File, at: int, size_bytes: int) -> None:
        self._file = file
        self._at = at
        self._size_bytes = size_bytes
        self._batch: Batch | None = None

    @property
    def batch(self) -> Batch:
        if self._batch is None:
            self._batch = decode_batch(self.encoded)
        return self._batch

    @property
    def encoded(self) -> bytes:
        return self._file.read(self._at, self._size_bytes)


class SpillSpace:
    """All that one shard spills."""

    def __init__(
        self, folder: str, load: Callable[[Sequence[ObjectRef]], list[bytes]], whose: str = ""
    ) -> None:
        """folder: on the local disk; "" for the system's temporary one."""
        self.folder = folder
        self.load = load
        self.whose = whose
        self.memory_bytes = MEMORY_BYTES
        self.written_bytes = 0

    def share_bytes(self, queues: int) -> int:
        """What each of so many queues may have in memory."""
        return max(self.memory_bytes // queues, min(self.memory_bytes, LEAST_BYTES))


class Spill:
    """Segments one after the other, in as many files as it takes."""

    def __init__(self, space: SpillSpace, channels: Sequence[ChannelId]) -> None:
        self._space = space
        self.channels = tuple(channels)
        self._file: _File | None = None

    def write(self, frames: Sequence[Frame]) -> Spilled:
        """A segment of these; an EnvironmentFault that says what to do if there is no room."""
        return Spilled(self._write(encode_segment(frames, self.channels)), len(frames))

    def fetch(self, saved: Spilled) -> Spilled:
        """A segment of a checkpoint, here. Raises CorruptObject if it is not whole in the store."""
        ref = saved.ref
        assert ref is not None
        [data] = self._space.load([ref])
        # What cannot be read is told now, while there are older checkpoints to go back to.
        length = sum(1 for _ in frames_in(data, self.channels))
        return Spilled(self._write([data]), length, ref)

    def read(self, spilled: Spilled) -> Iterator[Frame]:
        return spilled.frames(self.channels)

    def let_go(self) -> None:
        """Nothing is wanted any more of what was written."""
        self._file = None

    def _write(self, pieces: Sequence[Any]) -> _Place:
        space = self._space
        try:
            if self._file is None or self._file.size_bytes >= FILE_BYTES:
                self._file = _File(space.folder)
            place = self._file.append(pieces)
        except OSError as error:
            raise EnvironmentFault(
                f"{space.whose} cannot write records that wait to "
                f"'{space.folder or tempfile.gettempdir()}': {error.strerror}. {_advice(error)}"
            ) from error
        space.written_bytes += place.size_bytes
        return place


def _advice(error: OSError) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return (
                "More goes round than is taken out, and waits on the local disk: free some space "
                "there or let TMPDIR name a larger disk; then start again, from the last checkpoint."
            )
        case errno.EMFILE | errno.ENFILE:
            return "Too many open files: raise the limit (ulimit -n)."
    return "Check that the disk is healthy, or let TMPDIR name a folder on another one."
