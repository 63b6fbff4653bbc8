"""Batches of either kind as bytes: the format of pending output and of journals.

Each batch is a kind, a length and a payload, so batches can follow each other in one file. The
owner of the file keeps a checksum of all of it. Pending output has columns only, and is read with
`decode_frames`. Collected output and journals also contain records, as pickles.
"""

import hashlib
import io
import pickle
from collections.abc import Iterator
from typing import IO, Any, Final

import cloudpickle
import polars as pl
import xxhash

from everstream.errors import UserError
from everstream.pipeline.batch import Batch

COLUMNS, RECORDS = b"#", b"="
UNSEALED = {b"C": COLUMNS, b"R": RECORDS}
"""The same kinds in files of earlier versions, which had no checksum."""
LENGTH_BYTES = 8


def encode(batch: Batch) -> bytes:
    """The batch as bytes that can follow those of the batch before."""
    if isinstance(batch, pl.DataFrame):
        buffer = io.BytesIO()
        batch.clone().write_ipc(buffer)
        kind, payload = COLUMNS, buffer.getvalue()
    else:
        kind, payload = RECORDS, _pickled(batch)
    return b"".join((kind, len(payload).to_bytes(LENGTH_BYTES, "little"), payload))


def _pickled(records: list[Any]) -> bytes:
    try:
        return pickle.dumps(records, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError):
        pass  # Classes and functions of the user's main program are pickled by value.
    try:
        data: bytes = cloudpickle.dumps(records)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"these records must pickle to be saved, but they do not: {error}. "
            "Turn them into plain values with a map first."
        ) from error
    return data


def decode_frames(file: IO[bytes]) -> Iterator[pl.DataFrame]:
    """The batches in a file that contains columns only; a ValueError for anything else.

    Nothing is unpickled here, whatever the file claims to contain.
    """
    position = 0
    while head := file.read(1 + LENGTH_BYTES):
        kind, size = head[:1], int.from_bytes(head[1:], "little")
        payload = file.read(size)
        if len(payload) < size or UNSEALED.get(kind, kind) != COLUMNS:
            raise ValueError(f"not a whole batch of columns at byte {position}")
        frame = _loaded(COLUMNS, payload, position)
        assert isinstance(frame, pl.DataFrame)
        yield frame
        position += len(head) + size


def decode(data: bytes) -> list[Batch]:
    """The batches in these bytes; a ValueError if one is torn or damaged.

    Batches of records are pickles, which run code when loaded: only pass bytes you trust.
    """
    batches: list[Batch] = []
    position = 0
    while position < len(data):
        head = data[position : position + 1 + LENGTH_BYTES]
        kind, size = head[:1], int.from_bytes(head[1:], "little")
        start = position + len(head)
        payload = data[start : start + size]
        if len(payload) < size or kind not in (COLUMNS, RECORDS, *UNSEALED):
            raise ValueError(f"not a whole batch at byte {position}")
        batches.append(_loaded(UNSEALED.get(kind, kind), payload, position))
        position = start + size
    return batches


def _loaded(kind: bytes, payload: bytes, position: int) -> Batch:
    try:
        if kind == COLUMNS:
            return pl.read_ipc(io.BytesIO(payload))
        records: list[Any] = pickle.loads(payload)
    except Exception as error:  # unpickling can raise anything
        raise ValueError(f"the batch at byte {position} cannot be read: {error}") from error
    return records


STRONG: Final = "sha256:"
"""Prefix of a sum that cannot be forged."""


class RunningSum:
    """The checksum of pending output, computed as its bytes are written.

    Output can be gigabytes a minute, so this is XXH3, which is as fast as memory. It finds damage; it
    does not withstand a forger. In a signed store the sum is SHA-256. It is saved where only
    holders of the key can write, so no one else can replace the bytes.
    """

    def __init__(self, strong: bool = False) -> None:
        """strong: protects against forgery as well as damage."""
        self._strong = strong
        self._sum: Any = hashlib.sha256() if strong else xxhash.xxh3_64()

    def add(self, data: bytes) -> None:
        self._sum.update(data)

    def __str__(self) -> str:
        return f"{STRONG if self._strong else ''}{self._sum.hexdigest()}"


def sum_of(data: bytes, strong: bool = False) -> str:
    """The sum of these bytes: 16 hexadecimal digits, or `STRONG` and 64 of them."""
    summed = RunningSum(strong)
    summed.add(data)
    return str(summed)
