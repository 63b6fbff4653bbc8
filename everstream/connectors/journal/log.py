"""The folder of one shard's journal: segments of frames.

A segment is a sequence of frames, each a batch and what was rejected with it. Each generation of a
reader appends to its own segment, named after the generation and the number of its first frame. A
segment counts only up to where the next generation's begins: what a zombie still appends is never
read.

A frame is appended and synced before its records are emitted, and nothing follows one that failed.
So a crash can leave no more than the beginning of one frame, at the end of a segment: a frame whose
header gives more bytes than the file has was torn, and its records were never emitted. Anything
else is damage, and refused: a complete frame with a wrong checksum, or a file that ends before what
is known to have been synced. A mark beside each segment on a local disk records that size. The mark
itself is not synced: after a power failure it may be too low, but never too high.

In a run whose store is signed, each frame carries a signature, made for its position in its segment.
It is verified before anything of the frame is decoded, because the notes of a frame and batches of
records are pickles. An attacker with write access but without the key can only cut off the end.
"""

import os
import pickle
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from everstream.connectors.encoding import decode, encode
from everstream.connectors.files.filesystem import (
    create,
    is_local,
    make_folders,
    names_in,
    remove,
    sync_folder,
)
from everstream.errors import ConnectorError
from everstream.pipeline.batch import Batch
from everstream.pipeline.rejects import Rejected
from everstream.state.saved import dumps
from everstream.state.signing import HEAD_BYTES, Forged, StoreKey, is_signed

HEADER = struct.Struct("<IIII")
"""Checksum, kind, length of the notes, length of the batch."""
BATCH, ENDED = 1, 2
"""A frame of any other kind was written by a newer Everstream."""


@dataclass(frozen=True, order=True)
class JournalSegment:
    """The generation of a segment, and the number of its first frame."""

    generation: int
    first: int

    def __str__(self) -> str:
        return f"segment-{self.generation:020d}-{self.first:020d}"

    @staticmethod
    def parse(name: str) -> "JournalSegment | None":
        match = re.fullmatch(r"segment-(\d{20,})-(\d{20,})", name)
        return JournalSegment(int(match[1]), int(match[2])) if match else None


_KEPT_FROM = re.compile(r"kept-from-(\d{20,})")
_SYNCED = "synced-"
"""Prefix of the name of a segment's mark."""


@dataclass(frozen=True)
class JournalEntry:
    """One batch as it was logged; None where the feed ended."""

    number: int
    batch: Batch | None
    feed_offset: Any
    rejected: list[Rejected]


class Appending:
    """A segment that is being written, and the mark that records how much of it is synced."""

    def __init__(self, fs: Any, path: str, mark: str, private: str) -> None:
        self._mark = create(fs, mark, private) if is_local(fs) else None
        self._file = create(fs, path, private)
        self._synced_bytes = 0

    def append(self, data: bytes) -> None:
        """Durable when this returns, on a local disk; elsewhere when the file is closed."""
        self._file.write(data)
        self._file.flush()
        if self._mark is not None:
            os.fsync(self._file.fileno())
            self._synced_bytes += len(data)
            os.pwrite(self._mark.fileno(), _marked(self._synced_bytes), 0)

    def close(self) -> None:
        self._file.close()
        if self._mark is not None:
            self._mark.close()


def _marked(synced_bytes: int) -> bytes:
    number = synced_bytes.to_bytes(8, "little")
    return number + zlib.crc32(number).to_bytes(4, "little")


class Log:
    """The segments of one shard."""

    def __init__(self, fs: Any, journal: str, folder: str, *, trust_unsigned: bool = False) -> None:
        """trust_unsigned: also accept frames without a signature where frames are signed."""
        self.key: StoreKey | None = None
        """Signs the frames, if there is one."""
        self._trusts_unsigned = trust_unsigned
        self.fs = fs
        self.journal = journal
        self.folder = f"{journal}/{folder}"

    def path_of(self, segment: JournalSegment) -> str:
        return f"{self.folder}/{segment}"

    def mark_of(self, segment: JournalSegment) -> str:
        return f"{self.folder}/{_SYNCED}{segment}"

    def segments(self) -> list[JournalSegment]:
        return self._segments_named("")

    def _segments_named(self, prefix: str) -> list[JournalSegment]:
        names = names_in(self.fs, self.folder)
        segments = (
            JournalSegment.parse(n.removeprefix(prefix)) for n in names if n.startswith(prefix)
        )
        return sorted(segment for segment in segments if segment is not None)

    def synced_bytes(self, segment: JournalSegment) -> int:
        """How many bytes of the segment are known to have been synced."""
        try:
            mark: bytes = self.fs.cat_file(self.mark_of(segment))
        except FileNotFoundError:
            return 0
        number = int.from_bytes(mark[:8], "little")
        return number if mark == _marked(number) else 0

    def kept_from(self) -> int:
        """The number of the first frame that was not removed on purpose."""
        marks = (_KEPT_FROM.fullmatch(name) for name in names_in(self.fs, self.folder))
        return max((int(mark[1]) for mark in marks if mark), default=0)

    def remove_before(self, number: int) -> None:
        """Remove the segments whose frames all come before this one, after recording that."""
        segments = self.segments()
        old: list[JournalSegment] = []
        for position, segment in enumerate(segments[:-1]):
            if min(other.first for other in segments[position + 1 :]) > number:
                break
            old.append(segment)
        if not old:
            return
        before = self.kept_from()
        kept = min(segment.first for segment in segments[len(old) :])
        # Retried when the next checkpoint is stable; until then too much is kept.
        with suppress(OSError):
            create(self.fs, f"{self.folder}/kept-from-{kept:020d}", self.journal).close()
            for segment in old:
                remove(self.fs, self.mark_of(segment))
                self.fs.rm_file(self.path_of(segment))
            if before and before != kept:
                self.fs.rm_file(f"{self.folder}/kept-from-{before:020d}")

    def frames(self, segments: list[JournalSegment]) -> Iterator[JournalEntry]:
        for marked in self._segments_named(_SYNCED):
            is_last = not segments or marked > segments[-1]
            if is_last and self.synced_bytes(marked) and not self.fs.exists(self.path_of(marked)):
                raise self.damaged(f"its last segment, '{marked}', is missing")
        expected = segments[0].first if segments else 0
        for position, segment in enumerate(segments):
            later = [other.first for other in segments[position + 1 :]]
            if segment.first > expected:
                raise self.damaged(f"frames {expected} to {segment.first - 1} are missing")
            for frame in self._frames_of(segment, min(later) if later else None):
                yield frame
                expected = frame.number + 1

    def _frames_of(self, segment: JournalSegment, stop: int | None) -> Iterator[JournalEntry]:
        """The frames of a segment before the frame `stop` that were not torn."""
        path = self.path_of(segment)
        try:
            synced_bytes = self.synced_bytes(segment)  # first: a zombie may still be appending
            data: bytes = self.fs.cat_file(path)
        except OSError as error:
            raise ConnectorError(f"cannot read the journal '{path}': {error}.") from error
        position, number = 0, segment.first
        while stop is None or number < stop:
            end = _end_of_frame(data, position)
            if end is None:
                if position < synced_bytes:
                    raise self.damaged(
                        f"'{segment}' has no complete frame at byte {position}, where one was logged"
                    )
                return
            frame = data[position:end]
            checksum, kind, _, _ = HEADER.unpack_from(frame)
            if zlib.crc32(frame[4:]) != checksum:
                raise self.damaged(
                    f"'{segment}', byte {position}: the checksum of frame {number} does not match"
                )
            if kind not in (BATCH, ENDED):
                raise ConnectorError(
                    f"frame {number} of the journal '{self.folder}' is of a kind that this version of "
                    "Everstream does not know: it was written by a newer one. Use that version."
                )
            yield self._decoded(segment, frame, number)
            position, number = end, number + 1

    def _decoded(self, segment: JournalSegment, frame: bytes, number: int) -> JournalEntry:
        _, kind, notes_bytes, _ = HEADER.unpack_from(frame)
        body = frame[HEADER.size :]
        # Where unsigned frames are explicitly trusted, only signed ones are verified.
        if self.key is not None and (not self._trusts_unsigned or is_signed(body)):
            notes_bytes -= HEAD_BYTES
            try:
                body = self.key.opened(self._signed_as(segment, number, kind, notes_bytes), body)
            except Forged as error:
                raise ConnectorError(
                    f"frame {number} of the journal '{self.folder}' is not replayed: {error.message}. "
                    "It may have been written without the key of the store. Restore "
                    "the folder from a copy. If it was written by a version of Everstream that did "
                    "not sign journals, and only you can write to the folder, use Journal(..., "
                    "trust_unsigned=True)."
                ) from error
        offset, rejected = pickle.loads(body[:notes_bytes])
        batch = decode(body[notes_bytes:])[0] if kind == BATCH else None
        return JournalEntry(number, batch, offset, rejected)

    def _signed_as(self, segment: JournalSegment, number: int, kind: int, notes_bytes: int) -> str:
        shard = self.folder.removeprefix(f"{self.journal}/")
        return f"journal/{shard}/{segment}/{number}/{kind}/{notes_bytes}"

    def encoded(
        self,
        segment: JournalSegment,
        number: int,
        batch: Batch | None,
        feed_offset: Any,
        rejected: list[Rejected],
    ) -> bytes:
        notes = dumps((feed_offset, rejected))
        payload = encode(batch) if batch is not None else b""
        kind = ENDED if batch is None else BATCH
        if self.key is not None:
            name = self._signed_as(segment, number, kind, len(notes))
            notes = self.key.head(name, (notes, payload)) + notes
        body = HEADER.pack(0, kind, len(notes), len(payload))[4:] + notes + payload
        return zlib.crc32(body).to_bytes(4, "little") + body

    def append(self, file: Appending, data: bytes) -> None:
        try:
            file.append(data)
        except OSError as error:
            raise ConnectorError(
                f"cannot write to the journal '{self.folder}': {error}. Check that the disk has "
                "space. No record was emitted that is not logged."
            ) from error

    def begin(self, segment: JournalSegment) -> Appending:
        path = self.path_of(segment)
        try:
            make_folders(self.fs, self.folder, self.journal)
            file = Appending(self.fs, path, self.mark_of(segment), self.journal)
            sync_folder(self.fs, self.folder)
        except OSError as error:
            raise ConnectorError(f"cannot write the journal '{path}': {error}.") from error
        return file

    def damaged(self, problem: str) -> ConnectorError:
        return ConnectorError(
            f"the journal '{self.folder}' is damaged: {problem}. Restore the folder from a copy. "
            "Without one, move it away and start over with --fresh, which deletes the existing "
            "output: records that only the journal had are lost."
        )


def _end_of_frame(data: bytes, position: int) -> int | None:
    """Where the frame at this byte ends, by its header; None if that is past the end."""
    end = position + HEADER.size
    if end <= len(data):
        end += sum(HEADER.unpack_from(data, position)[2:])
    return end if end <= len(data) else None
