"""LV (Taurus): one log stream per thread; a vector of sequence numbers orders across streams.

Record i of stream s has, for each other stream, how many of its records must be redone first.
Each stream is redone in its own order by one thread, which waits at a record until the other
streams have reached its vector.
"""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from everstream.transactions.compiled import kernel
from everstream.transactions.execution import control_block, guard, totals_block
from everstream.transactions.log import Block, Columns, joined
from everstream.transactions.recovery.commands import now, pack, unpack
from everstream.transactions.recovery.scheme import (
    BatchRun,
    Inputs,
    RecoveryScheme,
    TransactionRecovery,
)


@kernel
def _vectors(
    types: Any,
    slots: Any,
    table_of: Any,
    is_write: Any,
    tables: int,
    stream_of: Any,
    cells: int,
    streams: int,
) -> Any:
    """Sequence vectors of transactions in timestamp order, from the keys they share."""
    rows = len(types)
    width = slots.shape[0]
    written = np.zeros((cells, streams), np.int32)
    read = np.zeros((cells, streams), np.int32)
    count = np.zeros(streams, np.int32)
    vectors = np.zeros((rows, streams), np.int32)
    for i in range(rows):
        kind = types[i]
        for p in range(width):
            if table_of[kind, p] < 0:
                break
            cell = slots[p, i] * tables + table_of[kind, p]
            for s in range(streams):
                vectors[i, s] = max(vectors[i, s], written[cell, s])
                if is_write[kind, p] != 0:
                    vectors[i, s] = max(vectors[i, s], read[cell, s])
        own = stream_of[i]
        count[own] += 1
        for p in range(width):
            if table_of[kind, p] < 0:
                break
            cell = slots[p, i] * tables + table_of[kind, p]
            if is_write[kind, p] != 0:
                written[cell, own] = count[own]
                for s in range(streams):
                    if s != own:
                        written[cell, s] = max(written[cell, s], vectors[i, s])
            else:
                read[cell, own] = count[own]
    return vectors


def sequence_vectors(
    engine: Any,
    types: npt.NDArray[np.uint8],
    slots: npt.NDArray[np.int32],
    stream_of: npt.NDArray[np.uint8],
    streams: int,
) -> npt.NDArray[np.int32]:
    """Per transaction, how many records of each stream must be redone before it."""
    layout = engine.layout
    tables = len(layout.tables)
    cells = (engine.largest_slot + 1) * tables
    vectors: npt.NDArray[np.int32] = _vectors(
        types, slots, layout.table_of, layout.is_write, tables, stream_of, cells, streams
    )
    return vectors


class LsnVector(RecoveryScheme):
    name = "lsn-vector"

    def blocks(self) -> list[Columns]:
        runs = self.take_runs()
        engine, layout = self.engine, self.engine.layout
        assert self.log is not None
        streams = self.log.streams
        chosen = [np.flatnonzero(run.committed) for run in runs]
        commands = unpack(layout, pack(layout, runs, chosen))
        stream_of = joined(
            [_stream_of(run, streams)[rows] for run, rows in zip(runs, chosen, strict=True)],
            np.uint8,
        )
        vectors = sequence_vectors(engine, commands.types, commands.slots, stream_of, streams)
        keys = self.new_keys()
        blocks: list[Columns] = []
        for stream in range(streams):
            rows = np.flatnonzero(stream_of == stream)
            columns = pack(layout, [commands], [rows])
            columns["vectors"] = vectors[rows]
            blocks.append({**keys, **columns} if stream == 0 else columns)
        return blocks

    def replay(
        self, commits: list[list[Block]], inputs: Inputs | None, report: TransactionRecovery
    ) -> None:
        engine, breakdown = self.engine, report.breakdown
        for blocks in commits:
            began = now()
            self.restore_keys(blocks[0])
            parts = [unpack(engine.layout, block.columns) for block in blocks]
            run = _joined_runs(parts)
            breakdown.reload_s += now() - began
            began = now()
            vectors = np.concatenate([block.columns["vectors"] for block in blocks])
            sizes = [len(part.types) for part in parts]
            stream_start = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
            done = np.zeros(8 * len(blocks), np.int64)
            breakdown.construct_s += now() - began
            control, totals = control_block(), totals_block(engine.parallelism)
            data = engine.data_of(run, False)
            work = partial(_redo, engine, stream_start, vectors, done, control, data, totals)
            began = now()
            guard(partial(engine.threads.together, control, work))
            breakdown.add(totals, now() - began)


def _redo(
    engine: Any,
    starts: Any,
    vectors: Any,
    done: Any,
    control: Any,
    data: Any,
    totals: Any,
    thread: int,
) -> None:
    engine.kernels.redo_streams(
        thread, engine.parallelism, starts, vectors, done, control, data, totals
    )


def _stream_of(run: BatchRun, streams: int) -> npt.NDArray[np.uint8]:
    """The thread that ran a transaction; if run in order, the key decides, as threads own keys."""
    if run.executed_by is not None:
        return run.executed_by
    return np.asarray(run.slots[0] % streams, np.uint8)


def _joined_runs(parts: list[BatchRun]) -> BatchRun:
    fields = [
        joined([part.fields[number] for part in parts], np.int64)
        for number in range(len(parts[0].fields))
    ]
    types = joined([part.types for part in parts], np.uint8)
    slots = np.ascontiguousarray(np.concatenate([part.slots for part in parts], axis=1))
    return BatchRun(0, types, slots, fields, [], np.ones(len(types), np.uint8))
