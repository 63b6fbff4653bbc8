"""DL (DistDGCC): committed commands with their edges; redone level by level of that graph."""

from functools import partial
from typing import Any

import numpy as np

from everstream.transactions.execution import control_block, guard, totals_block
from everstream.transactions.graph import by_level, levels_of
from everstream.transactions.log import Block, Columns
from everstream.transactions.recovery.commands import now, pack, reload, unpack
from everstream.transactions.recovery.scheme import Inputs, RecoveryScheme, TransactionRecovery


class DependencyLog(RecoveryScheme):
    """Each record carries its incoming and outgoing edges.

    Aborted transactions have no records, so the logged graph contains only the committed
    ones: the neighbours of an aborted transaction are connected directly.
    """

    name = "dependency"

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
        engine, breakdown = self.engine, report.breakdown
        for (block,) in commits:
            run = reload(self, block, breakdown)
            began = now()
            start = np.concatenate([[0], np.cumsum(block.columns["outgoing"], dtype=np.int64)])
            level = levels_of(start, block.columns["successors"], len(run.types), run.committed)
            order, level_start = by_level(level)
            breakdown.construct_s += now() - began
            control, totals = control_block(), totals_block(engine.parallelism)
            work = partial(
                _redo, engine, order, level_start, control, engine.data_of(run, False), totals
            )
            began = now()
            guard(partial(engine.threads.together, control, work))
            breakdown.add(totals, now() - began)


def _redo(
    engine: Any, order: Any, starts: Any, control: Any, data: Any, totals: Any, thread: int
) -> None:
    engine.kernels.redo_levels(thread, engine.parallelism, order, starts, control, data, totals)
