"""Transactions that wait for nobody, those that wait only for them, and so on: level by level."""

from typing import Any

import numpy as np

from everstream.transactions.compiled import kernel


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
