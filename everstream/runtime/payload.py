"""The payload of a frame: a batch, and how it becomes bytes and back.

A payload is encoded at most once, however many channels or logs it goes to, and decoded only when
the batch is used. Batches with columns are sent as Arrow IPC, others as one pickle for the whole
batch, followed by the memory of large arrays, such as images.
"""

import pickle
import struct
from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from everstream.errors import InternalError, UserError, said
from everstream.pipeline.batch import Batch
from everstream.state.freezing import dumps_apart


class BatchPayload:
    """A batch, its bytes, or both."""

    __slots__ = ("_batch", "_encoded")

    def __init__(self, batch: Batch | None = None, encoded: Any = None) -> None:
        self._batch = batch
        self._encoded = encoded

    @property
    def batch(self) -> Batch:
        if self._batch is None:
            self._batch = decode_batch(self._encoded)
        return self._batch

    @property
    def known_bytes(self) -> int | None:
        """Its approximate size, if known without encoding it: objects have no size."""
        if self._encoded is not None:
            return len(self._encoded)
        batch = self._batch
        return int(batch.estimated_size()) if isinstance(batch, pl.DataFrame) else None

    @property
    def encoded(self) -> Any:
        """A buffer with the bytes as they are sent and logged."""
        if self._encoded is None:
            assert self._batch is not None
            self._encoded = encode_batch(self._batch)
        return self._encoded


_PICKLED = b"\x00" * 8
_ARROW = b"\x01" + b"\x00" * 7
_APART = b"\x02" + b"\x00" * 7
_POLARS = b"\x03" + b"\x00" * 7
"""Eight bytes, so that the Arrow data behind them stays aligned."""
_WIDE = frozenset({pl.Int128, pl.UInt128})
"""PyArrow does not have such numbers: Polars writes and reads them."""
_SMALL_FRAME = 4096
"""Up to this many values in a frame, Polars writes Arrow IPC directly. The way through PyArrow
copies less, but takes some 100 microseconds however small the frame is."""
_SMALL_BYTES = 1 << 16
"""The same for reading."""


def encode_batch(batch: Batch) -> Any:
    if isinstance(batch, list):
        return _pickled(batch)
    if any(kind in _WIDE for kind in batch.dtypes):
        return _POLARS + batch.write_ipc_stream(None).getbuffer()
    if batch.height * batch.width <= _SMALL_FRAME:
        small = batch.clone().write_ipc_stream(None, compat_level=pl.CompatLevel.oldest())
        return _ARROW + small.getbuffer()
    table = batch.to_arrow(compat_level=pl.CompatLevel.oldest())
    # Writing into memory of about the right size is twice as fast as into a growing stream.
    size = table.nbytes + 4096 + 1024 * table.num_columns * max(1, len(batch) >> 16)
    buffer = pa.allocate_buffer(size)
    try:
        return buffer.slice(0, _write_arrow(table, pa.FixedSizeBufferWriter(buffer)))
    except (pa.ArrowInvalid, OSError):
        sink = pa.BufferOutputStream()
        _write_arrow(table, sink)
        return sink.getvalue()


def _pickled(batch: list[Any]) -> Any:
    """Classes of the user's script are pickled by value: the other process lacks the module."""
    try:
        encoded, apart = dumps_apart(_PICKLED, batch)
        return _joined(memoryview(encoded)[len(_PICKLED) :], apart) if apart else encoded
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"records that go to another shard must pickle, and these do not: {said(error)}. "
            "Turn them into plain values with a map."
        ) from error


_ALIGNED = 64
_COUNT = struct.Struct("<8sQ")


def _joined(pickled: memoryview, apart: list[memoryview]) -> Any:
    """The number of pieces and their lengths, then the pieces; each is copied once, into place."""
    pieces = [pickled, *apart]
    lengths = [piece.nbytes for piece in pieces]
    places, size = _places(lengths)
    buffer = pa.allocate_buffer(size)
    whole = memoryview(buffer).cast("B")
    _COUNT.pack_into(whole, 0, _APART, len(pieces))
    struct.pack_into(f"<{len(lengths)}Q", whole, _COUNT.size, *lengths)
    end = _COUNT.size + 8 * len(lengths)
    for place, piece in zip(places, pieces, strict=True):
        whole[end:place] = bytes(place - end)  # do not leak the previous contents of this memory
        end = place + piece.nbytes
        whole[place:end] = piece
    return buffer


def _places(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Where pieces of these lengths begin, and where the last one ends."""
    places, position = [], _COUNT.size + 8 * len(lengths)
    for length in lengths:
        position += -position % _ALIGNED
        places.append(position)
        position += length
    return places, position


def _taken_apart(encoded: Any) -> list[Any]:
    """The batch; its arrays are in separate memory that nothing else uses."""
    whole = memoryview(bytearray(encoded))
    _, count = _COUNT.unpack_from(whole)
    if _COUNT.size + 8 * count > len(whole):
        raise InternalError(f"a frame of {len(whole)} bytes claims to have {count} pieces")
    lengths = struct.unpack_from(f"<{count}Q", whole, _COUNT.size)
    places, size = _places(lengths)
    if size != len(whole):
        raise InternalError(f"a frame has {len(whole)} bytes where its pieces have {size}")
    pickled, *apart = [
        whole[place : place + length] for place, length in zip(places, lengths, strict=True)
    ]
    return list(pickle.loads(pickled, buffers=apart))


def _write_arrow(table: Any, sink: Any) -> int:
    sink.write(_ARROW)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return int(sink.tell())


def decode_batch(encoded: Any) -> Batch:
    if isinstance(encoded, bytes) and encoded.startswith(_PICKLED):  # small ones come like this
        return list(pickle.loads(memoryview(encoded)[len(_PICKLED) :]))
    if isinstance(encoded, bytes) and len(encoded) <= _SMALL_BYTES and encoded.startswith(_ARROW):
        return pl.read_ipc_stream(encoded[len(_ARROW) :])
    buffer = pa.py_buffer(encoded)
    kind = buffer.slice(0, 8).to_pybytes()
    body = buffer.slice(8)
    if kind == _PICKLED:
        return list(pickle.loads(body))
    if kind == _APART:
        return _taken_apart(buffer)
    if kind == _POLARS:
        return pl.read_ipc_stream(body.to_pybytes())
    if kind == _ARROW:
        with pa.ipc.open_stream(body) as reader:
            frame = pl.from_arrow(reader.read_all(), rechunk=False)
        assert isinstance(frame, pl.DataFrame)
        return frame
    raise InternalError(f"a frame starts with {kind!r}, which is no known encoding")


def warm_up() -> None:
    """Initialize Polars and Arrow, which would take the first batch tens of ms."""
    batch = pl.DataFrame({"warm": range(1000)}).filter(pl.col("warm") >= 0)
    decode_batch(encode_batch(batch))
