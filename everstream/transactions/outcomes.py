"""Postprocessing: verdicts and values read become a frame of outcomes, without copying values."""

import numpy as np
import polars as pl
import pyarrow as pa

from everstream.transactions.codegen import Layout, ReadColumn
from everstream.transactions.recovery.scheme import BatchRun


def outcome_frame(layout: Layout, run: BatchRun) -> pl.DataFrame:
    """Per event: its number, whether it committed, and the values its keys held before it."""
    rows = len(run.types)
    columns = [
        pl.Series("event", np.arange(run.first_event, run.first_event + rows, dtype=np.int64)),
        pl.Series("committed", run.committed.view(np.bool_)),
    ]
    for column, values in zip(layout.reads, run.reads, strict=True):
        name = column.name if column.field is None else f"{column.name}.{column.field}"
        used = _used(layout, column)
        if used.all() or values.dtype == np.bool_:
            columns.append(pl.Series(name, values))
            continue
        validity = pa.py_buffer(np.packbits(used[run.types], bitorder="little"))
        array = pa.Array.from_buffers(
            pa.from_numpy_dtype(values.dtype), rows, [validity, pa.py_buffer(values)]
        )
        columns.append(pl.Series(name, array))
    return pl.DataFrame(columns)


def _used(layout: Layout, column: ReadColumn) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    used = np.zeros(len(layout.transactions), np.bool_)
    for number, _ in column.users:
        used[number] = True
    return used
