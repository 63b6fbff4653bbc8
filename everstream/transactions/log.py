"""Blocks of columns in a store: how schemes keep what they need to recover.

A block is a header, named numpy columns, and a checksum over all of it, so a write that was
interrupted anywhere counts as the end of the log. Streams are append-only. A new generation of each
begins when an engine opens the log and at every snapshot, so that a rerun epoch never mixes with
what a crashed process had half committed.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from everstream.transactions.errors import LogError
from everstream.transactions.store import Store

Columns = Mapping[str, npt.NDArray[Any]]

_MAGIC = 0x45565458
"""Its last byte is the format: later formats differ in that byte only."""
_HEADER = struct.Struct(
    "<IIQQQQQ"
)  # magic, crc, length, first epoch, last epoch, first event, next
SNAPSHOT = "snapshot-"
_LOG = "log-"


@dataclass(frozen=True)
class Block:
    """What one commit wrote to one stream: epochs first..last, events first_event..next_event."""

    first_epoch: int
    last_epoch: int
    first_event: int
    next_event: int
    columns: dict[str, npt.NDArray[Any]]


def encode(block: Block) -> bytes:
    """The bytes of a block, checksum included."""
    payload = b"".join(_encode_columns(block.columns))
    numbers = (block.first_epoch, block.last_epoch, block.first_event, block.next_event)
    head = struct.pack("<QQQQQ", len(payload), *numbers)
    checksum = zlib.crc32(payload, zlib.crc32(head))
    return b"".join([struct.pack("<II", _MAGIC, checksum), head, payload])


def decode(data: bytes | memoryview) -> Iterator[Block]:
    """The whole blocks of a stream, up to its end or the first one that is torn or damaged."""
    view = memoryview(data)
    at = 0
    while at + _HEADER.size <= len(view):
        magic, crc, length, *numbers = _HEADER.unpack_from(view, at)
        end = at + _HEADER.size + length
        if magic >> 8 != _MAGIC >> 8 or end > len(view):
            return
        payload = view[at + _HEADER.size : end]
        head = view[at + 8 : at + _HEADER.size]
        if zlib.crc32(payload, zlib.crc32(head)) != crc:
            return
        if magic != _MAGIC:  # complete, so not damage
            raise LogError(
                "the log has blocks written by a newer Everstream: recover with that version"
            )
        first_epoch, last_epoch, first_event, next_event = numbers
        columns = _decode_columns(payload)
        yield Block(first_epoch, last_epoch, first_event, next_event, columns)
        at = end


def _encode_columns(columns: Columns) -> Iterator[Any]:
    """Bytes and arrays, in the order they are stored."""
    yield struct.pack("<H", len(columns))
    for name, column in columns.items():
        text = column.dtype == object
        shape = (column.size,) if text else column.shape
        kind = b"text" if text else column.dtype.str.encode()
        label = name.encode()
        yield struct.pack("<BBB", len(label), len(kind), len(shape)) + label + kind
        yield struct.pack(f"<{len(shape)}Q", *shape)
        if text:
            texts = [str(word).encode() for word in column]
            lengths = np.array([len(word) for word in texts], np.uint32)
            yield struct.pack("<Q", sum(map(len, texts)) + lengths.nbytes)
            yield lengths.tobytes()
            yield from texts
        else:
            yield struct.pack("<Q", column.nbytes)
            yield np.ascontiguousarray(column).data.cast("B") if column.size else b""


def _decode_columns(payload: memoryview) -> dict[str, npt.NDArray[Any]]:
    (count,) = struct.unpack_from("<H", payload)
    at = 2
    columns: dict[str, npt.NDArray[Any]] = {}
    for _ in range(count):
        label_bytes, kind_bytes, dimensions = struct.unpack_from("<BBB", payload, at)
        at += 3
        name = bytes(payload[at : at + label_bytes]).decode()
        at += label_bytes
        kind = bytes(payload[at : at + kind_bytes]).decode()
        at += kind_bytes
        shape = struct.unpack_from(f"<{dimensions}Q", payload, at)
        at += 8 * dimensions
        (size_bytes,) = struct.unpack_from("<Q", payload, at)
        at += 8
        body = payload[at : at + size_bytes]
        at += size_bytes
        if kind == "text":
            columns[name] = _decode_text(body, shape[0])
        else:
            columns[name] = np.frombuffer(body, np.dtype(kind)).reshape(shape)
    return columns


def _decode_text(body: memoryview, count: int) -> npt.NDArray[Any]:
    lengths = np.frombuffer(body[: 4 * count], np.uint32)
    texts = np.empty(count, object)
    at = 4 * count
    for place, length in enumerate(lengths):
        texts[place] = bytes(body[at : at + int(length)]).decode()
        at += int(length)
    return texts


class TransactionLog:
    """The streams and snapshots of one engine in a store."""

    def __init__(self, store: Store, streams: int = 1) -> None:
        self._store = store
        self.streams = streams
        self._generation = 1 + max(self._generations(), default=0)
        self._snapshot_generation: dict[int, int] = {}
        self.bytes_written = 0

    def _generations(self) -> list[int]:
        return [_generation(name) for name in self._store.names() if name.startswith(_LOG)]

    def append(self, block: Block, stream: int = 0) -> None:
        """Add a block to its stream; `sync` makes it durable."""
        data = encode(block)
        self._store.append(_stream_name(self._generation, stream, self.streams), data)
        self.bytes_written += len(data)

    def sync(self) -> None:
        """Make every block so far durable."""
        self._store.sync()

    def save_snapshot(self, snapshot: Block) -> None:
        """Make a snapshot durable, then drop what only snapshots that are not kept need."""
        data = encode(snapshot)
        self._store.put(f"{SNAPSHOT}{snapshot.last_epoch:012d}", data)
        self.bytes_written += len(data)
        self._store.seal()
        self._generation += 1
        self._snapshot_generation[snapshot.last_epoch] = self._generation
        epochs = sorted(self._snapshot_epochs())
        kept = self._store.snapshots_kept
        for epoch in epochs[:-kept]:
            self._store.delete(f"{SNAPSHOT}{epoch:012d}")
        if len(epochs) >= kept:
            oldest_needed = self._snapshot_generation.get(epochs[-kept])
            if oldest_needed is not None:
                self._drop_generations_before(oldest_needed)

    def _drop_generations_before(self, generation: int) -> None:
        for name in self._store.names():
            if name.startswith(_LOG) and _generation(name) < generation:
                self._store.delete(name)

    def _snapshot_epochs(self) -> list[int]:
        names = [name for name in self._store.names() if name.startswith(SNAPSHOT)]
        return [int(name[len(SNAPSHOT) :]) for name in names]

    def newest_snapshot(self) -> tuple[Block | None, list[str]]:
        """The newest complete snapshot, and the names of damaged ones that were skipped."""
        damaged: list[str] = []
        for epoch in sorted(self._snapshot_epochs(), reverse=True):
            name = f"{SNAPSHOT}{epoch:012d}"
            block = next(decode(self._store.get(name)), None)
            if block is not None:
                return block, damaged
            damaged.append(name)
        return None, damaged

    def committed(self, after_epoch: int) -> list[list[Block]]:
        """Per commit after `after_epoch`, in order, its block in every stream.

        A commit counts once every stream has its block from one generation. If a commit was
        repeated after a crash, the newest complete one counts. Ends at the first gap.
        """
        blocks: dict[int, list[Block]] = {}
        for generation in sorted(set(self._generations())):
            parts = self._parts(generation)
            whole = set(parts[0]).intersection(*parts[1:])
            for first_epoch in whole:
                blocks[first_epoch] = [part[first_epoch] for part in parts]
        commits: list[list[Block]] = []
        expected = after_epoch + 1
        while expected in blocks and (
            not commits or blocks[expected][0].first_event == commits[-1][0].next_event
        ):
            commits.append(blocks[expected])
            expected = blocks[expected][0].last_epoch + 1
        return commits

    def _parts(self, generation: int) -> list[dict[int, Block]]:
        """Per stream of a generation, its blocks by first epoch."""
        names = [name for name in self._store.names() if name.startswith(_LOG)]
        own = [name for name in names if _generation(name) == generation]
        streams = int(own[0].split("-")[3])
        parts: list[dict[int, Block]] = []
        for stream in range(streams):
            name = _stream_name(generation, stream, streams)
            data = self._store.get(name) if name in own else b""
            parts.append({block.first_epoch: block for block in decode(data)})
        return parts

    def begin_generation(self) -> None:
        """Do not append to the existing streams, which may end torn."""
        self._store.seal()
        self._generation += 1

    def clear(self) -> None:
        """Delete every snapshot and block."""
        self.begin_generation()
        for name in self._store.names():
            if name.startswith((_LOG, SNAPSHOT)):
                self._store.delete(name)

    def close(self) -> None:
        self._store.seal()


def _stream_name(generation: int, stream: int, streams: int) -> str:
    return f"{_LOG}{generation:06d}-{stream}-{streams}"


def _generation(name: str) -> int:
    return int(name.split("-")[1])


def joined(parts: Sequence[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
    """One array from many, copying only if there is more than one."""
    if not parts:
        return np.zeros(0, dtype)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
