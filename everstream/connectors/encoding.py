"""Batches as bytes, of either kind: what output that waits, and journals, are made of.

Each batch is a kind, a length and a payload, so that batches can follow each other in one file.
Whoever keeps the file has a checksum of all of it.
"""

import io
import pickle
from typing import Any

import cloudpickle
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.batch import Batch

COLUMNS, RECORDS = b"#", b"="
UNSEALED = {b"C": COLUMNS, b"R": RECORDS}
"""The same kinds in files of earlier versions, which kept no checksum of them."""
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
        pass  # Classes and functions of the user's main program travel by value.
    try:
        data: bytes = cloudpickle.dumps(records)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"these records must pickle to be kept, and they do not: {error}. "
            "Turn them into plain values with a map first."
        ) from error
    return data


def decode(data: bytes) -> list[Batch]:
    """The batches that these bytes are made of; a ValueError if one is torn or damaged."""
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
    except Exception as error:  # what a pickle holds can raise anything when it is made
        raise ValueError(f"the batch at byte {position} cannot be read: {error}") from error
    return records
