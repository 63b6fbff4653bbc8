"""Delta: at each commit the after-images of the keys the epoch changed, as columns.

Recovery loads and scatters; no transaction of a committed epoch runs again. What is
logged grows with the keys an epoch changes, not with its transactions, so hot keys make
it cheaper where they make every other scheme dearer.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from everstream.transactions.compiled import kernel
from everstream.transactions.log import Block, Columns
from everstream.transactions.recovery.commands import now
from everstream.transactions.recovery.scheme import BatchRun, Inputs, RecoveryReport, Scheme


@kernel
def _collect(
    types: Any,
    slots: Any,
    committed: Any,
    table_of: Any,
    is_write: Any,
    table: int,
    stamp: Any,
    commit: int,
    out: Any,
    count: int,
) -> int:
    """Add the slots of one table written by committed transactions to `out`, each once."""
    width = slots.shape[0]
    for i in range(len(types)):
        if committed[i] == 0:
            continue
        kind = types[i]
        for p in range(width):
            if is_write[kind, p] != 0 and table_of[kind, p] == table:
                slot = slots[p, i]
                if stamp[slot] != commit:
                    stamp[slot] = commit
                    out[count] = slot
                    count += 1
    return count


class Delta(Scheme):
    name = "delta"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        tables = len(self.engine.states)
        self._stamps = [np.zeros(0, np.int64) for _ in range(tables)]
        self._changed = [np.zeros(0, np.int32) for _ in range(tables)]
        self._counts = [0] * tables
        self._commit = 1

    def record(self, batch: BatchRun) -> None:
        layout = self.engine.layout
        for number, state in enumerate(self.engine.states):
            slots = len(state.written)
            if len(self._stamps[number]) < slots:
                self._stamps[number] = _longer(self._stamps[number], slots)
                self._changed[number] = _longer(self._changed[number], slots)
            self._counts[number] = _collect(
                batch.types,
                batch.slots,
                batch.committed,
                layout.table_of,
                layout.is_write,
                number,
                self._stamps[number],
                self._commit,
                self._changed[number],
                self._counts[number],
            )

    def forget(self) -> None:
        self._counts = [0] * len(self._counts)
        self._commit += 1

    def blocks(self) -> list[Columns]:
        columns = self.new_keys()
        for number, state in enumerate(self.engine.states):
            slots = self._changed[number][: self._counts[number]].copy()
            self._counts[number] = 0
            columns[f"slots{number}"] = slots
            for position, column in enumerate(state.columns):
                columns[f"values{number}.{position}"] = column[slots]
        self._commit += 1
        return [columns]

    def replay(
        self, commits: list[list[Block]], inputs: Inputs | None, report: RecoveryReport
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


def _longer(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    longer = np.zeros(size, array.dtype)
    longer[: len(array)] = array
    return longer
