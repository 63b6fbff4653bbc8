"""An engine whose log is in an operator's state, so that a pipeline's checkpoints make it durable.

The engine keeps the tables; the operator's state keeps the engine's log. Right before a checkpoint
the engine commits, and what its recovery scheme logs becomes part of the saved state. On a restore
the engine recovers from it.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import polars as pl

from everstream.pipeline.batch import rows_together
from everstream.state.backends.protocol import StateBackend
from everstream.transactions.definition import Transaction
from everstream.transactions.engine import TransactionEngine
from everstream.transactions.errors import ExecutionError
from everstream.transactions.log import SNAPSHOT
from everstream.transactions.recovery import BatchRun, scheme_of
from everstream.transactions.store import Store
from everstream.transactions.tables import Table

_SMALLEST_LOG_BYTES = 1 << 16
_MOST_BLOCKS = 32


class EngineInState:
    """An engine that has recovered from an operator's state, and commits to it."""

    def __init__(
        self,
        state: StateBackend[Any, Any],
        tables: Sequence[Table],
        transactions: Sequence[Transaction],
        *,
        parallelism: int,
        recovery: str,
        select: str,
    ) -> None:
        self._state = state
        self._scheme = scheme_of(recovery)
        self.saves_events = self._scheme.replays_events
        """Whether the scheme runs events again when it recovers."""
        self.engine = TransactionEngine(
            tables,
            transactions,
            parallelism=parallelism,
            recovery=recovery,
            log=StateLog(state),
            select=select,
            snapshot_every_epochs=sys.maxsize,
        )
        self.engine.recover(SavedEvents(state).between)
        self._columns = sorted(
            {key.column for declared in transactions for key in declared.keys}.union(
                *(declared.fields for declared in transactions),
                [select] if len(transactions) > 1 else [],
            )
        )
        self._unsaved: list[pl.DataFrame] = []
        self._blocks = 0
        self._saved_event = self.engine.next_event

    def process(self, events: pl.DataFrame, operator: str) -> pl.DataFrame:
        """Run a transaction per event, in order; returns the outcomes."""
        if self.saves_events:
            self._unsaved.append(events.select(self._columns))
        with naming(operator):
            return self.engine.process_batch(events)

    def process_prepared(
        self, run: BatchRun, events: pl.DataFrame | None, operator: str
    ) -> pl.DataFrame:
        """Like `process`; `events`: those of the run, if the scheme saves them."""
        if events is not None:
            self._unsaved.append(events)
        with naming(operator):
            return self.engine.process_prepared(run)

    def save(self) -> None:
        """Commit to the state, if anything ran since the last time."""
        if self.engine.next_event == self._saved_event:
            return
        self.engine.end_epoch()
        self.engine.flush()
        saved = SavedEvents(self._state)
        if self._unsaved:
            saved.add(self._saved_event, rows_together(self._unsaved, "transact"))
            self._unsaved = []
        self._saved_event = self.engine.next_event
        self._blocks += 1
        if self._snapshot_due():
            self.engine.save_snapshot()
            self.engine.flush()
            saved.clear()
            self._blocks = 0

    def _snapshot_due(self) -> bool:
        """More blocks than tables, in size or number, would only make restores slow."""
        if not self._scheme.commits:
            return True
        snapshot_bytes, blocks_bytes = StateLog(self._state).sizes_bytes()
        return (
            blocks_bytes > max(snapshot_bytes, _SMALLEST_LOG_BYTES) or self._blocks >= _MOST_BLOCKS
        )

    def close(self) -> None:
        self.engine.close()


Part = tuple[str, int]


@contextmanager
def naming(operator: str) -> Iterator[None]:
    """An error of a transaction names its operator, and what becomes of the event."""
    try:
        yield
    except ExecutionError as error:
        raise ExecutionError(
            f"operator '{operator}': {error.message} (In a pipeline the checkpoint is "
            "restored; such an event is never skipped, regardless of on_error.)"
        ) from error


class StateLog(Store):
    """A log in an operator's state, so that a pipeline's checkpoints make it durable.

    A block is an entry of bytes that never changes. So a checkpoint writes only the blocks since the
    one before, and shares them with the running operator instead of copying them. A rollback removes
    exactly the blocks that came after it. Other keys of the state are not touched.
    """

    snapshots_kept = 1
    """The checkpoint store has older checkpoints, in case this one is damaged."""

    def __init__(self, state: StateBackend[Any, Any]) -> None:
        self._state = state

    def append(self, name: str, data: bytes) -> None:
        self._state.put((name, len(self._parts(name))), data)

    def sync(self) -> None:
        """The checkpoint does that."""

    def put(self, name: str, data: bytes) -> None:
        self.delete(name)
        self._state.put((name, 0), data)

    def get(self, name: str) -> bytes:
        return b"".join(self._state[part] for part in self._parts(name))

    def names(self) -> list[str]:
        return sorted({key[0] for key in self._state if isinstance(key, tuple)})

    def delete(self, name: str) -> None:
        for part in self._parts(name):
            del self._state[part]

    def seal(self) -> None:
        """There are no files."""

    def _parts(self, name: str) -> list[Part]:
        return sorted(key for key in self._state if isinstance(key, tuple) and key[0] == name)

    def sizes_bytes(self) -> tuple[int, int]:
        """The sizes of the snapshot and of the blocks after it."""
        snapshot = blocks = 0
        for name in self.names():
            size_bytes = sum(len(self._state[part]) for part in self._parts(name))
            if name.startswith(SNAPSHOT):
                snapshot += size_bytes
            else:
                blocks += size_bytes
        return snapshot, blocks


class SavedEvents:
    """The events since the snapshot, kept in the state for a scheme that runs them again."""

    _KEY = "events"

    def __init__(self, state: StateBackend[Any, Any]) -> None:
        self._state = state

    def add(self, first_event: int, events: pl.DataFrame) -> None:
        self._state.put(f"{self._KEY}-{first_event:012d}", events)

    def between(self, first: int, last: int) -> pl.DataFrame:
        """The events with these numbers; commits and saved events begin at the same ones."""
        parts: list[pl.DataFrame] = [
            self._state[key] for key in self._keys() if first <= self._number(key) < last
        ]
        return rows_together(parts, "transact")

    def clear(self) -> None:
        for key in self._keys():
            del self._state[key]

    def _keys(self) -> list[str]:
        names = (key for key in self._state if isinstance(key, str))
        return sorted(key for key in names if key.startswith(f"{self._KEY}-"))

    def _number(self, key: str) -> int:
        return int(key.rpartition("-")[2])
