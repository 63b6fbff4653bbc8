"""The task precedence graph of a batch, and what is derived from it.

A transaction waits for an earlier one when they share a key and one of them writes it
(temporal dependency); its operations belong together (logical) and read each other's
keys (parametric), which is why the unit that waits is the whole transaction. Recovery
that has the recorded reads needs only the chains: the operations of each key in order.

A cell is a key of a table as one number: slot times the number of tables, plus the table.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from everstream.transactions.codegen import Layout
from everstream.transactions.compiled import kernel

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Graph:
    """Who waits for whom: `successors[start[i]:start[i + 1]]` wait for transaction i."""

    incoming: Ints
    start: npt.NDArray[np.int64]
    successors: Ints


@dataclass(frozen=True)
class Dependencies:
    """How entangled a batch is: counts of the three kinds, and the share of its hottest key."""

    operations: int
    temporal: int
    logical: int
    parametric: int
    hottest_share: float


class GraphBuilder:
    """Builds graphs over growing tables, reusing its per-cell memory between batches."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._writer = np.full(0, -1, np.int32)
        self._readers = np.full(0, -1, np.int32)

    def build(
        self,
        types: npt.NDArray[np.uint8],
        slots: Ints,
        included: npt.NDArray[np.uint8],
        largest_slot: int,
    ) -> Graph:
        """The graph over the transactions that `included` marks."""
        tables = len(self._layout.tables)
        cells = (largest_slot + 1) * tables
        if len(self._writer) < cells:
            self._writer = np.full(2 * cells, -1, np.int32)
            self._readers = np.full(2 * cells, -1, np.int32)
        rows = len(types)
        width = self._layout.width
        source = np.empty(2 * rows * width, np.int32)
        target = np.empty(2 * rows * width, np.int32)
        incoming = np.zeros(rows, np.int32)
        outgoing = np.zeros(rows + 1, np.int64)
        edges = _find_edges(
            types,
            slots,
            self._layout.table_of,
            self._layout.is_write,
            tables,
            included,
            self._writer,
            self._readers,
            source,
            target,
            incoming,
            outgoing,
        )
        successors = np.empty(edges, np.int32)
        _gather_successors(source, target, edges, outgoing, successors)
        return Graph(incoming, outgoing, successors)


@kernel
def _find_edges(
    types: Any,
    slots: Any,
    table_of: Any,
    is_write: Any,
    tables: int,
    included: Any,
    writer: Any,
    readers: Any,
    source: Any,
    target: Any,
    incoming: Any,
    outgoing: Any,
) -> int:
    rows = len(types)
    width = slots.shape[0]
    next_reader = np.empty(rows * width, np.int32)
    linked = np.full(rows, -1, np.int32)
    edges = 0
    for i in range(rows):
        if included[i] == 0:
            continue
        kind = types[i]
        for p in range(width):
            table = table_of[kind, p]
            if table < 0:
                break
            cell = slots[p, i] * tables + table
            before = writer[cell]
            if before >= 0 and linked[before] != i:
                linked[before] = i
                source[edges] = before
                target[edges] = i
                edges += 1
            if is_write[kind, p] != 0:
                reader = readers[cell]
                while reader >= 0:
                    before = reader // width
                    if before != i and linked[before] != i:
                        linked[before] = i
                        source[edges] = before
                        target[edges] = i
                        edges += 1
                    reader = next_reader[reader]
        for p in range(width):
            table = table_of[kind, p]
            if table < 0:
                break
            cell = slots[p, i] * tables + table
            if is_write[kind, p] != 0:
                writer[cell] = i
                readers[cell] = -1
            elif writer[cell] != i:
                next_reader[i * width + p] = readers[cell]
                readers[cell] = i * width + p
    for i in range(rows):
        kind = types[i]
        for p in range(width):
            table = table_of[kind, p]
            if table < 0:
                break
            cell = slots[p, i] * tables + table
            writer[cell] = -1
            readers[cell] = -1
    for edge in range(edges):
        incoming[target[edge]] += 1
        outgoing[source[edge] + 1] += 1
    for i in range(rows):
        outgoing[i + 1] += outgoing[i]
    return edges


@kernel
def _gather_successors(source: Any, target: Any, edges: int, start: Any, out: Any) -> None:
    fill = start[:-1].copy()
    for edge in range(edges):
        out[fill[source[edge]]] = target[edge]
        fill[source[edge]] += 1


@kernel
def levels_of(start: Any, successors: Any, rows: int, included: Any) -> Any:
    """Level of each transaction: one more than the highest it waits for; -1 if not included."""
    level = np.full(rows, -1, np.int32)
    for i in range(rows):
        if included[i] == 0:
            continue
        level[i] = max(level[i], 0)
        for edge in range(start[i], start[i + 1]):
            level[successors[edge]] = max(level[successors[edge]], level[i] + 1)
    return level


@kernel
def by_level(level: Any) -> Any:
    """Transactions ordered by level, and where each level starts."""
    deepest = -1
    for i in range(len(level)):
        deepest = max(deepest, level[i])
    start = np.zeros(deepest + 2, np.int64)
    for i in range(len(level)):
        if level[i] >= 0:
            start[level[i] + 1] += 1
    for at in range(deepest + 1):
        start[at + 1] += start[at]
    fill = start.copy()
    order = np.empty(start[deepest + 1], np.int32)
    for i in range(len(level)):
        if level[i] >= 0:
            order[fill[level[i]]] = i
            fill[level[i]] += 1
    return order, start


@kernel
def chains_of(
    types: Any, slots: Any, table_of: Any, is_write: Any, tables: int, included: Any, cells: int
) -> Any:
    """Written operations grouped by cell in timestamp order.

    Returns where each cell's chain starts, the operations as transaction * width +
    position, and the cells that have any, in one counting sort.
    """
    rows = len(types)
    width = slots.shape[0]
    start = np.zeros(cells + 1, np.int64)
    for i in range(rows):
        if included[i] == 0:
            continue
        kind = types[i]
        for p in range(width):
            if table_of[kind, p] < 0:
                break
            if _is_last_write(kind, p, i, slots, table_of, is_write):
                start[slots[p, i] * tables + table_of[kind, p] + 1] += 1
    used = 0
    for cell in range(cells):
        if start[cell + 1] > 0:
            used += 1
        start[cell + 1] += start[cell]
    fill = start[:-1].copy()
    operations = np.empty(start[cells], np.int64)
    for i in range(rows):
        if included[i] == 0:
            continue
        kind = types[i]
        for p in range(width):
            if table_of[kind, p] < 0:
                break
            if _is_last_write(kind, p, i, slots, table_of, is_write):
                cell = slots[p, i] * tables + table_of[kind, p]
                operations[fill[cell]] = i * width + p
                fill[cell] += 1
    present = np.empty(used, np.int64)
    used = 0
    for cell in range(cells):
        if start[cell + 1] > start[cell]:
            present[used] = cell
            used += 1
    return start, operations, present


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


@kernel
def largest_first(weights: Any, order: Any, workers: int) -> Any:
    """Assign tasks, heaviest first, each to the worker with the least work so far."""
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


def dependencies_of(
    layout: Layout, types: npt.NDArray[np.uint8], slots: Ints, graph: Graph, largest_slot: int
) -> Dependencies:
    """The dependency counts of a batch whose graph is known."""
    cells = (largest_slot + 1) * len(layout.tables)
    operations, logical, parametric, hottest = count_dependencies(
        types,
        slots,
        layout.table_of,
        layout.is_write,
        len(layout.tables),
        np.zeros(cells, np.int32),
    )
    share = hottest / max(1, len(types))
    return Dependencies(operations, len(graph.successors), logical, parametric, share)
