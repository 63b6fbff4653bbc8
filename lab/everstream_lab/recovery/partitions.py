"""Selective logging: keys grouped into partitions, and only what crosses them is logged.

Chains are vertices weighted by their operations, shared transactions are edges. Chains that share
a transaction form a group as long as it fits into a partition; each group, heaviest first, joins
the partition it shares most with unless that is full.
Recovery walks each partition in timestamp order. Where the log has no value, the walk
reads the key itself at that very point of its chain: the shadow operation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from everstream.transactions.compiled import kernel
from everstream.transactions.layout import DataLayout
from everstream.transactions.recovery import BatchRun

MOST_PARTITIONS = 1 << 16
_SLACK = 1.1


@kernel
def _root(group: Any, cell: int) -> int:
    while group[cell] != cell:
        group[cell] = group[group[cell]]
        cell = group[cell]
    return cell


@kernel
def _groups(types: Any, slots: Any, table_of: Any, tables: int, cells: int, room: float) -> Any:
    """Per cell the first of its group: cells of one transaction, as long as a group has room."""
    group = np.arange(cells)
    weight = np.zeros(cells, np.int64)
    for i in range(len(types)):
        for p in range(slots.shape[0]):
            if table_of[types[i], p] < 0:
                break
            weight[slots[p, i] * tables + table_of[types[i], p]] += 1
    for i in range(len(types)):
        first = -1
        for p in range(slots.shape[0]):
            if table_of[types[i], p] < 0:
                break
            cell = _root(group, slots[p, i] * tables + table_of[types[i], p])
            if first < 0:
                first = cell
            elif cell != first and weight[cell] + weight[first] <= room:
                group[cell] = first
                weight[first] += weight[cell]
    for cell in range(cells):
        group[cell] = _root(group, cell)
    return group


@kernel
def _greedy(
    types: Any, slots: Any, table_of: Any, tables: int, cells: int, partitions: int, slack: float
) -> Any:
    rows = len(types)
    width = slots.shape[0]
    operations = 0
    for i in range(rows):
        for p in range(width):
            operations += table_of[types[i], p] >= 0
    room = slack * operations / partitions + 1
    group = _groups(types, slots, table_of, tables, cells, room)
    start = np.zeros(cells + 1, np.int64)
    for i in range(rows):
        for p in range(width):
            if table_of[types[i], p] < 0:
                break
            start[group[slots[p, i] * tables + table_of[types[i], p]] + 1] += 1
    weight = start[1:].copy()
    for cell in range(cells):
        start[cell + 1] += start[cell]
    fill = start[:-1].copy()
    members = np.empty(start[cells], np.int32)
    for i in range(rows):
        for p in range(width):
            if table_of[types[i], p] < 0:
                break
            cell = group[slots[p, i] * tables + table_of[types[i], p]]
            members[fill[cell]] = i
            fill[cell] += 1
    part = np.full(cells, -1, np.int32)
    load = np.zeros(partitions, np.int64)
    shared = np.zeros(partitions, np.int64)
    order = np.argsort(-weight)
    for place in range(cells):
        cell = order[place]
        if weight[cell] == 0:
            break
        shared[:] = 0
        for at in range(start[cell], start[cell + 1]):
            i = members[at]
            for p in range(width):
                if table_of[types[i], p] < 0:
                    break
                other = part[group[slots[p, i] * tables + table_of[types[i], p]]]
                if other >= 0:
                    shared[other] += 1
        best = -1
        for q in range(partitions):
            if load[q] + weight[cell] <= room and (
                best < 0
                or shared[q] > shared[best]
                or (shared[q] == shared[best] and load[q] < load[best])
            ):
                best = q
        if best < 0:
            best = int(np.argmin(load))
        part[cell] = best
        load[best] += weight[cell]
    for cell in range(cells):
        part[cell] = part[group[cell]]
    return part


@dataclass
class Partitioning:
    """Per table, the partition of each slot; later keys are assigned by their slot number."""

    count: int
    parts: list[npt.NDArray[np.int32]]

    @classmethod
    def of(cls, engine: Any, runs: list[BatchRun], count: int) -> "Partitioning":
        layout: DataLayout = engine.layout
        tables = len(layout.tables)
        cells = (engine.largest_slot + 1) * tables
        types = np.concatenate([run.types for run in runs])
        slots = np.concatenate([run.slots for run in runs], axis=1)
        part = _greedy(types, slots, layout.table_of, tables, cells, count, _SLACK)
        parts = []
        for number, state in enumerate(engine.states):
            own = part[number::tables][: state.index.count]
            parts.append(np.where(own >= 0, own, np.arange(len(own)) % count).astype(np.int32))
        return cls(count, parts)

    def cover(self, engine: Any) -> None:
        """Assign partitions to new slots; the run and recovery do it in the same way."""
        for number, state in enumerate(engine.states):
            known, wanted = len(self.parts[number]), len(state.written)
            if known < wanted:
                more = (np.arange(known, wanted) % self.count).astype(np.int32)
                self.parts[number] = np.concatenate([self.parts[number], more])

    def cells(self, engine: Any, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """The cells of the chosen partitions that have a value: slot times tables, plus the table."""
        tables = len(self.parts)
        cells = []
        for number, (part, state) in enumerate(zip(self.parts, engine.states, strict=True)):
            known = min(len(part), state.index.count)
            slots = np.flatnonzero(chosen[part[:known]] & (state.written[:known] != 0))
            cells.append(slots.astype(np.int64) * tables + number)
        return np.concatenate(cells)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """What the log keeps, in as few bytes per key as the number of partitions needs."""
        width = np.min_scalar_type(self.count - 1)
        named: dict[str, npt.NDArray[Any]] = {
            f"part{number}": part.astype(width) for number, part in enumerate(self.parts)
        }
        named["partitions"] = np.array([self.count], np.int64)
        return named

    @classmethod
    def from_columns(cls, engine: Any, columns: Mapping[str, npt.NDArray[Any]]) -> "Partitioning":
        parts = [columns[f"part{n}"].astype(np.int32) for n in range(len(engine.states))]
        return cls(int(columns["partitions"][0]), parts)


def crossing(
    layout: DataLayout, partitioning: Partitioning, run: BatchRun, number: int, position: int
) -> npt.NDArray[np.bool_]:
    """Rows where some key whose new value needs this key's value lies in another partition."""
    declared = layout.transactions[number]
    crossed = np.zeros(len(run.types), np.bool_)
    own = _part(layout, partitioning, run, number, position)
    for write, needed in zip(declared.writes, declared.needs, strict=True):
        if position in needed:
            crossed |= _part(layout, partitioning, run, number, write) != own
    return crossed


def _part(
    layout: DataLayout, partitioning: Partitioning, run: BatchRun, number: int, position: int
) -> npt.NDArray[np.int32]:
    part = partitioning.parts[int(layout.table_of[number, position])]
    if not len(part):  # a table without keys: none of these transactions has run
        return np.zeros(len(run.types), np.int32)
    return part[np.where(run.types == number, run.slots[position], 0)]


@kernel
def _members(
    types: Any, slots: Any, table_of: Any, is_write: Any, parts: Any, committed: Any, count: int
) -> Any:
    """Transactions of each partition (those writing a key in it) in timestamp order."""
    rows = len(types)
    width = slots.shape[0]
    start = np.zeros(count + 1, np.int64)
    members = np.empty(0, np.int32)
    fill = start.copy()
    seen = np.zeros(count, np.int32)
    for turn in range(2):
        seen[:] = -1
        for i in range(rows):
            if committed[i] == 0:
                continue
            kind = types[i]
            for p in range(width):
                if table_of[kind, p] < 0:
                    break
                if is_write[kind, p] == 0:
                    continue
                part = parts[p, i]
                if seen[part] == i:
                    continue
                seen[part] = i
                if turn == 0:
                    start[part + 1] += 1
                else:
                    members[fill[part]] = i
                    fill[part] += 1
        if turn == 0:
            for part in range(count):
                start[part + 1] += start[part]
            members = np.empty(start[count], np.int32)
            fill = start.copy()
    return start, members


def partition_members(
    engine: Any, partitioning: Partitioning, run: BatchRun
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    layout: DataLayout = engine.layout
    parts = np.zeros(run.slots.shape, np.int32)
    for number, declared in enumerate(layout.transactions):
        rows = run.types == number
        for position in range(len(declared.keys)):
            part = partitioning.parts[int(layout.table_of[number, position])]
            parts[position, rows] = part[run.slots[position, rows]]
    start, members = _members(
        run.types,
        run.slots,
        layout.table_of,
        layout.is_write,
        parts,
        run.committed,
        partitioning.count,
    )
    return start, members
