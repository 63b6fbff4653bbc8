"""Chains: the written operations of each key in order, how workers share them, how entangled they are.

Recovery that has the recorded reads needs no graph: chains of different keys are independent.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from everstream.transactions.compiled import kernel
from everstream.transactions.engine import TransactionEngine
from everstream.transactions.recovery import BatchRun

Cells = npt.NDArray[np.int64]


@kernel
def chains_of(
    types: Any, slots: Any, table_of: Any, is_write: Any, tables: int, included: Any, cells: int
) -> Any:
    """Written operations grouped by cell in timestamp order.

    Returns where each cell's chain starts, the operations as transaction * width +
    position, and the cells that have any, in one counting sort.
    """
    written, cell_of = _writes(types, slots, table_of, is_write, tables, included)
    start = np.zeros(cells + 1, np.int64)
    for cell in cell_of:
        start[cell + 1] += 1
    used = 0
    for cell in range(cells):
        if start[cell + 1] > 0:
            used += 1
        start[cell + 1] += start[cell]
    fill = start[:-1].copy()
    operations = np.empty(len(written), np.int64)
    for at in range(len(written)):
        operations[fill[cell_of[at]]] = written[at]
        fill[cell_of[at]] += 1
    present = np.empty(used, np.int64)
    used = 0
    for cell in range(cells):
        if start[cell + 1] > start[cell]:
            present[used] = cell
            used += 1
    return start, operations, present


@kernel
def _writes(
    types: Any, slots: Any, table_of: Any, is_write: Any, tables: int, included: Any
) -> Any:
    """The written operations in timestamp order, and the cell of each."""
    rows = len(types)
    width = slots.shape[0]
    written = np.empty(rows * width, np.int64)
    cell_of = np.empty(rows * width, np.int64)
    count = 0
    for i in range(rows):
        if included[i] == 0:
            continue
        kind = types[i]
        for p in range(width):
            if table_of[kind, p] < 0:
                break
            if _is_last_write(kind, p, i, slots, table_of, is_write):
                written[count] = i * width + p
                cell_of[count] = slots[p, i] * tables + table_of[kind, p]
                count += 1
    return written[:count], cell_of[:count]


@kernel
def _is_last_write(kind: int, p: int, i: int, slots: Any, table_of: Any, is_write: Any) -> bool:
    if is_write[kind, p] == 0:
        return False
    for later in range(p + 1, slots.shape[0]):
        if (
            is_write[kind, later] != 0
            and table_of[kind, later] == table_of[kind, p]
            and slots[later, i] == slots[p, i]
        ):
            return False
    return True


def deal(chain_start: Cells, chains: Cells, workers: int, by_weight: bool) -> list[Cells]:
    """The chains of each worker: heaviest first to the least loaded, or by key alone."""
    weights = chain_start[chains + 1] - chain_start[chains]
    if by_weight:
        worker_of, _ = heaviest_first(weights, workers)
    else:
        span = (int(chains.max(initial=0)) + workers) // workers
        worker_of = (chains // max(1, span)).astype(np.int32)
    return [chains[worker_of == worker] for worker in range(workers)]


def heaviest_first(weights: Any, workers: int) -> Any:
    """Assign tasks, heaviest first, each to the worker with the least work so far.

    Returns the worker of each task and the load of each worker.
    """
    return _to_least_loaded(weights, np.argsort(-weights, kind="stable"), workers)


@kernel
def _to_least_loaded(weights: Any, order: Any, workers: int) -> Any:
    worker_of = np.empty(len(weights), np.int32)
    load = np.zeros(workers, np.int64)
    for place in range(len(order)):
        task = order[place]
        best = 0
        for worker in range(1, workers):
            if load[worker] < load[best]:
                best = worker
        worker_of[task] = best
        load[best] += weights[task]
    return worker_of, load


@dataclass(frozen=True)
class Dependencies:
    """How entangled a batch is: counts of the three kinds, and the share of its hottest key."""

    operations: int
    temporal: int
    logical: int
    parametric: int
    hottest_share: float
    temporal_per_transaction: float


@kernel
def count_dependencies(
    types: Any, slots: Any, table_of: Any, is_write: Any, tables: int, counts: Any
) -> Any:
    """Operations, logical and parametric pairs; and the hottest cell's count. Clears `counts`."""
    rows = len(types)
    width = slots.shape[0]
    operations = 0
    logical = 0
    parametric = 0
    hottest = 0
    for i in range(rows):
        kind = types[i]
        keys = 0
        writes = 0
        for p in range(width):
            if table_of[kind, p] < 0:
                break
            keys += 1
            writes += is_write[kind, p]
            cell = slots[p, i] * tables + table_of[kind, p]
            counts[cell] += 1
            hottest = max(hottest, counts[cell])
        operations += keys
        logical += keys - 1
        parametric += writes * (keys - 1)
    for i in range(rows):
        kind = types[i]
        for p in range(width):
            if table_of[kind, p] < 0:
                break
            counts[slots[p, i] * tables + table_of[kind, p]] = 0
    return operations, logical, parametric, hottest


def dependencies_of(engine: TransactionEngine, run: BatchRun) -> Dependencies:
    """The dependency counts of a batch whose graph is known."""
    assert run.graph is not None
    layout = engine.layout
    counts = np.zeros((engine.largest_slot + 1) * len(layout.tables), np.int32)
    operations, logical, parametric, hottest = count_dependencies(
        run.types, run.slots, layout.table_of, layout.is_write, len(layout.tables), counts
    )
    rows = max(1, len(run.types))
    temporal = len(run.graph.successors)
    return Dependencies(operations, temporal, logical, parametric, hottest / rows, temporal / rows)
