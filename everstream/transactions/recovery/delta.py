"""Delta: each commit logs the after-images of the keys that the epoch changed, as columns.

Recovery loads and scatters; no transaction of a committed epoch runs again. The log grows with the
keys an epoch changes, not with its transactions, so hot keys make it cheaper, while they make
every other scheme more expensive. Epochs of little work share a commit.
"""

from time import perf_counter as now

from everstream.transactions.log import Block, Columns
from everstream.transactions.recovery.scheme import (
    BatchRun,
    Inputs,
    RecoveryScheme,
    TransactionRecovery,
)


class DeltaLog(RecoveryScheme):
    name = "delta"

    def record(self, batch: BatchRun) -> None:
        """The tables themselves know which keys were written."""

    def commit_due(self, epoch: int) -> bool:
        return not self.little_to_lose(epoch)

    def forget(self) -> None:
        for state in self.engine.states:
            state.take_changed()

    def blocks(self) -> list[Columns]:
        columns = self.new_keys()
        for number, state in enumerate(self.engine.states):
            slots = state.take_changed()
            columns[f"slots{number}"] = slots
            for position, column in enumerate(state.columns):
                columns[f"values{number}.{position}"] = column[slots]
        return [columns]

    def replay(
        self, commits: list[list[Block]], inputs: Inputs | None, report: TransactionRecovery
    ) -> None:
        began = now()
        for (block,) in commits:
            self.restore_keys(block)
            for number, state in enumerate(self.engine.states):
                values = [
                    block.columns[f"values{number}.{position}"]
                    for position in range(len(state.columns))
                ]
                state.scatter(block.columns[f"slots{number}"], values)
        report.breakdown.execute_s += now() - began
