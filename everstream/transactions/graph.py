"""The task precedence graph of a batch: which transaction waits for which.

A transaction waits for an earlier one when they share a key and one of them writes it
(temporal dependency); its operations belong together (logical) and read each other's
keys (parametric), which is why the unit that waits is the whole transaction.

A cell is a key of a table as one number: slot times the number of tables, plus the table.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from everstream.transactions.compiled import kernel
from everstream.transactions.layout import DataLayout

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class PrecedenceGraph:
    """Which transactions wait: `successors[start[i]:start[i + 1]]` wait for transaction i."""

    incoming: Ints
    start: npt.NDArray[np.int64]
    successors: Ints


class GraphBuilder:
    """Builds graphs over growing tables, reusing its per-cell memory between batches."""

    def __init__(self, layout: DataLayout) -> None:
        self._layout = layout
        self._writer = np.full(0, -1, np.int32)
        self._readers = np.full(0, -1, np.int32)

    def build(
        self,
        types: npt.NDArray[np.uint8],
        slots: Ints,
        included: npt.NDArray[np.uint8],
        largest_slot: int,
    ) -> PrecedenceGraph:
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
        table_of, is_write = self._layout.table_of, self._layout.is_write
        seen = self._writer, self._readers
        edges = _find_edges(
            types, slots, table_of, is_write, tables, included, *seen, source, target
        )
        _forget_cells(types, slots, table_of, tables, *seen)
        incoming, start, successors = _by_source(source, target, edges, rows)
        return PrecedenceGraph(incoming, start, successors)


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
) -> int:
    """Fill in which transaction (`target`) waits for which (`source`); returns the number of pairs.

    `writer` and `readers` hold, for each cell, its last writer and the readers since.
    """
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
    return edges


@kernel
def _forget_cells(
    types: Any, slots: Any, table_of: Any, tables: int, writer: Any, readers: Any
) -> None:
    """Reset the per-cell memory: only what this batch touched."""
    for i in range(len(types)):
        kind = types[i]
        for p in range(slots.shape[0]):
            table = table_of[kind, p]
            if table < 0:
                break
            cell = slots[p, i] * tables + table
            writer[cell] = -1
            readers[cell] = -1


@kernel
def _by_source(source: Any, target: Any, edges: int, rows: int) -> Any:
    """How many each transaction waits for, where its successors start, and the successors."""
    incoming = np.zeros(rows, np.int32)
    start = np.zeros(rows + 1, np.int64)
    for edge in range(edges):
        incoming[target[edge]] += 1
        start[source[edge] + 1] += 1
    for i in range(rows):
        start[i + 1] += start[i]
    fill = start[:-1].copy()
    successors = np.empty(edges, np.int32)
    for edge in range(edges):
        successors[fill[source[edge]]] = target[edge]
        fill[source[edge]] += 1
    return incoming, start, successors
