"""MSR (MorphStreamR): log the results of dependencies, so that recovery has none to wait for.

The AbortView is one bit per transaction; the ParametricView holds the values of those keys that
another key's new value depends on. With both, recovery first drops aborted events (abort
pushdown), then splits the rest into one chain per key (restructuring) and distributes the chains,
heaviest first (task assignment). Selective logging keeps only values that cross partitions; see
`partitions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter as now
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from everstream.transactions.compiled import cycles
from everstream.transactions.engine import TransactionEngine
from everstream.transactions.execution import PARALLEL_FROM_S, Counters, guard, totals_block
from everstream.transactions.kernels.codegen import KernelParts
from everstream.transactions.kernels.drivers import EXECUTE, account
from everstream.transactions.log import Block, Columns, TransactionLog, joined
from everstream.transactions.recovery import (
    BatchRun,
    Inputs,
    RecoveryScheme,
    TransactionRecovery,
)
from everstream_lab.recovery.chains import (
    Dependencies,
    chains_of,
    deal,
    dependencies_of,
    heaviest_first,
)
from everstream_lab.recovery.partitions import (
    MOST_PARTITIONS,
    Partitioning,
    crossing,
    partition_members,
)
from everstream_lab.recovery.steps import (
    needed_in,
    project,
    redo_in_order,
    walk,
    write_project,
    write_redo,
    write_walk,
)

_LOST_WORK_S = 0.02
"""How much work a crash may lose before a commit is due."""
_SKEWED_SHARE = 0.05
"""Of transactions that use the hottest key, from which keys count as skewed."""
_MANY_VALUES = 0.5
"""Logged values per transaction, from which a view counts as large."""


def epochs_per_commit(
    engine: TransactionEngine,
    shape: "Dependencies | None",
    logged_per_transaction: float,
    events: int,
) -> int:
    """How many epochs of `events` events to run between commits, from the last commit and batch.

    As in section VI-B of the paper. Keys used evenly, and few values that cross partitions: commit
    rarely, which costs nothing. Many such values: commit often, because a large view is slow to
    index. Skewed keys: in between, because short epochs help the run, and long ones recovery.
    Never so rarely that a crash loses more work than a commit is worth. Transactions too
    cheap for chains are redone in order, and then only that last rule counts.
    """
    skewed = shape is not None and shape.hottest_share > _SKEWED_SHARE
    wanted = 2 if skewed else (1 if logged_per_transaction > _MANY_VALUES else 4)
    epoch_s = events * engine.transaction_cost_s / engine.parallelism
    return max(1, min(wanted, int(_LOST_WORK_S / max(epoch_s, 1e-9))))


_REPLAY_EVENTS = 1 << 20


AfterImages = list[tuple[int, npt.NDArray[np.int64], list[npt.NDArray[Any]]]]
"""Per table: its number, slots, and the columns of values at those slots."""

Rows = slice | npt.NDArray[np.int64]

_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True)
class FastOptions:
    """The options of `fast`; each recovery optimisation can be disabled to measure its effect."""

    restructure: bool = True
    abort_pushdown: bool = True
    task_assignment: bool = True
    """How chains are distributed; partitions are always distributed heaviest first."""
    selective: bool = True
    """Log only values that cross partitions, as the paper does; otherwise all that chains need."""
    partitions: int = 8
    """From 1 to 65,536."""
    adaptive_replay: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.partitions <= MOST_PARTITIONS:
            raise ValueError(
                f"partitions={self.partitions}: give a number from 1 to {MOST_PARTITIONS}; a few per "
                "thread that recovers are enough"
            )


def redo_chains(
    thread: int,
    chains: Any,
    chain_start: Any,
    operations: Any,
    width: int,
    committed: Any,
    data: Any,
    totals: Any,
) -> None:
    """Run whole chains, one after the other; chains share nothing, so no thread waits."""
    aborted = 0
    began = cycles()
    for place in range(len(chains)):
        chain = chains[place]
        for at in range(chain_start[chain], chain_start[chain + 1]):
            i = operations[at] // width
            if committed[i] != 0:
                project(i, operations[at] % width, data, True)
            else:
                before = cycles()
                project(i, operations[at] % width, data, False)
                aborted += cycles() - before
    account(totals, thread, cycles() - began - aborted, aborted, 0, 0)


def redo_partitions(
    thread: int,
    own: Any,
    part_start: Any,
    members: Any,
    data: Any,
    parts: Any,
    totals: Any,
) -> None:
    """Run partitions in timestamp order; what crosses partitions comes from the log."""
    began = cycles()
    for place in range(len(own)):
        part = own[place]
        for at in range(part_start[part], part_start[part + 1]):
            walk(members[at], part, data, parts)
    totals[thread, EXECUTE] += cycles() - began


class FastRecovery(RecoveryScheme):
    name = "fast"
    replays_events = True
    options_type = FastOptions
    kernel_parts = KernelParts(
        (write_redo, write_project, write_walk),
        (redo_in_order, redo_chains, redo_partitions),
    )

    def __init__(
        self, engine: TransactionEngine, log: TransactionLog | None, options: Any = None
    ) -> None:
        super().__init__(engine, log, options)
        self.options: FastOptions = options or FastOptions()
        self._needed = needed_in(engine.layout)
        self.shape: Dependencies | None = None
        self._partitioning: Partitioning | None = None
        self._partitioning_logged = False
        self.commit_every = 1
        self.logged_per_transaction = 0.0
        self._verdicts: list[npt.NDArray[np.uint8]] = []
        self._views: list[list[npt.NDArray[Any] | None]] = []

    # --- while running ---

    def record(self, batch: BatchRun) -> None:
        """Keep only the views, unless partitions must still be found from the keys."""
        if batch.graph is not None:
            self.shape = dependencies_of(self.engine, batch)
        if self._by_partition:
            super().record(batch)
            return
        self._verdicts.append(batch.committed)
        self._views.append(self._view(batch))

    @property
    def _by_partition(self) -> bool:
        """A log that begins with partitions continues with them until the next snapshot."""
        return self.options.selective or self._partitioning is not None

    def forget(self) -> None:
        super().forget()
        self._verdicts, self._views = [], []

    def commit_due(self, epoch: int) -> bool:
        if self.engine.transaction_cost_s < PARALLEL_FROM_S:
            return not self.little_to_lose(epoch)
        self.commit_every = epochs_per_commit(
            self.engine, self.shape, self.logged_per_transaction, self._epoch_events(epoch)
        )
        return epoch - self._first_epoch + 1 >= self.commit_every

    def _epoch_events(self, epoch: int) -> int:
        events = self.engine.next_event - self._first_event
        return events // (epoch - self._first_epoch + 1)

    def save_snapshot(self, epoch: int) -> None:
        super().save_snapshot(epoch)
        self._partitioning = None

    def blocks(self) -> list[Columns]:
        if self._by_partition:
            self._views_of_partitions()
        committed = joined(self._verdicts, np.uint8)
        columns: dict[str, npt.NDArray[Any]] = {
            **self.new_keys(),
            "rows": np.array([len(committed)], np.int64),
            "committed": np.packbits(committed, bitorder="little"),
            "cost_s": np.array([self.engine.transaction_cost_s]),
        }
        if self._partitioning is not None and not self._partitioning_logged:
            columns.update(self._partitioning.columns())
            self._partitioning_logged = True
        for number, column in enumerate(self.engine.layout.reads):
            parts = [view[number] for view in self._views]
            if parts and parts[0] is not None:
                columns[f"read{number}"] = joined(parts, column.dtype)  # type: ignore[arg-type]
        values = sum(len(column) for name, column in columns.items() if name.startswith("read"))
        self.logged_per_transaction = values / max(1, len(committed))
        self.forget()
        return [columns]

    def _views_of_partitions(self) -> None:
        """The views of batches kept whole: only values that cross partitions are logged."""
        runs = self.take_runs()
        if self._partitioning is None:
            self._partitioning = Partitioning.of(self.engine, runs, self.options.partitions)
            self._partitioning_logged = False
        self._partitioning.cover(self.engine)
        for run in runs:
            self._verdicts.append(run.committed)
            self._views.append(self._view(run))

    def _view(self, run: BatchRun) -> list[npt.NDArray[Any] | None]:
        """Per column of values read, those that another key's chain will need."""
        return [
            None if places is None else values[places]
            for values, places in zip(run.reads, self._view_rows(run), strict=True)
        ]

    def _view_rows(self, run: BatchRun) -> list[Rows | None]:
        """Per column of values read, the rows whose value another key's chain will need."""
        kept = run.committed != 0
        rows: dict[object, Rows] = {}
        views: list[Rows | None] = []
        for users in self._needed:
            label: object = users
            if self._partitioning is None:
                label = tuple(number for number, _ in users)
            if label not in rows:
                rows[label] = self._rows_of(users, run, kept)
            views.append(rows[label] if users else None)
        return views

    def _rows_of(
        self, users: Sequence[tuple[int, int]], run: BatchRun, kept: npt.NDArray[np.bool_]
    ) -> Rows:
        needed = np.zeros(len(run.types), np.bool_)
        for number, position in users:
            rows = kept & (run.types == number)
            if self._partitioning is not None:
                rows &= crossing(self.engine.layout, self._partitioning, run, number, position)
            needed |= rows
        return slice(None) if needed.all() else np.flatnonzero(needed)

    # --- after a crash ---

    def replay(
        self, commits: list[list[Block]], inputs: Inputs | None, report: TransactionRecovery
    ) -> None:
        if inputs is None:
            raise ValueError("recovery 'fast' replays events: give recover() the inputs")
        for group in _groups([block for (block,) in commits], _REPLAY_EVENTS):
            self._replay_group(group, inputs, report)

    def replay_share(self, inputs: Inputs, share: int, shares: int) -> AfterImages:
        """Replay one of `shares` groups of chains or partitions; returns what their keys hold then.

        Where the log has been partitioned anew, what was before is replayed whole: its keys may
        belong to other shares afterwards.
        """
        self._load_snapshot()
        assert self.log is not None
        blocks = [block for (block,) in self.log.committed(self.engine.epoch)]
        if not blocks:
            return []
        report = TransactionRecovery(self.name, self.engine.epoch, self.engine.next_event)
        *earlier, last = _groups(blocks)
        for group in earlier:
            self._replay_group(group, inputs, report)
        cells = self._replay_group(last, inputs, report, share, shares)
        tables = len(self.engine.states)
        images: AfterImages = []
        for number, state in enumerate(self.engine.states):
            slots = cells[cells % tables == number] // tables
            images.append((number, slots, [column[slots] for column in state.columns]))
        return images

    def adopt(self, shares: list[AfterImages]) -> TransactionRecovery:
        """Restore from the log, with what tasks replayed elsewhere."""

        def scatter(commits: list[list[Block]], inputs: Inputs | None, report: Any) -> None:
            began = now()
            for (block,) in commits:
                self._restore_keys_and_partitions(block)
            for images in shares:
                for number, slots, columns in images:
                    self.engine.states[number].scatter(slots, columns)
            report.breakdown.execute_s += now() - began

        return self.recover_by(scatter, None)

    def _replay_group(
        self,
        group: list[Block],
        inputs: Inputs,
        report: TransactionRecovery,
        share: int = 0,
        shares: int = 1,
    ) -> npt.NDArray[np.int64]:
        """Replay the epochs of several commits as one; chains do not depend on epochs.

        Of several shares only the given one is run. Returns the cells it is responsible for.
        """
        engine, breakdown = self.engine, report.breakdown
        began = now()
        for block in group:
            self._restore_keys_and_partitions(block)
        committed = joined([_verdicts(block) for block in group], np.uint8)
        events = inputs(group[0].first_event, group[-1].next_event)
        breakdown.reload_s += now() - began

        began = now()
        pushdown = self.options.abort_pushdown and bool((committed == 0).any())
        if pushdown:
            events = events.filter(pl.Series(committed.view(np.bool_)))
        run = engine.prepare(events, group[0].first_event)
        run.committed = np.ones(len(run.types), np.uint8) if pushdown else committed
        cheap = float(group[-1].columns["cost_s"][0]) < PARALLEL_FROM_S
        in_order = (cheap and self.options.adaptive_replay) or not self.options.restructure
        if in_order and shares == 1:
            breakdown.construct_s += now() - began
            self._redo_in_order(run, report)
            return _NOTHING
        if self._partitioning is not None:
            self._partitioning.cover(engine)
        run.reads = self._restored_reads(group, committed, run, pushdown)
        if self._partitioning is not None:
            breakdown.construct_s += now() - began
            return self._redo_partitions(run, report, share, shares)
        breakdown.construct_s += now() - began
        return self._redo_chains(run, report, share, shares)

    def _redo_chains(
        self, run: BatchRun, report: TransactionRecovery, share: int, shares: int
    ) -> npt.NDArray[np.int64]:
        """Redo each key's operations in order, keys in parallel; returns the cells of the chains run."""
        engine, breakdown, layout = self.engine, report.breakdown, self.engine.layout
        began = now()
        chain_start, operations, chains = chains_of(
            run.types,
            run.slots,
            layout.table_of,
            layout.is_write,
            len(layout.tables),
            np.ones(len(run.types), np.uint8),
            (engine.largest_slot + 1) * len(layout.tables),
        )
        by_weight = self.options.task_assignment
        if shares > 1:
            chains = deal(chain_start, chains, shares, by_weight)[share]
        assigned = deal(chain_start, chains, engine.parallelism, by_weight)
        breakdown.construct_s += now() - began
        chains_at = (chain_start, operations, layout.width, run.committed)
        data = engine.data_of(run, outcomes=True)

        def work(thread: int, _control: Counters, totals: Counters) -> None:
            engine.kernels.redo_chains(thread, assigned[thread], *chains_at, data, totals)

        began = now()
        breakdown.add(engine.threads.together(work), now() - began)
        return np.asarray(chains, np.int64)

    def _restored_reads(
        self, group: list[Block], committed: npt.NDArray[np.uint8], run: BatchRun, pushdown: bool
    ) -> list[npt.NDArray[Any]]:
        """Restores the ParametricView where each transaction will look for it."""
        reads = self.engine.layout.empty_reads(len(run.types))
        view = replace(run) if pushdown else replace(run, committed=committed)
        for number, places in enumerate(self._view_rows(view)):
            if places is not None:
                parts = [block.columns[f"read{number}"] for block in group]
                reads[number][places] = joined(parts, reads[number].dtype)
        return reads

    def _redo_in_order(self, run: BatchRun, report: TransactionRecovery) -> None:
        engine = self.engine
        data = engine.data_of(run, outcomes=False)
        totals = totals_block(1)
        began = now()
        if self.options.restructure:
            guard(engine.kernels.redo_in_order, run.committed, data, totals)
            report.breakdown.add(totals, now() - began)
        else:
            engine.execute(run, report.breakdown)

    def _restore_keys_and_partitions(self, block: Block) -> None:
        self.restore_keys(block)
        if "partitions" in block.columns:
            self._partitioning = Partitioning.from_columns(self.engine, block.columns)

    def _redo_partitions(
        self, run: BatchRun, report: TransactionRecovery, share: int, shares: int
    ) -> npt.NDArray[np.int64]:
        """Redo the partitions of this share; returns the cells in them that have a value."""
        engine = self.engine
        assert self._partitioning is not None
        began = now()
        part_start, members = partition_members(engine, self._partitioning, run)
        weights = np.diff(part_start)
        share_of, _ = heaviest_first(weights, shares)
        chosen = np.flatnonzero(share_of == share)
        worker_of, _ = heaviest_first(weights[chosen], engine.parallelism)
        own = [chosen[worker_of == thread] for thread in range(engine.parallelism)]
        report.breakdown.construct_s += now() - began
        data = engine.data_of(run, outcomes=True)
        parts = tuple(self._partitioning.parts)

        def work(thread: int, _control: Counters, totals: Counters) -> None:
            engine.kernels.redo_partitions(
                thread, own[thread], part_start, members, data, parts, totals
            )

        began = now()
        report.breakdown.add(engine.threads.together(work), now() - began)
        return self._partitioning.cells(engine, share_of == share)


def _groups(blocks: Sequence[Block], most_events: int | None = None) -> list[list[Block]]:
    """Commits that are replayed as one: with one partitioning, and not too many events."""
    groups: list[list[Block]] = []
    for block in blocks:
        full = (
            groups and most_events and block.first_event - groups[-1][0].first_event >= most_events
        )
        if not groups or full or "partitions" in block.columns:
            groups.append([])
        groups[-1].append(block)
    return groups


def _verdicts(block: Block) -> npt.NDArray[np.uint8]:
    rows = int(block.columns["rows"][0])
    return np.unpackbits(block.columns["committed"], count=rows, bitorder="little")
