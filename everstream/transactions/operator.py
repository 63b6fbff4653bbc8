"""Transactions as an operator of a pipeline: events in, outcomes out, tables in its state.

The engine keeps the tables; the operator's state keeps the engine's log. Right before a checkpoint
the engine commits, and what its recovery scheme logs becomes part of the saved state. On a restore
the engine recovers from it. So tables, events waiting for their epoch, positions of the inputs and
outcomes sent belong to one instant, which makes outcomes exactly-once.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import polars as pl

from everstream.pipeline.batch import Batch, columns_of, rows_together
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.rejects import Rejected
from everstream.pipeline.times import TimeOf, Unit
from everstream.state.backends.memory import MemoryBackend
from everstream.state.backends.protocol import StateBackend
from everstream.transactions.definition import Transaction
from everstream.transactions.engine import TransactionEngine
from everstream.transactions.errors import DefinitionError, ExecutionError, InputError
from everstream.transactions.layout import DataLayout
from everstream.transactions.log import SNAPSHOT
from everstream.transactions.recovery import scheme_of
from everstream.transactions.store import Store
from everstream.transactions.tables import Table

COMMITTED = "committed"
POSITION = "position"
"""The position of the event in the order of execution, from 0 without gaps."""
_WAITING = "waiting"
"""The state's key of the events waiting for their epoch."""
_OPTIONS = ("transactions", "parallelism", "recovery", "timestamp", "unit", "epoch", "select")
BATCH, WATERMARK = "batch", "watermark"
_SMALLEST_LOG_BYTES = 1 << 16
_MOST_BLOCKS = 32


class Transact(Operator):
    """Runs a transaction per event, as if one by one; see `Stream.transact`."""

    max_shards = 1
    why_in_memory = (
        "the tables of transactions are columns in memory, which threads work on at once"
    )

    def __init__(
        self,
        transactions: Sequence[Transaction],
        *,
        parallelism: int = 1,
        recovery: str = "delta",
        timestamp: str | None = None,
        unit: Unit | None = None,
        epoch: str | int = BATCH,
        select: str = "transaction",
    ) -> None:
        _check(transactions, parallelism, recovery, timestamp, epoch)
        self.transactions = tuple(transactions)
        self.parallelism = parallelism
        self.recovery = recovery
        self.timestamp = timestamp
        self.unit = unit
        self.epoch = epoch
        self.select = select
        # Outcomes of waiting events would be late behind a watermark that does not wait.
        self.announces_watermarks = isinstance(epoch, int)
        # A batch is the unit that is put in order.
        self.whole_batches = epoch == BATCH
        DataLayout(self.tables, self.transactions)
        self._engine: TransactionEngine | None = None
        self._waiting: list[pl.DataFrame] = []
        self._unsaved: list[pl.DataFrame] = []
        self._blocks = 0
        self._saved_event = 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _OPTIONS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def describe_state(self) -> dict[str, Any]:
        """Tables, and the transactions that some schemes run again when they recover."""
        return {
            "operator": "transact",
            "tables": {table.name: dict(table.fields) for table in self.tables},
            "keys": {table.name: table.keys for table in self.tables},
            "transactions": [declared.name for declared in self.transactions],
            "recovery": self.recovery,
        }

    @property
    def tables(self) -> tuple[Table, ...]:
        """Every table the transactions name, in that order."""
        keys = [key for declared in self.transactions for key in declared.keys]
        return tuple({key.table.name: key.table for key in keys}.values())

    # The engine and its log.

    def on_start(self, ctx: Context) -> None:
        self._engine = self.opened(ctx.state)
        self._saved_event = self._engine.next_event
        waiting = ctx.state.get(_WAITING)
        self._waiting = [] if waiting is None else [waiting]

    def opened(self, state: StateBackend[Any, Any]) -> TransactionEngine:
        """An engine that has recovered from this state."""
        engine = TransactionEngine(
            self.tables,
            self.transactions,
            parallelism=self.parallelism,
            recovery=self.recovery,
            log=StateLog(state),
            select=self.select,
            snapshot_every_epochs=sys.maxsize,
        )
        engine.recover(SavedEvents(state).between)
        return engine

    def on_stop(self, ctx: Context) -> None:
        if self._engine is not None:
            self._engine.close()

    def before_checkpoint(self, ctx: Context) -> None:
        assert self._engine is not None
        if self._engine.next_event > self._saved_event:
            self._commit(self._engine, ctx.state)
        if self._waiting:
            self._waiting = [self._gathered()]
            ctx.state.put(_WAITING, self._waiting[0])
        else:
            ctx.state.delete(_WAITING)

    def _commit(self, engine: TransactionEngine, state: StateBackend[Any, Any]) -> None:
        engine.end_epoch()
        engine.flush()
        saved = SavedEvents(state)
        if self._unsaved:
            saved.add(self._saved_event, rows_together(self._unsaved, "transact"))
            self._unsaved = []
        self._saved_event = engine.next_event
        self._blocks += 1
        if self._snapshot_due(state):
            engine.save_snapshot()
            engine.flush()
            saved.clear()
            self._blocks = 0

    def _snapshot_due(self, state: StateBackend[Any, Any]) -> bool:
        """More blocks than tables, in size or number, would only make restores slow."""
        if not scheme_of(self.recovery).commits:
            return True
        snapshot_bytes, blocks_bytes = StateLog(state).sizes_bytes()
        return (
            blocks_bytes > max(snapshot_bytes, _SMALLEST_LOG_BYTES) or self._blocks >= _MOST_BLOCKS
        )

    # Events.

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = columns_of(batch, ctx.operator)
        self._check_columns(frame)
        if ctx.on_error != "fail":
            frame = self._without_misfits(frame, ctx)
        if self.epoch == BATCH:
            self._run(frame, ctx)
            return
        self._waiting.append(frame)
        if isinstance(self.epoch, int):
            while sum(map(len, self._waiting)) >= self.epoch:
                gathered = self._gathered()
                self._wait_for_more(gathered[self.epoch :])
                self._run(gathered[: self.epoch], ctx)
            self._promise(ctx)

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        """Events before the watermark are complete, late ones included: they are an epoch."""
        if self.epoch == WATERMARK and self._waiting:
            assert self.timestamp is not None
            gathered, time = self._gathered(), TimeOf(self.timestamp, self.unit)
            times = time.microseconds(time.read(gathered, ctx.operator))
            self._wait_for_more(gathered.filter(times >= watermark))
            self._run(gathered.filter(times < watermark), ctx)
        self._promise(ctx)

    def on_end(self, ctx: Context) -> None:
        if self._waiting:
            gathered = self._gathered()
            self._wait_for_more(gathered[:0])
            self._run(gathered, ctx)

    def _gathered(self) -> pl.DataFrame:
        return rows_together(self._waiting, "transact")

    def _wait_for_more(self, rest: pl.DataFrame) -> None:
        self._waiting = [rest] if len(rest) else []

    def _promise(self, ctx: Context) -> None:
        if self.announces_watermarks and not self._waiting:
            ctx.advance_watermark(ctx.watermark)

    def _run(self, epoch: pl.DataFrame, ctx: Context) -> None:
        engine = self._engine
        assert engine is not None
        if not len(epoch):
            return
        if self.timestamp is not None and not epoch[self.timestamp].is_sorted():
            epoch = epoch.sort(self.timestamp, maintain_order=True)
        try:
            outcomes = engine.process_batch(epoch)
        except ExecutionError as error:
            raise ExecutionError(
                f"operator '{ctx.operator}': {error.message} (In a pipeline the checkpoint is "
                "restored; such an event is never skipped, regardless of on_error.)"
            ) from error
        if scheme_of(self.recovery).replays_events:
            self._unsaved.append(epoch.select(sorted(self._wanted)))
        ctx.emit_batch(self._shown(epoch, outcomes))

    def _shown(self, epoch: pl.DataFrame, outcomes: pl.DataFrame) -> pl.DataFrame:
        """The events' columns, then the outcome of each; see `outcome_columns`."""
        names = outcome_columns(outcomes.columns, epoch.columns)
        outcomes = outcomes.rename(names)
        return epoch.with_columns(self._name_column(epoch), *outcomes.get_columns())

    def _name_column(self, epoch: pl.DataFrame) -> pl.Expr:
        names = [declared.name for declared in self.transactions]
        if self.select not in epoch.columns:
            return pl.lit(names[0]).alias(self.select)
        column = pl.col(self.select)
        if epoch.schema[self.select].is_integer():
            column = column.replace_strict(list(range(len(names))), names, default=None)
        return column.cast(pl.String)

    # Invalid events.

    @cached_property
    def _wanted(self) -> set[str]:
        wanted = {key.column for declared in self.transactions for key in declared.keys}
        wanted.update(name for declared in self.transactions for name in declared.fields)
        return wanted | ({self.select} if len(self.transactions) > 1 else set())

    def _check_columns(self, frame: pl.DataFrame) -> None:
        """A missing column is missing from every event: there is nothing to skip."""
        wanted = self._wanted | ({self.timestamp} if self.timestamp is not None else set())
        missing = sorted(wanted.difference(frame.columns))
        if self.select in missing:
            names = ", ".join(declared.name for declared in self.transactions)
            raise InputError(
                f"events have no column {self.select!r} that names which of {names} to run; "
                f"they have {frame.columns}. Name another with select=..."
            )
        if missing:
            raise InputError(
                f"events have no column {', '.join(missing)}; they have {frame.columns}"
            )
        clash = sorted({COMMITTED, POSITION}.intersection(frame.columns))
        if clash:
            raise InputError(f"outcomes also have a column {clash[0]}: rename that of the events")
        if self.timestamp is not None and frame[self.timestamp].null_count():
            raise InputError(f"column {self.timestamp!r} is null in some events")

    def _without_misfits(self, frame: pl.DataFrame, ctx: Context) -> pl.DataFrame:
        """Reject events that name no transaction, or lack one of its keys or fields."""
        kind = pl.lit(self.transactions[0].name)
        if self.select in frame.columns:
            kind = self._name_column(frame)
        known = [declared.name for declared in self.transactions]
        reason: Any = pl.when(~kind.is_in(known) | kind.is_null()).then(
            pl.lit(f"{self.select!r} names none of {', '.join(known)}")
        )
        for declared in self.transactions:
            for name in [*(key.column for key in declared.keys), *declared.fields]:
                reason = reason.when((kind == declared.name) & pl.col(name).is_null()).then(
                    pl.lit(f"{name!r} is null")
                )
        reasons = frame.select(reason.otherwise(None).alias("reason")).to_series()
        if reasons.null_count() == len(frame):
            return frame
        left_out = reasons.is_not_null()
        for record, why in zip(
            frame.filter(left_out).to_dicts(), reasons.drop_nulls(), strict=True
        ):
            ctx.leave_out(Rejected(record, f"InputError: {why}"))
        return frame.filter(~left_out)


def outcome_columns(outcomes: Sequence[str], events: Sequence[str]) -> dict[str, str]:
    """Names of the columns of an outcome: a value read gets `_read` where an event has its name."""
    names = {name: f"{name}_read" if name in events else name for name in outcomes}
    names["event"] = POSITION
    return names


def tables_in(operator: Transact, state: Mapping[Any, Any]) -> dict[str, pl.DataFrame]:
    """The tables in an operator's saved state: per table, key and value columns, keys in order."""
    store: StateBackend[Any, Any] = MemoryBackend()
    store.load(dict(state))
    engine = operator.opened(store)
    tables = {table_state.table.name: table_state.frame() for table_state in engine.states}
    engine.close()
    return tables


def _check(
    transactions: Sequence[Any],
    parallelism: Any,
    recovery: Any,
    timestamp: str | None,
    epoch: Any,
) -> None:
    if not transactions:
        raise DefinitionError("transact() needs at least one function declared with es.transaction")
    for given in transactions:
        if not isinstance(given, Transaction):
            raise DefinitionError(
                f"transact() takes functions declared with es.transaction, not {given!r}"
            )
    if not isinstance(parallelism, int) or parallelism < 1:
        raise DefinitionError(
            f"parallelism must be a number of threads from 1 up, not {parallelism!r}"
        )
    if not scheme_of(recovery).needs_log:
        raise DefinitionError(
            f"recovery={recovery!r} saves nothing, so a pipeline could not resume from a checkpoint. "
            "Use 'delta', or run without checkpoints."
        )
    if epoch not in (BATCH, WATERMARK) and (not isinstance(epoch, int) or epoch < 1):
        raise DefinitionError(
            f"epoch must be {BATCH!r}, {WATERMARK!r} or a number of events from 1 up, not {epoch!r}"
        )
    if epoch != BATCH and timestamp is None:
        raise DefinitionError(
            f"epoch={epoch!r} sets which events are sorted by a column at a time: "
            "name the column with timestamp=..."
        )


Part = tuple[str, int]


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
