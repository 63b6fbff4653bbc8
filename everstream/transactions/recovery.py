"""Recovery schemes: how transactional state survives a crash.

A scheme records what each batch did, makes it durable at commits, and after a crash restores the
tables to the state of its last commit. The engine does not depend on what is in the log. Commits
are written by a separate thread, in order, while the next epoch runs; `durable_epoch` is their
progress.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from types import NoneType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from everstream.transactions.errors import DefinitionError, LogError
from everstream.transactions.execution import Breakdown
from everstream.transactions.graph import PrecedenceGraph
from everstream.transactions.kernels.codegen import KernelParts
from everstream.transactions.log import Block, Columns, TransactionLog

# Commits that queue up while the disk is busy share one sync, so a stream that is faster than its disk
# pays for the bytes, not for the number of its epochs.
_IN_FLIGHT = 16

Write = Callable[[], None]


class LogWriter:
    """`durable_epoch` is the last epoch that has reached the disk."""

    def __init__(self, sync: Write, durable_epoch: int) -> None:
        self._sync = sync
        self.durable_epoch = durable_epoch
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transaction-log")
        self._queue: deque[tuple[int, Write]] = deque()
        self._pending: deque[Future[None]] = deque()
        self._failed = False

    def submit(self, epoch: int, write: Write) -> None:
        """Run `write` after those before; once synced, everything up to `epoch` is durable."""
        self._queue.append((epoch, write))
        self._pending.append(self._thread.submit(self._drain))
        while len(self._pending) > _IN_FLIGHT:
            self._pending.popleft().result()

    def flush(self) -> None:
        """Wait until all is durable; raises the error of a failed write."""
        while self._pending:
            self._pending.popleft().result()

    def abandon(self, durable_epoch: int) -> None:
        """Let writes in progress end, successfully or not, and start over."""
        wait(self._pending)
        self._pending.clear()
        self._queue.clear()
        self._failed = False
        self.durable_epoch = durable_epoch

    def close(self) -> None:
        self.flush()
        self._thread.shutdown()

    def _drain(self) -> None:
        """Write what is queued. After a failed write, nothing more: it could not be read after a gap."""
        if self._queue and self._failed:
            raise LogError("an earlier commit could not be written; recover from the log")
        written = self.durable_epoch
        try:
            while self._queue:
                epoch, write = self._queue.popleft()
                self._failed = True
                write()
                self._failed = False
                written = max(written, epoch)
        finally:
            if written > self.durable_epoch:
                self._sync()
                self.durable_epoch = written


if TYPE_CHECKING:
    from everstream.transactions.engine import TransactionEngine

_LOST_WORK_S = 0.01
_MOST_EPOCHS = 64

Inputs = Callable[[int, int], pl.DataFrame]
"""Events first (included) to last (excluded) of the source, again."""


@dataclass
class BatchRun:
    """What one batch did: its transactions, their keys and fields, verdicts and values read."""

    first_event: int
    types: npt.NDArray[np.uint8]
    slots: npt.NDArray[np.int32]
    fields: list[npt.NDArray[Any]]
    reads: list[npt.NDArray[Any]]
    committed: npt.NDArray[np.uint8]
    executed_by: npt.NDArray[np.uint8] | None = None
    graph: PrecedenceGraph | None = None


@dataclass
class TransactionRecovery:
    """Where to resume, and where the time of recovery went."""

    scheme: str
    epoch: int
    next_event: int
    replayed_events: int = 0
    breakdown: Breakdown = field(default_factory=Breakdown)
    damaged: list[str] = field(default_factory=list)


Replay = Callable[[list[list[Block]], Inputs | None, TransactionRecovery], None]


class RecoveryScheme(ABC):
    """One way to survive a crash. Subclasses define what to log and how to use it."""

    name: str
    needs_log = True
    snapshots = True
    commits = True
    stream_per_thread = False
    """Whether a commit writes a separate stream of blocks for each thread."""
    replays_events = False
    """Whether `replay` needs the events again."""
    options_type: type = NoneType
    """The type of `recovery_options`, if it takes any."""
    kernel_parts = KernelParts()
    """What only `replay` of this scheme needs; `engine.kernels` has its walks compiled."""

    def __init__(
        self, engine: "TransactionEngine", log: TransactionLog | None, options: Any = None
    ) -> None:
        if options is not None and not isinstance(options, self.options_type):
            raise DefinitionError(f"recovery {self.name!r} takes no {type(options).__name__}")
        self.engine = engine
        self.log = log
        self._writer = LogWriter(self._sync, engine.epoch)
        self._keys_logged = [0] * len(engine.states)
        self._first_event = engine.next_event
        self._first_epoch = engine.epoch + 1
        self._runs: list[BatchRun] = []

    @property
    def durable_epoch(self) -> int:
        """Every epoch up to this one survives a crash."""
        return self._writer.durable_epoch

    def _sync(self) -> None:
        assert self.log is not None
        self.log.sync()

    # --- while running ---

    def record(self, batch: BatchRun) -> None:
        """Keep what a batch did until the next commit."""
        if self.commits:
            self._runs.append(batch)

    def commit_due(self, epoch: int) -> bool:
        """Whether the punctuation that ends `epoch` is also a commit."""
        return self.commits

    def little_to_lose(self, epoch: int) -> bool:
        """Whether the work to repeat after a crash is not yet worth a commit."""
        engine = self.engine
        work_s = (engine.next_event - self._first_event) * engine.transaction_cost_s
        few = epoch - self._first_epoch + 1 < _MOST_EPOCHS
        return few and work_s / engine.parallelism < _LOST_WORK_S

    def commit(self, epoch: int) -> None:
        """Pass everything recorded since the last commit to the log."""
        blocks = self.blocks()
        span = (self._first_epoch, epoch, self._first_event, self.engine.next_event)
        self._first_epoch, self._first_event = epoch + 1, self.engine.next_event

        def write() -> None:
            assert self.log is not None
            for stream, columns in enumerate(blocks):
                self.log.append(Block(*span, dict(columns)), stream)

        self._writer.submit(epoch, write)

    @abstractmethod
    def blocks(self) -> list[Columns]:
        """The columns of this commit, one mapping per stream; clears what was recorded."""

    def save_snapshot(self, epoch: int) -> None:
        """Copy the tables now and write the copy while the stream continues."""
        columns = _flat(self.engine.table_images())
        numbers = (0, epoch, 0, self.engine.next_event)
        self._keys_logged = [state.index.count for state in self.engine.states]

        def write() -> None:
            assert self.log is not None
            self.log.save_snapshot(Block(*numbers, columns))

        self._writer.submit(epoch, write)

    @property
    def uncommitted(self) -> bool:
        """Whether epochs have ended that the next commit will cover."""
        return self.commits and self.engine.epoch >= self._first_epoch

    def take_runs(self) -> list[BatchRun]:
        """The batches since the last commit, which are then dropped."""
        runs, self._runs = self._runs, []
        return runs

    def forget(self) -> None:
        """Drop what was recorded and not committed."""
        self._runs = []

    def reset(self) -> None:
        """Drop everything; the log begins at the engine's present state."""
        self.flush()
        self._begin_here()
        if self.log is not None:
            self.log.clear()
            self.save_snapshot(self.engine.epoch)

    def flush(self) -> None:
        """Wait until every commit is durable; between two epochs, commit all before."""
        if self.uncommitted and self.engine.between_epochs:
            self.commit(self.engine.epoch)
        self._writer.flush()

    def close(self) -> None:
        self.flush()
        self._writer.close()
        if self.log is not None:
            self.log.close()

    def new_keys(self) -> dict[str, npt.NDArray[Any]]:
        """Keys that got their slots since the last commit, by table number."""
        columns = {}
        for number, state in enumerate(self.engine.states):
            if state.index.count > self._keys_logged[number]:
                columns[f"keys{number}"] = state.index.keys_from(self._keys_logged[number])
                self._keys_logged[number] = state.index.count
        return columns

    # --- after a crash ---

    def recover(self, inputs: Inputs | None) -> TransactionRecovery:
        """Restore the engine to the newest state the log allows."""
        return self.recover_by(self.replay, inputs)

    def recover_by(self, replay: "Replay", inputs: Inputs | None) -> TransactionRecovery:
        """Like `recover`, with the commits after the snapshot applied by `replay`."""
        began = time.perf_counter()
        self._writer.abandon(self.engine.epoch)
        if self.log is not None:
            self.log.begin_generation()
        self.engine.clear()
        breakdown = Breakdown()
        damaged = self._load_snapshot()
        report = TransactionRecovery(
            self.name, self.engine.epoch, self.engine.next_event, 0, breakdown, damaged
        )
        commits = self.log.committed(self.engine.epoch) if self.log is not None else []
        if commits and commits[0][0].first_event != self.engine.next_event:
            commits = []
        breakdown.reload_s += time.perf_counter() - began
        if commits:
            replay(commits, inputs, report)
            last = commits[-1][0]
            self.engine.resume_at(last.last_epoch, last.next_event)
            report.replayed_events = last.next_event - report.next_event
        report.epoch, report.next_event = self.engine.epoch, self.engine.next_event
        self._begin_here()
        return report

    def _begin_here(self) -> None:
        """Record and log from the engine's present state on."""
        self.forget()
        self._writer.abandon(self.engine.epoch)
        self._keys_logged = [state.index.count for state in self.engine.states]
        self._first_event, self._first_epoch = self.engine.next_event, self.engine.epoch + 1

    def _load_snapshot(self) -> list[str]:
        """Start from the newest complete snapshot; returns the damaged ones that were skipped."""
        if self.log is None:
            return []
        snapshot, damaged = self.log.newest_snapshot()
        if snapshot is not None:
            self.engine.load_images(_nested(snapshot.columns))
            self.engine.resume_at(snapshot.last_epoch, snapshot.next_event)
        return damaged

    @abstractmethod
    def replay(
        self, commits: list[list[Block]], inputs: Inputs | None, report: TransactionRecovery
    ) -> None:
        """Apply the commits after the snapshot, accounting for the time in `report`."""

    def restore_keys(self, block: Block) -> None:
        """Assign logged keys their slots again."""
        for number, state in enumerate(self.engine.states):
            keys = block.columns.get(f"keys{number}")
            if keys is not None:
                state.index.extend(keys)
                state.reserve()


class SnapshotsOnly(RecoveryScheme):
    """A scheme that logs nothing between snapshots."""

    commits = False

    def blocks(self) -> list[Columns]:
        return []

    def replay(
        self, commits: list[list[Block]], inputs: Inputs | None, report: TransactionRecovery
    ) -> None:
        """There are no commits."""


def _flat(images: dict[str, dict[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    return {
        f"{table}/{name}": col for table, image in images.items() for name, col in image.items()
    }


def _nested(columns: Columns) -> dict[str, dict[str, npt.NDArray[Any]]]:
    images: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for label, column in columns.items():
        table, name = label.split("/")
        images.setdefault(table, {})[name] = column
    return images


class NoRecovery(SnapshotsOnly):
    name = "none"
    needs_log = False
    snapshots = False


class CheckpointOnly(SnapshotsOnly):
    name = "checkpoint"


class DeltaLog(RecoveryScheme):
    """Each commit logs the after-images of the keys that the epoch changed, as columns.

    Recovery loads and scatters; no transaction of a committed epoch runs again. The log grows with the
    keys an epoch changes, not with its transactions, so hot keys make it cheaper, while they make
    every other scheme more expensive. Epochs of little work share a commit.
    """

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
        began = time.perf_counter()
        for (block,) in commits:
            self.restore_keys(block)
            for number, state in enumerate(self.engine.states):
                values = [
                    block.columns[f"values{number}.{position}"]
                    for position in range(len(state.columns))
                ]
                state.scatter(block.columns[f"slots{number}"], values)
        report.breakdown.execute_s += time.perf_counter() - began


SCHEMES: dict[str, type[RecoveryScheme]] = {
    scheme.name: scheme for scheme in (NoRecovery, CheckpointOnly, DeltaLog)
}
DEFAULT = "delta"
PAPERS = ("wal", "dependency", "lsn-vector", "fast")
"""Schemes to compare with, of the distribution `everstream-lab`."""


@cache
def scheme_of(name: str) -> type[RecoveryScheme]:
    """The scheme of this name; other distributions add theirs as entry points of one group.

    Kept once found: it is asked for in every batch, and the entry points are read from disk.
    """
    if name in SCHEMES:
        return SCHEMES[name]
    added = entry_points(group="everstream.recovery_schemes")
    if name in added.names:
        return cast(type[RecoveryScheme], added[name].load())
    raise DefinitionError(
        f"recovery must be one of {', '.join([*SCHEMES, *sorted(added.names)])}, not {name!r}"
        + ("; `pip install everstream-lab` adds it" if name in PAPERS else "")
    )
