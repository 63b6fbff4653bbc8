"""`Collect`: a bounded pipeline's output goes back to the caller, exactly once.

Batches wait as part files in the run's store and are read back in order of (checkpoint, shard).
"""

import io
import pickle
from typing import Any

import cloudpickle
import polars as pl

from everstream.connectors.parts import PartFolder, PartWriter, owner_of
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Delivery, Sink, SinkShard, Writer

ENDING = ".batches"
COLUMNS, RECORDS = b"C", b"R"
HEADER_BYTES = 9


class Collect(Sink):
    """Keeps the output in the run's store and hands it back when the run is done."""

    delivery = Delivery.EXACTLY_ONCE

    def open(self, who: SinkShard) -> Writer:
        return _CollectWriter(_folder(who.store, who.operator), who)

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        _folder(store, operator).start_fresh(pipeline, operator, replace)

    def results(self, pipeline: str, operator: str, store: str) -> list[Batch]:
        folder = _folder(store, operator)
        batches: list[Batch] = []
        for part in folder.parts(owner_of(pipeline, operator)):
            path = folder.path_of(part)
            try:
                batches += decode(folder.fs.cat_file(path))
            except (OSError, ValueError) as error:
                raise ConnectorError(f"cannot read the output '{path}': {error}") from error
        return batches


def _folder(store: str, operator: str) -> PartFolder:
    # The pipeline's name comes second in file names; here only the operator's part is needed.
    name = owner_of("", operator).removeprefix(".")
    return PartFolder.at(f"{store.rstrip('/')}/outputs/{name}", ENDING)


class _CollectWriter(PartWriter):
    def encode(self, batch: Batch) -> bytes:
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
            f"collected records must pickle, and these do not: {error}. "
            "Turn them into plain values with a map before .collect()."
        ) from error
    return data


def decode(data: bytes) -> list[Batch]:
    """The batches of one part file."""
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
