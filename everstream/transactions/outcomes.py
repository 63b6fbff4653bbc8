"""Postprocessing: verdicts and values read become a frame of outcomes, without copying values.

The frame is handed over as one Arrow batch: building Polars columns one by one costs more than
running a small batch.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from everstream.transactions.layout import Layout, ReadColumn
from everstream.transactions.recovery.scheme import BatchRun


class Outcomes:
    """Makes the outcomes of one set of transactions."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._used = [_used(layout, column) for column in layout.reads]
        names = [
            column.name if column.field is None else f"{column.name}.{column.field}"
            for column in layout.reads
        ]
        types = [pa.from_numpy_dtype(np.dtype(column.dtype)) for column in layout.reads]
        fields = [("event", pa.int64()), ("committed", pa.bool_())]
        self._schema = pa.schema([*fields, *zip(names, types, strict=True)])

    def frame(self, run: BatchRun) -> pl.DataFrame:
        """Per event: its number, whether it committed, and the values its keys held before it."""
        rows = len(run.types)
        # From buffers: `pa.array` imports pandas first, which takes a third of a second.
        numbers = np.arange(run.first_event, run.first_event + rows, dtype=np.int64)
        arrays = [
            _array(pa.py_buffer(numbers), None, pa.int64(), rows),
            _array(_bits(run.committed), None, pa.bool_(), rows),
        ]
        of_users: dict[bytes, Any] = {}
        for used, values, field in zip(self._used, run.reads, list(self._schema)[2:], strict=True):
            validity = None
            if not used.all():
                # Columns of the same users are null in the same rows.
                label = used.tobytes()
                if label not in of_users:
                    of_users[label] = _bits(used[run.types])
                validity = of_users[label]
            data = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(values)
            arrays.append(_array(data, validity, field.type, rows))
        return pl.DataFrame(pa.RecordBatch.from_arrays(arrays, schema=self._schema))


def _bits(flags: npt.NDArray[Any]) -> Any:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _array(data: Any, validity: Any, kind: Any, rows: int) -> Any:
    return pa.Array.from_buffers(kind, rows, [validity, data])


def _used(layout: Layout, column: ReadColumn) -> npt.NDArray[np.bool_]:
    used = np.zeros(len(layout.transactions), np.bool_)
    for number, _ in column.users:
        used[number] = True
    return used
