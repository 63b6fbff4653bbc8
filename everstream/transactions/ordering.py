"""Events in epochs: gathered, checked and put in order before any transaction runs."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import polars as pl

from everstream.pipeline.batch import Batch, columns_of, rows_together
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.rejects import Rejected
from everstream.pipeline.times import TimeOf, Unit
from everstream.transactions.definition import Transaction
from everstream.transactions.errors import DefinitionError, InputError
from everstream.transactions.layout import DataLayout
from everstream.transactions.recovery import scheme_of
from everstream.transactions.tables import Table

COMMITTED = "committed"
POSITION = "position"
"""The position of the event in the order of execution, from 0 without gaps."""
_WAITING = "waiting"
"""The state's key of the events waiting for their epoch."""
_OPTIONS = ("transactions", "parallelism", "recovery", "timestamp", "unit", "epoch", "select")
BATCH, WATERMARK = "batch", "watermark"


class OrderedEvents(Operator):
    """Gathers events into epochs, and passes each epoch in its order to `run_epoch`."""

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
        self._waiting: list[pl.DataFrame] = []

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _OPTIONS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def tables(self) -> tuple[Table, ...]:
        """Every table the transactions name, in that order."""
        keys = [key for declared in self.transactions for key in declared.keys]
        return tuple({key.table.name: key.table for key in keys}.values())

    def describe_tables(self) -> dict[str, Any]:
        """What saved state depends on, as plain JSON."""
        return {
            "tables": {table.name: dict(table.fields) for table in self.tables},
            "keys": {table.name: table.keys for table in self.tables},
            "transactions": [declared.name for declared in self.transactions],
            "recovery": self.recovery,
        }

    def restore_waiting(self, ctx: Context) -> None:
        waiting = ctx.state.get(_WAITING)
        self._waiting = [] if waiting is None else [waiting]

    def save_waiting(self, ctx: Context) -> None:
        if self._waiting:
            self._waiting = [self._gathered()]
            ctx.state.put(_WAITING, self._waiting[0])
        else:
            ctx.state.delete(_WAITING)

    @abstractmethod
    def run_epoch(self, epoch: pl.DataFrame, ctx: Context) -> None:
        """Events of one epoch in their order; there is at least one."""

    # Events.

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = columns_of(batch, ctx.operator)
        self._check_columns(frame)
        frame = self.without_misfits(frame, ctx)
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
        if not len(epoch):
            return
        if self.timestamp is not None and not epoch[self.timestamp].is_sorted():
            epoch = epoch.sort(self.timestamp, maintain_order=True)
        self.run_epoch(epoch, ctx)

    def name_column(self, epoch: pl.DataFrame) -> pl.Expr:
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

    def without_misfits(self, frame: pl.DataFrame, ctx: Context) -> pl.DataFrame:
        """Leave out events that cannot run, if the user chose that; otherwise the engine fails."""
        if ctx.on_error == "fail":
            return frame
        reasons = self.misfits(frame)
        if reasons.null_count() == len(frame):
            return frame
        left_out = reasons.is_not_null()
        for record, why in zip(
            frame.filter(left_out).to_dicts(), reasons.drop_nulls(), strict=True
        ):
            ctx.leave_out(Rejected(record, f"InputError: {why}"))
        return frame.filter(~left_out)

    def misfits(self, frame: pl.DataFrame) -> pl.Series:
        """Why an event names no transaction, or lacks one of its keys or fields; null for others."""
        kind = pl.lit(self.transactions[0].name)
        if self.select in frame.columns:
            kind = self.name_column(frame)
        known = [declared.name for declared in self.transactions]
        reason: Any = pl.when(~kind.is_in(known) | kind.is_null()).then(
            pl.lit(f"{self.select!r} names none of {', '.join(known)}")
        )
        for declared in self.transactions:
            for name in [*(key.column for key in declared.keys), *declared.fields]:
                reason = reason.when((kind == declared.name) & pl.col(name).is_null()).then(
                    pl.lit(f"{name!r} is null")
                )
        return frame.select(reason.otherwise(None).alias("reason")).to_series()


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
