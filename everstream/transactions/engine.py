"""The transaction engine: batches of events in, outcomes out, durable state.

It uses no clock, no Spark and no network, so it runs the same inside a Spark task, in a
test, or in your own loop. A batch goes through preprocessing (keys to slots), the
precedence graph if there are threads to use, execution and postprocessing. Punctuations
end epochs, and the recovery scheme decides what becomes durable then.
"""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from everstream.transactions.definition import Transaction
from everstream.transactions.errors import DefinitionError, ExecutionError, LogError
from everstream.transactions.execution import (
    PARALLEL_FROM_S,
    Breakdown,
    Threads,
    cycle_rate,
    guard,
    run_along_graph,
    totals_block,
)
from everstream.transactions.graph import GraphBuilder
from everstream.transactions.index import IntegerIndex
from everstream.transactions.kernels import codegen
from everstream.transactions.layout import DataLayout, ReadColumn
from everstream.transactions.log import TransactionLog
from everstream.transactions.preprocessing import Preprocessor
from everstream.transactions.recovery import (
    DEFAULT,
    BatchRun,
    Inputs,
    RecoveryScheme,
    TransactionRecovery,
    scheme_of,
)
from everstream.transactions.store import Store, open_store
from everstream.transactions.tables import Table, TableState


# The frame of outcomes is passed as one Arrow batch, without copying values: building Polars columns one by
# one costs more than running a small batch.
class Outcomes:
    """Builds the outcomes of one set of transactions."""

    def __init__(self, layout: DataLayout) -> None:
        self._layout = layout
        self._used = [_used(layout, column) for column in layout.reads]
        names = [
            column.name if column.field is None else f"{column.name}.{column.field}"
            for column in layout.reads
        ]
        types = [pa.from_numpy_dtype(np.dtype(column.dtype)) for column in layout.reads]
        fields = [("event", pa.int64()), ("committed", pa.bool_())]
        self._schema = pa.schema([*fields, *zip(names, types, strict=True)])

    def frame(self, run: BatchRun) -> pl.DataFrame:
        """Per event: its number, whether it committed, and the values its keys held before it."""
        rows = len(run.types)
        # From buffers: `pa.array` imports pandas first, which takes a third of a second.
        numbers = np.arange(run.first_event, run.first_event + rows, dtype=np.int64)
        arrays = [
            _array(pa.py_buffer(numbers), None, pa.int64(), rows),
            _array(_bits(run.committed), None, pa.bool_(), rows),
        ]
        of_users: dict[bytes, Any] = {}
        for used, values, field in zip(self._used, run.reads, list(self._schema)[2:], strict=True):
            validity = None
            if not used.all():
                # Columns of the same users are null in the same rows.
                label = used.tobytes()
                if label not in of_users:
                    of_users[label] = _bits(used[run.types])
                validity = of_users[label]
            data = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(values)
            arrays.append(_array(data, validity, field.type, rows))
        return pl.DataFrame(pa.RecordBatch.from_arrays(arrays, schema=self._schema))


def _bits(flags: npt.NDArray[Any]) -> Any:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _array(data: Any, validity: Any, kind: Any, rows: int) -> Any:
    return pa.Array.from_buffers(kind, rows, [validity, data])


def _used(layout: DataLayout, column: ReadColumn) -> npt.NDArray[np.bool_]:
    used = np.zeros(len(layout.transactions), np.bool_)
    for number, _ in column.users:
        used[number] = True
    return used


Snapshot = dict[str, Any]

_PROBE_ROWS = 16
ADAPTIVE, EVERY_EPOCH = "adaptive", "every-epoch"


class TransactionEngine:
    """Runs transactions over tables as if one by one in timestamp order.

    `parallelism` is the number of threads; `recovery` names a scheme, whose log goes to
    `log` (a folder, an fsspec URL or a store), and `recovery_options` are what the scheme takes,
    if it takes any. `execution` is "auto" (by measured cost),
    "serial" or "parallel". `commit` is "adaptive" (epochs of little work may share one) or
    "every-epoch". `operation_cost_iterations` adds busy work per operation, to
    simulate user functions that cost more than arithmetic.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        transactions: Sequence[Transaction],
        *,
        parallelism: int = 1,
        recovery: str = DEFAULT,
        log: str | os.PathLike[str] | Store | None = None,
        select: str = "transaction",
        timestamp: str | None = None,
        snapshot_every_epochs: int = 64,
        execution: str = "auto",
        commit: str = ADAPTIVE,
        recovery_options: Any = None,
        operation_cost_iterations: int = 0,
    ) -> None:
        scheme = scheme_of(recovery)
        if commit not in (ADAPTIVE, EVERY_EPOCH):
            raise DefinitionError(f"commit must be {ADAPTIVE!r} or {EVERY_EPOCH!r}")
        if execution not in ("auto", "serial", "parallel"):
            raise DefinitionError("execution must be 'auto', 'serial' or 'parallel'")
        if parallelism < 1:
            raise DefinitionError("parallelism must be at least 1")
        self.layout = DataLayout(tables, transactions)
        self.kernels = codegen.build(self.layout, scheme.kernel_parts)
        # Interpreted functions hold the GIL and their kernels have no real atomics.
        self.parallelism = parallelism if self.kernels.compiled else 1
        self.threads = Threads(self.parallelism)
        self.states = [TableState(table) for table in tables]
        self.graphs = GraphBuilder(self.layout)
        self.epoch = 0
        self.next_event = 0
        self._epoch_began_at = 0
        self.transaction_cost_s = 0.0
        self.breakdown = Breakdown()
        self._cost_known = False
        self._execution = execution
        self._commit = commit
        self._spin = operation_cost_iterations
        self._snapshot_every = snapshot_every_epochs
        self._preprocessor = Preprocessor(self.layout, self.states, self.threads, select, timestamp)
        self._outcomes = Outcomes(self.layout)
        self._broken = False
        self.scheme = scheme(self, self._open_log(scheme, log), recovery_options)

    def _open_log(
        self, scheme: type[RecoveryScheme], log: str | os.PathLike[str] | Store | None
    ) -> TransactionLog | None:
        if not scheme.needs_log:
            return None
        if log is None:
            raise LogError(f"recovery {scheme.name!r} needs a place for its log: give log=...")
        store = log if isinstance(log, Store) else open_store(log)
        return TransactionLog(store, self.parallelism if scheme.stream_per_thread else 1)

    def load_kernels(self) -> None:
        """Load machine code now, so that the first batch does not have to."""
        index = IntegerIndex()
        index.extend(np.zeros(1, np.int64))
        index.slot_of(0)

    # --- running ---

    def process_batch(self, events: pl.DataFrame) -> pl.DataFrame:
        """Run one transaction per event, in order; one outcome per event, in order.

        An outcome has the event's number, whether it committed, and the values it read.
        """
        began = time.perf_counter()
        run = self.prepare(events, self.next_event)
        self.breakdown.construct_s += time.perf_counter() - began
        return self.process_prepared(run)

    def process_prepared(self, run: BatchRun) -> pl.DataFrame:
        """Like `process_batch`, of transactions whose keys have their slots already."""
        if self._broken:
            raise ExecutionError("a transaction raised earlier: recover or restore first")
        self._broken = True
        self.execute(run, self.breakdown)
        self._broken = False
        self.next_event += len(run.types)
        self.scheme.record(run)
        return self._outcomes.frame(run)

    def end_epoch(self) -> int:
        """A punctuation: ends the epoch. Returns its number; see `durable_epoch`.

        With `commit="adaptive"` schemes may let epochs share a commit; `flush` commits now.
        """
        self.epoch += 1
        self._epoch_began_at = self.next_event
        every = self.scheme.commits and self._commit == EVERY_EPOCH
        if every or self.scheme.commit_due(self.epoch):
            self.scheme.commit(self.epoch)
        if self.scheme.snapshots and self.epoch % self._snapshot_every == 0:
            self.save_snapshot()
        return self.epoch

    def save_snapshot(self) -> None:
        """Write a snapshot to the log between two epochs, without stopping the stream."""
        if not self.scheme.snapshots:
            return
        if not self.between_epochs:
            raise LogError(
                "a snapshot can only be taken between two epochs: call end_epoch() first"
            )
        if self.scheme.uncommitted:
            self.scheme.commit(self.epoch)
        self.scheme.save_snapshot(self.epoch)

    @property
    def between_epochs(self) -> bool:
        """Whether no event has come since the last punctuation."""
        return self.next_event == self._epoch_began_at

    @property
    def durable_epoch(self) -> int:
        """Every epoch up to this one survives a crash, so its outcomes may be shown."""
        return self.scheme.durable_epoch

    def flush(self) -> None:
        """Wait until every commit is durable; between two epochs, commit all before."""
        self.scheme.flush()

    def close(self) -> None:
        self.scheme.close()
        self.threads.close()

    # --- state ---

    def snapshot(self) -> Snapshot:
        """The whole state at this instant, as a picklable value that nothing later changes."""
        return {
            "epoch": self.epoch,
            "next_event": self.next_event,
            "tables": self.table_images(),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Return to the state of `snapshot`."""
        self.load_images(snapshot["tables"])
        self.epoch = snapshot["epoch"]
        self.next_event = self._epoch_began_at = snapshot["next_event"]
        self.scheme.reset()
        self._broken = False

    def recover(self, inputs: Inputs | None = None) -> TransactionRecovery:
        """Restore from the log after a crash; then process the events from `next_event` on again.

        `inputs(first, last)` returns the source's events of that range; schemes that
        replay events need it.
        """
        report = self.scheme.recover(inputs)
        self._broken = False
        return report

    def table(self, name: str) -> TableState:
        for state in self.states:
            if state.table.name == name:
                return state
        raise DefinitionError(f"there is no table {name!r}")

    def table_images(self) -> dict[str, dict[str, npt.NDArray[Any]]]:
        return {state.table.name: state.snapshot() for state in self.states}

    def resume_at(self, epoch: int, next_event: int) -> None:
        """Between two epochs: `epoch` has ended and `next_event` comes next."""
        self.epoch = epoch
        self.next_event = self._epoch_began_at = next_event

    def clear(self) -> None:
        """Return to the state before the first event."""
        for state in self.states:
            state.clear()
        self.resume_at(0, 0)

    def load_images(self, images: Mapping[str, Mapping[str, npt.NDArray[Any]]]) -> None:
        for state in self.states:
            state.restore(images[state.table.name])

    # --- used by schemes ---

    @property
    def largest_slot(self) -> int:
        return max(state.index.count for state in self.states)

    def prepare(self, events: pl.DataFrame, first_event: int) -> BatchRun:
        """Preprocessing: transaction types, slots of keys (new ones assigned), fields."""
        return self._preprocessor.prepare(events, first_event)

    def data_of(self, run: BatchRun, outcomes: bool) -> tuple[Any, ...]:
        """The tuple the kernels work on."""
        tables = [part for state in self.states for part in (*state.columns, state.written)]
        reads = run.reads if outcomes else self.layout.empty_reads(0)
        return (run.types, run.slots, run.committed, self._spin, *tables, *run.fields, *reads)

    def execute(self, run: BatchRun, breakdown: Breakdown) -> None:
        """Run a prepared batch in order or along its graph, and record verdicts and reads."""
        rows = len(run.types)
        run.reads = self.layout.empty_reads(rows)
        run.committed = np.zeros(rows, np.uint8)
        data = self.data_of(run, outcomes=True)
        parallel = self.parallelism > 1 and self._execution != "serial"
        first = rows
        if parallel and self._execution == "parallel":
            first = 0
        elif parallel and (not self._cost_known or self.transaction_cost_s >= PARALLEL_FROM_S):
            # A mean over a batch proves little: one pause of the thread makes all of it look slow.
            first = min(rows, _PROBE_ROWS)
        began = time.perf_counter()
        totals = totals_block(self.parallelism)
        if first:
            guard(self.kernels.run_in_order, 0, first, data, totals)
            self._learn_cost(totals, first)
            breakdown.add(totals, time.perf_counter() - began)
        if first == rows:
            return
        if first and self.transaction_cost_s < PARALLEL_FROM_S:
            again = totals_block(self.parallelism)
            guard(self.kernels.run_in_order, first, rows, data, again)
            breakdown.add(again, time.perf_counter() - began)
            return
        began = time.perf_counter()
        included = np.ones(rows, np.uint8)
        included[:first] = 0
        graph = self.graphs.build(run.types, run.slots, included, self.largest_slot)
        run.graph = graph
        breakdown.construct_s += time.perf_counter() - began
        began = time.perf_counter()
        run.executed_by = np.zeros(rows, np.uint8)
        totals = run_along_graph(
            self.kernels.run_ready, self.threads, graph, included, data, run.executed_by
        )
        self._learn_cost(totals, rows - first)
        breakdown.add(totals, time.perf_counter() - began)

    def _learn_cost(self, totals: npt.NDArray[np.int64], rows: int) -> None:
        """The measured cost of one transaction decides how the next batches run."""
        worked = totals[:, 0].sum() + totals[:, 1].sum()
        self.transaction_cost_s = float(worked) / cycle_rate() / max(1, rows)
        self._cost_known = True
