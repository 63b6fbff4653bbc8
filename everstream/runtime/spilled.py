"""Frames that wait on the local disk, because they do not fit into memory.

They are written in segments, as the bytes that would be sent, to files without names
(`state/storage/unnamed.py`), which disappear with their last user.

A segment never changes. A checkpoint that contains one puts it into the store as a separate object,
once, however many checkpoints name it. That never needs all segments in memory.
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
"""How much may wait in memory at one feedback edge of a shard, or of frames for one checkpoint."""
LEAST_BYTES: Final = 4 << 20
"""The least that each channel of an edge may have of it: tiny segments cost too much."""
FRAME_BYTES: Final = 256
"""The size of a waiting frame besides its records."""


class Spilled(Saved, word="spilled-frames"):
    """A segment: on the local disk, in the store, or in both."""

    _piece: Piece | None = None
    """None after loading from a snapshot, until it is fetched."""
    _object: tuple[str, int, str] | None = None

    def __init__(self, piece: Piece, length: int, ref: ObjectRef | None = None) -> None:
        self._piece = piece
        self.length = length
        """The number of frames."""
        if ref is not None:
            self._object = (ref.name, ref.size_bytes, ref.checksum)

    def __getstate__(self) -> dict[str, Any]:
        if self._object is None:
            raise InternalError("a checkpoint names frames on the local disk that were not saved")
        return {"_object": self._object}

    @property
    def ref(self) -> ObjectRef | None:
        """Set once it is in the store."""
        return None if self._object is None else ObjectRef(*self._object)

    @property
    def size_bytes(self) -> int:
        return self._here.size_bytes

    def save(self, put: Callable[[str, Any], ObjectRef], name: str) -> int:
        """Put it into the store unless done; returns the bytes. May run on another thread."""
        if self._object is not None:
            return 0
        ref = put(name, self._here.read())
        self._object = (ref.name, ref.size_bytes, ref.checksum)
        return ref.size_bytes

    def frames(self, channels: Sequence[ChannelId]) -> Iterator[Frame]:
        """All frames, in separate memory, so that keeping one does not keep all."""
        for frame in decode_segment(self._here.read(), channels):
            if frame.payload is not None:
                frame.payload = BatchPayload(encoded=bytes(frame.payload.encoded))
            yield frame

    def headers(self, channels: Sequence[ChannelId]) -> Iterator[Frame]:
        """The frames, with payloads that stay on disk until they are used."""
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
    """Read from disk at each use, and not cached."""

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
    """The spilled frames of one shard."""

    def __init__(
        self,
        folder: str,
        load: Callable[[Sequence[ObjectRef]], list[bytes]],
        owner: str = "a shard",
    ) -> None:
        """folder: on the local disk; the system's temporary folder if it does not exist."""
        self.folder = folder
        self.load = load
        self.owner = owner
        self.memory_bytes = MEMORY_BYTES
        self.written_bytes = 0

    def share_bytes(self, queues: int) -> int:
        """How much each of this many queues may have in memory."""
        return max(self.memory_bytes // queues, min(self.memory_bytes, LEAST_BYTES))


class Spill:
    """Segments one after the other, of frames on some channels."""

    def __init__(self, space: SpillSpace, channels: Sequence[ChannelId]) -> None:
        self._space = space
        self.channels = tuple(channels)
        self._files = UnnamedFiles(space.folder, f"records that wait at {space.owner}")

    def write(self, frames: Sequence[Frame]) -> Spilled:
        """A segment of these; raises an EnvironmentFault with the fix if there is no room."""
        return Spilled(self._write(encode_segment(frames, self.channels)), len(frames))

    def fetch(self, saved: Spilled) -> Spilled:
        """Fetch a segment of a checkpoint. Raises CorruptObject if it is incomplete."""
        ref = saved.ref
        assert ref is not None
        [data] = self._space.load([ref])
        # Report unreadable data now, while there are older checkpoints to fall back to.
        length = sum(1 for _ in frames_in(data, self.channels))
        return Spilled(self._write([data]), length, ref)

    def read(self, spilled: Spilled) -> Iterator[Frame]:
        return spilled.frames(self.channels)

    def let_go(self) -> None:
        """Nothing that was written is needed any more."""
        self._files.let_go()

    def _write(self, data: Sequence[Any]) -> Piece:
        piece = self._files.append(data)
        self._space.written_bytes += piece.size_bytes
        return piece
