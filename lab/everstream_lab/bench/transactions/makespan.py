"""A model, not a measurement: how long each scheme's schedule would take on more workers.

It replays the decisions the real kernels make (who is ready, which level, which stream,
which chain) with a clock per worker, where each operation takes its measured time and
everything else, memory and contention included, is free. So it shows what dependencies
and balance allow, an upper bound on what a machine of that size would do.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from everstream.transactions.compiled import kernel
from everstream.transactions.engine import TransactionEngine
from everstream.transactions.recovery import BatchRun
from everstream_lab.recovery.chains import chains_of, heaviest_first
from everstream_lab.recovery.dependency import by_level, levels_of
from everstream_lab.recovery.lsn_vector import sequence_vectors
from everstream_lab.workloads.transactions import Workload

SCHEMES = ("checkpoint", "wal", "dependency", "lsn-vector", "fast")


@dataclass(frozen=True)
class Makespan:
    """Seconds per scheme to get through the replay, on this many workers."""

    workers: int
    seconds: dict[str, float]

    @property
    def gain(self) -> float:
        """How many times faster `fast` is than the next best."""
        others = [value for name, value in self.seconds.items() if name != "fast"]
        return min(others) / self.seconds["fast"]


def model(
    workload: Workload,
    events: pl.DataFrame,
    epoch_events: int,
    operation_s: float,
    workers: Sequence[int],
) -> list[Makespan]:
    """The makespan of replaying `events` for each number of workers."""
    engine = TransactionEngine(workload.tables, workload.transactions, recovery="none")
    runs = []
    for first in range(0, len(events), epoch_events):
        run = engine.prepare(events[first : first + epoch_events], first)
        engine.execute(run, engine.breakdown)
        runs.append(run)
    return [Makespan(count, _seconds(engine, runs, operation_s, count)) for count in workers]


def _seconds(
    engine: TransactionEngine, runs: list[BatchRun], operation_s: float, workers: int
) -> dict[str, float]:
    layout = engine.layout
    totals = dict.fromkeys(SCHEMES, 0.0)
    for run in runs:
        keys = np.array([len(declared.keys) for declared in layout.transactions])
        costs = np.asarray(keys[run.types] * operation_s, np.float64)
        kept = run.committed
        every = np.ones(len(run.types), np.uint8)
        graph = engine.graphs.build(run.types, run.slots, every, engine.largest_slot)
        finish, worker_of = list_schedule(
            graph.incoming, graph.start, graph.successors, costs, workers
        )
        totals["checkpoint"] += finish
        totals["wal"] += float(costs[kept != 0].sum())
        logged = engine.graphs.build(run.types, run.slots, kept, engine.largest_slot)
        level = levels_of(logged.start, logged.successors, len(run.types), kept)
        order, level_start = by_level(level)
        totals["dependency"] += _by_levels(order, level_start, costs, workers)
        totals["lsn-vector"] += _by_streams(engine, run, worker_of, costs, workers)
    totals["fast"] = _by_chains(engine, runs, operation_s, workers)
    return totals


def list_schedule(
    incoming: Any, start: Any, successors: Any, costs: npt.NDArray[np.float64], workers: int
) -> tuple[float, npt.NDArray[np.uint8]]:
    """Ready transactions in the order they became ready, each to the worker free first."""
    pending = incoming.copy()
    ready = [(0.0, int(i)) for i in np.flatnonzero(pending == 0)]
    heapq.heapify(ready)
    free = [(0.0, worker) for worker in range(workers)]
    worker_of = np.zeros(len(costs), np.uint8)
    last = 0.0
    while ready:
        ready_s, i = heapq.heappop(ready)
        free_s, worker = heapq.heappop(free)
        done_s = max(ready_s, free_s) + float(costs[i])
        worker_of[i] = worker
        last = max(last, done_s)
        heapq.heappush(free, (done_s, worker))
        for successor in successors[start[i] : start[i + 1]]:
            pending[successor] -= 1
            if pending[successor] == 0:
                heapq.heappush(ready, (done_s, int(successor)))
    return last, worker_of


def _by_levels(order: Any, level_start: Any, costs: Any, workers: int) -> float:
    total = 0.0
    for level in range(len(level_start) - 1):
        own = costs[order[level_start[level] : level_start[level + 1]]]
        total += max(float(own[worker::workers].sum()) for worker in range(min(workers, len(own))))
    return total


def _by_streams(
    engine: TransactionEngine, run: BatchRun, worker_of: Any, costs: Any, workers: int
) -> float:
    rows = np.flatnonzero(run.committed)
    stream_of = worker_of[rows]
    vectors = sequence_vectors(
        engine, run.types[rows], np.ascontiguousarray(run.slots[:, rows]), stream_of, workers
    )
    return float(_streams_finish(vectors, stream_of, costs[rows], workers))


@kernel
def _streams_finish(vectors: Any, stream_of: Any, costs: Any, streams: int) -> float:
    """Timestamp order is an order in which every record's predecessors are already placed."""
    rows = len(stream_of)
    finish = np.zeros((streams, rows + 1))
    count = np.zeros(streams, np.int64)
    last = 0.0
    for i in range(rows):
        own = stream_of[i]
        begin = finish[own, count[own]]
        for s in range(streams):
            if s != own:
                begin = max(begin, finish[s, vectors[i, s]])
        count[own] += 1
        finish[own, count[own]] = begin + costs[i]
        last = max(last, begin + costs[i])
    return last


def _by_chains(
    engine: TransactionEngine, runs: list[BatchRun], operation_s: float, workers: int
) -> float:
    layout = engine.layout
    committed = np.concatenate([run.committed for run in runs])
    starts, _, chains = chains_of(
        np.concatenate([run.types for run in runs]),
        np.concatenate([run.slots for run in runs], axis=1),
        layout.table_of,
        layout.is_write,
        len(layout.tables),
        committed,
        (engine.largest_slot + 1) * len(layout.tables),
    )
    weights = starts[chains + 1] - starts[chains]
    _, load = heaviest_first(weights, workers)
    return float(load.max()) * operation_s
