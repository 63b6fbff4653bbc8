"""DL (DistDGCC): committed commands with their edges; redone level by level of that graph."""

from dataclasses import replace
from time import perf_counter as now
from typing import Any

import numpy as np

from everstream.transactions.compiled import cycles, fetch_add, kernel, load
from everstream.transactions.execution import Breakdown, Counters
from everstream.transactions.kernels.drivers import HEAD, STOP, account, spin_on
from everstream.transactions.log import Block, Columns
from everstream.transactions.recovery import Inputs, RecoveryScheme, TransactionRecovery
from everstream_lab.recovery.commands import pack, reload, unpack
from everstream_lab.recovery.steps import REDOING, redo


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


def redo_levels(
    thread: int,
    threads: int,
    order: Any,
    level_start: Any,
    control: Any,
    data: Any,
    totals: Any,
) -> None:
    """Each level's transactions are independent; all threads meet before the next level."""
    execute = 0
    wait = 0
    mark = cycles()
    for level in range(len(level_start) - 1):
        for place in range(level_start[level] + thread, level_start[level + 1], threads):
            redo(order[place], data)
        now = cycles()
        execute += now - mark
        mark = now
        fetch_add(control, HEAD, 1)
        tries = 0
        while load(control, HEAD) < threads * (level + 1):
            if load(control, STOP) != 0:
                return
            tries = spin_on(tries)
        now = cycles()
        wait += now - mark
        mark = now
    account(totals, thread, execute, 0, 0, wait)


class DependencyLog(RecoveryScheme):
    """Each record carries its incoming and outgoing edges.

    Aborted transactions have no records, so the logged graph contains only the committed
    ones: the neighbours of an aborted transaction are connected directly.
    """

    name = "dependency"
    kernel_parts = replace(REDOING, walks=(redo_levels,))

    def blocks(self) -> list[Columns]:
        runs = self.take_runs()
        layout, engine = self.engine.layout, self.engine
        chosen = [np.flatnonzero(run.committed) for run in runs]
        columns = {**self.new_keys(), **pack(layout, runs, chosen)}
        commands = unpack(layout, columns)
        graph = engine.graphs.build(
            commands.types, commands.slots, commands.committed, engine.largest_slot
        )
        rows = len(commands.types)
        sources = np.repeat(np.arange(rows, dtype=np.int32), np.diff(graph.start))
        by_target = np.argsort(graph.successors, kind="stable")
        columns["outgoing"] = np.diff(graph.start).astype(np.int32)
        columns["successors"] = graph.successors
        columns["incoming"] = graph.incoming
        columns["predecessors"] = sources[by_target]
        return [columns]

    def replay(
        self, commits: list[list[Block]], inputs: Inputs | None, report: TransactionRecovery
    ) -> None:
        for (block,) in commits:
            self._redo(block, report.breakdown)

    def _redo(self, block: Block, breakdown: Breakdown) -> None:
        engine = self.engine
        run = reload(self, block, breakdown)
        began = now()
        start = np.concatenate([[0], np.cumsum(block.columns["outgoing"], dtype=np.int64)])
        level = levels_of(start, block.columns["successors"], len(run.types), run.committed)
        order, level_start = by_level(level)
        breakdown.construct_s += now() - began
        data = engine.data_of(run, outcomes=False)

        def work(thread: int, control: Counters, totals: Counters) -> None:
            engine.kernels.redo_levels(
                thread, engine.parallelism, order, level_start, control, data, totals
            )

        began = now()
        breakdown.add(engine.threads.together(work), now() - began)
