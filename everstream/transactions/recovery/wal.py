"""WAL: the committed commands in timestamp order, redone one by one."""

from functools import partial

import numpy as np

from everstream.transactions.execution import guard, totals_block
from everstream.transactions.log import Block, Columns
from everstream.transactions.recovery.commands import now, pack, reload
from everstream.transactions.recovery.scheme import Inputs, RecoveryScheme, TransactionRecovery


class WriteAheadLog(RecoveryScheme):
    name = "wal"

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
            guard(partial(engine.kernels.redo_in_order, run.committed, data, totals))
            wall_s = now() - began
            idle = np.zeros((engine.parallelism, totals.shape[1]), np.int64)
            idle[0] = totals[0]
            breakdown.add(idle, wall_s)
