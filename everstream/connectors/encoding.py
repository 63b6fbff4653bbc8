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
    """The batches in a file of columns; a ValueError for anything else: nothing is unpickled."""
    for batch in _batches(file, columns_only=True):
        assert isinstance(batch, pl.DataFrame)
        yield batch


def decode(data: bytes) -> list[Batch]:
    """The batches in these bytes; a ValueError if one is torn or damaged.

    Batches of records are pickles, which run code when loaded: only pass bytes you trust.
    """
    return list(_batches(io.BytesIO(data), columns_only=False))


def _batches(file: IO[bytes], columns_only: bool) -> Iterator[Batch]:
    kinds, wanted = (COLUMNS, RECORDS), "batch"
    if columns_only:
        kinds, wanted = (COLUMNS, COLUMNS), "batch of columns"
    position = 0
    while head := file.read(1 + LENGTH_BYTES):
        kind, size = UNSEALED.get(head[:1], head[:1]), int.from_bytes(head[1:], "little")
        payload = file.read(size)
        if len(payload) < size or kind not in kinds:
            raise ValueError(f"not a whole {wanted} at byte {position}")
        try:
            loaded = pl.read_ipc(io.BytesIO(payload)) if kind == COLUMNS else pickle.loads(payload)
        except Exception as error:  # unpickling can raise anything
            raise ValueError(f"the batch at byte {position} cannot be read: {error}") from error
        yield loaded
        position += len(head) + size


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
