"""Frames that wait on the local disk, because there are more of them than memory is for.

They are written in segments, as the bytes that would be sent, to files without names
(`state/storage/unnamed.py`), which go with the last who wants something of them.

A segment never changes. A checkpoint that has one puts it into the store as an object of its own, once,
however many checkpoints name it, and nobody needs all segments in memory to do so.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from everstream.core.frames import Frame
from everstream.core.ids import ChannelId
from everstream.errors import InternalError
from everstream.pipeline.batch import Batch
from everstream.runtime.message_log import decode_segment, encode_segment, frames_in
from everstream.runtime.payload import BatchPayload, decode_batch
from everstream.state.objects import ObjectRef
from everstream.state.saved import Saved
from everstream.state.storage.unnamed import Piece, UnnamedFile, UnnamedFiles

MEMORY_BYTES: Final = 32 << 20
"""What may wait in memory at one feedback edge of a shard, or of frames for one checkpoint."""
LEAST_BYTES: Final = 4 << 20
"""What each channel of an edge may have of it, however many there are: tiny segments cost too much."""
FRAME_BYTES: Final = 256
"""What a frame that waits takes besides its records."""


class Spilled(Saved, word="spilled-frames"):
    """A segment: on the local disk, in the store, or in both."""

    _piece: Piece | None = None
    """None as it comes out of a snapshot, before it is fetched."""
    _object: tuple[str, int, str] | None = None

    def __init__(self, piece: Piece, length: int, ref: ObjectRef | None = None) -> None:
        self._piece = piece
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
    def _here(self) -> Piece:
        if self._piece is None:
            raise InternalError("frames of a checkpoint were read before they were fetched")
        return self._piece


class _PayloadOnDisk:
    """Read whenever it is wanted, and kept by nobody but who wants it."""

    __slots__ = ("_at", "_batch", "_file", "_size_bytes")

    def __init__(self, file: UnnamedFile, at: int, size_bytes: int) -> None:
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
        self,
        folder: str,
        load: Callable[[Sequence[ObjectRef]], list[bytes]],
        whose: str = "a shard",
    ) -> None:
        """folder: on the local disk; the system's temporary one if it is not there."""
        self.folder = folder
        self.load = load
        self.whose = whose
        self.memory_bytes = MEMORY_BYTES
        self.written_bytes = 0

    def share_bytes(self, queues: int) -> int:
        """What each of so many queues may have in memory."""
        return max(self.memory_bytes // queues, min(self.memory_bytes, LEAST_BYTES))


class Spill:
    """Segments one after the other, of frames on some channels."""

    def __init__(self, space: SpillSpace, channels: Sequence[ChannelId]) -> None:
        self._space = space
        self.channels = tuple(channels)
        self._files = UnnamedFiles(space.folder, f"records that wait at {space.whose}")

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
        self._files.let_go()

    def _write(self, data: Sequence[Any]) -> Piece:
        piece = self._files.append(data)
        self._space.written_bytes += piece.size_bytes
        return piece
