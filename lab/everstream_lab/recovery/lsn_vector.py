"""LV (Taurus): one log stream per thread; a vector of sequence numbers orders across streams.

Record i of stream s has, for each other stream, how many of its records must be redone first.
Each stream is redone in its own order by one thread, which waits at a record until the other
streams have reached its vector.
"""

from dataclasses import replace
from time import perf_counter as now
from typing import Any

import numpy as np
import numpy.typing as npt

from everstream.transactions.compiled import cycles, kernel, load, store
from everstream.transactions.execution import Breakdown, Counters
from everstream.transactions.kernels.drivers import STOP, account, spin_on
from everstream.transactions.log import Block, Columns, joined
from everstream.transactions.recovery import (
    BatchRun,
    Inputs,
    RecoveryScheme,
    TransactionRecovery,
)
from everstream_lab.recovery.commands import pack, unpack
from everstream_lab.recovery.steps import REDOING, redo


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


def redo_streams(
    thread: int,
    threads: int,
    stream_start: Any,
    vectors: Any,
    done: Any,
    control: Any,
    data: Any,
    totals: Any,
) -> None:
    """Redo log streams in their own order, each record once the streams it names are far enough.

    Records of stream s lie at stream_start[s] to stream_start[s + 1], and `vectors[i, q]`
    is how many records of stream q must be done before record i.
    """
    streams = len(stream_start) - 1
    execute = 0
    explore = 0
    wait = 0
    left = 0
    for stream in range(thread, streams, threads):
        left += stream_start[stream + 1] - stream_start[stream]
    mark = cycles()
    tries = 0
    while left > 0:
        moved = False
        for stream in range(thread, streams, threads):
            finished = load(done, stream * 8)
            i = stream_start[stream] + finished
            if i >= stream_start[stream + 1]:
                continue
            ready = True
            for other in range(streams):
                if other != stream and load(done, other * 8) < vectors[i, other]:
                    ready = False
                    break
            now = cycles()
            if ready:
                explore += now - mark
                mark = now
                redo(i, data)
                now = cycles()
                execute += now - mark
                mark = now
                store(done, stream * 8, finished + 1)
                left -= 1
                moved = True
                tries = 0
        if not moved:
            if load(control, STOP) != 0:
                return
            tries = spin_on(tries)
            now = cycles()
            wait += now - mark
            mark = now
    account(totals, thread, execute, 0, explore, wait)


class LsnVector(RecoveryScheme):
    name = "lsn-vector"
    kernel_parts = replace(REDOING, walks=(redo_streams,))
    stream_per_thread = True

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
        for blocks in commits:
            self._redo(blocks, report.breakdown)

    def _redo(self, blocks: list[Block], breakdown: Breakdown) -> None:
        engine = self.engine
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
        data = engine.data_of(run, outcomes=False)

        def work(thread: int, control: Counters, totals: Counters) -> None:
            streams = (stream_start, vectors, done)
            engine.kernels.redo_streams(thread, engine.parallelism, *streams, control, data, totals)

        began = now()
        breakdown.add(engine.threads.together(work), now() - began)


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
