"""Batches as bytes, of either kind: what output that waits, and journals, are made of.

Each batch is a kind, a length and a payload, so that batches can follow each other in one file.
"""

import io
import pickle
from typing import Any

import cloudpickle
import polars as pl

from everstream.errors import UserError
from everstream.pipeline.batch import Batch

COLUMNS, RECORDS = b"C", b"R"
HEADER_BYTES = 9


def encode(batch: Batch) -> bytes:
    """The batch as bytes that can follow those of the batch before."""
    if isinstance(batch, pl.DataFrame):
        buffer = io.BytesIO()
        batch.write_ipc(buffer)
        kind, payload = COLUMNS, buffer.getvalue()
    else:
        kind, payload = RECORDS, _pickled(batch)
    return kind + len(payload).to_bytes(HEADER_BYTES - 1, "little") + payload


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
    """The batches that these bytes are made of; a ValueError if the last one is torn."""
    batches: list[Batch] = []
    position = 0
    while position < len(data):
        kind = data[position : position + 1]
        size = int.from_bytes(data[position + 1 : position + HEADER_BYTES], "little")
        payload = data[position + HEADER_BYTES : position + HEADER_BYTES + size]
        if len(payload) < size or kind not in (COLUMNS, RECORDS):
            raise ValueError(f"not a whole batch at byte {position}")
        batches.append(
            pl.read_ipc(io.BytesIO(payload)) if kind == COLUMNS else pickle.loads(payload)
        )
        position += HEADER_BYTES + size
    return batches
