"""Command logging: transactions as columns, only what each type uses, and back again.

`WriteAheadLog` is the plainest scheme made of it: the committed commands, redone one by one.
"""

from time import perf_counter as now
from typing import Any

import numpy as np
import numpy.typing as npt

from everstream.transactions.execution import Breakdown, guard, totals_block
from everstream.transactions.layout import DataLayout
from everstream.transactions.log import Block, Columns, joined
from everstream.transactions.recovery import (
    BatchRun,
    Inputs,
    RecoveryScheme,
    TransactionRecovery,
)
from everstream_lab.recovery.steps import REDOING

Mask = npt.NDArray[np.bool_]


def pack(
    layout: DataLayout, runs: list[BatchRun], chosen: list[Any]
) -> dict[str, npt.NDArray[Any]]:
    """The chosen rows of some batches: type, slots of the keys used, fields used.

    `chosen` has one index (mask or positions) per batch.
    """
    kinds = [run.types[rows] for run, rows in zip(runs, chosen, strict=True)]
    types = joined(kinds, np.uint8)
    columns: dict[str, npt.NDArray[Any]] = {"types": types}
    for position in range(layout.width):
        parts = [run.slots[position][rows] for run, rows in zip(runs, chosen, strict=True)]
        slots = joined(parts, np.int32)
        columns[f"slots{position}"] = _used(slots, types, layout.table_of[:, position] >= 0)
    for number, name in enumerate(layout.fields):
        parts = [run.fields[number][rows] for run, rows in zip(runs, chosen, strict=True)]
        columns[f"field{number}"] = _used(joined(parts, np.int64), types, layout.users_of(name))
    return columns


def unpack(layout: DataLayout, columns: Columns) -> BatchRun:
    """The rows again, every column as long as the batch; unused values are zero."""
    types = columns["types"]
    slots = np.zeros((layout.width, len(types)), np.int32)
    for position in range(layout.width):
        used = layout.table_of[:, position] >= 0
        slots[position] = _spread(columns[f"slots{position}"], types, used)
    fields = [
        _spread(columns[f"field{number}"], types, layout.users_of(name))
        for number, name in enumerate(layout.fields)
    ]
    committed = np.ones(len(types), np.uint8)
    return BatchRun(0, types, slots, fields, [], committed)


def _used(column: npt.NDArray[Any], types: npt.NDArray[np.uint8], users: Mask) -> npt.NDArray[Any]:
    return column if users.all() else column[users[types]]


def _spread(
    values: npt.NDArray[Any], types: npt.NDArray[np.uint8], users: Mask
) -> npt.NDArray[Any]:
    if users.all():
        return values
    column = np.zeros(len(types), values.dtype)
    column[users[types]] = values
    return column


def reload(scheme: RecoveryScheme, block: Block, breakdown: Breakdown) -> BatchRun:
    """The commands of a commit, ready to be redone."""
    began = now()
    scheme.restore_keys(block)
    run = unpack(scheme.engine.layout, block.columns)
    breakdown.reload_s += now() - began
    return run


class WriteAheadLog(RecoveryScheme):
    """WAL: the committed commands in timestamp order, redone one by one."""

    name = "wal"
    kernel_parts = REDOING

    def blocks(self) -> list[Columns]:
        runs = self.take_runs()
        chosen = [np.flatnonzero(run.committed) for run in runs]
        return [{**self.new_keys(), **pack(self.engine.layout, runs, chosen)}]

    def replay(
        self, commits: list[list[Block]], inputs: Inputs | None, report: TransactionRecovery
    ) -> None:
        engine, breakdown = self.engine, report.breakdown
        for (block,) in commits:
            run = reload(self, block, breakdown)
            totals = totals_block(1)
            began = now()
            data = engine.data_of(run, outcomes=False)
            guard(engine.kernels.redo_in_order, run.committed, data, totals)
            wall_s = now() - began
            idle = np.zeros((engine.parallelism, totals.shape[1]), np.int64)
            idle[0] = totals[0]
            breakdown.add(idle, wall_s)
