"""How entangled the transactions of a batch are."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from everstream.transactions.compiled import kernel
from everstream.transactions.graph import Graph, Ints
from everstream.transactions.layout import Layout


@dataclass(frozen=True)
class Dependencies:
    """How entangled a batch is: counts of the three kinds, and the share of its hottest key."""

    operations: int
    temporal: int
    logical: int
    parametric: int
    hottest_share: float


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
