"""Transactions as an operator of a pipeline: events in, outcomes out, tables in its state.

Tables, events waiting for their epoch, positions of the inputs and outcomes sent belong to one
instant, which makes outcomes exactly-once. `Transact` has one shard; `sharded` has more.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from everstream.pipeline.operator import Context
from everstream.state.backends.memory import MemoryBackend
from everstream.state.backends.protocol import StateBackend
from everstream.transactions.ordering import POSITION, OrderedEvents
from everstream.transactions.state_log import EngineInState


class Transact(OrderedEvents):
    """Runs a transaction per event, as if one by one; see `Stream.transact`."""

    max_shards = 1
    _engine: EngineInState | None = None

    def describe_state(self) -> dict[str, Any]:
        """Tables, and the transactions that some schemes run again when they recover."""
        return {"operator": "transact", **self.describe_tables()}

    def on_start(self, ctx: Context) -> None:
        self._engine = self.opened(ctx.state)
        self.restore_waiting(ctx)

    def opened(self, state: StateBackend[Any, Any]) -> EngineInState:
        """An engine that has recovered from this state."""
        return EngineInState(
            state,
            self.tables,
            self.transactions,
            parallelism=self.parallelism,
            recovery=self.recovery,
            select=self.select,
        )

    def on_stop(self, ctx: Context) -> None:
        if self._engine is not None:
            self._engine.close()

    def before_checkpoint(self, ctx: Context) -> None:
        assert self._engine is not None
        self._engine.save()
        self.save_waiting(ctx)

    def run_epoch(self, epoch: pl.DataFrame, ctx: Context) -> None:
        assert self._engine is not None
        outcomes = self._engine.process(epoch, ctx.operator)
        ctx.emit_batch(shown(epoch.with_columns(self.name_column(epoch)), outcomes))


def shown(events: pl.DataFrame, outcomes: pl.DataFrame) -> pl.DataFrame:
    """The events' columns, then the outcome of each; see `outcome_columns`."""
    names = outcome_columns(outcomes.columns, events.columns)
    return events.with_columns(*outcomes.rename(names).get_columns())


def outcome_columns(outcomes: Sequence[str], events: Sequence[str]) -> dict[str, str]:
    """Names of the columns of an outcome: a value read gets `_read` where an event has its name."""
    names = {name: f"{name}_read" if name in events else name for name in outcomes}
    names["event"] = POSITION
    return names


def tables_in(operator: Any, states: Iterable[Mapping[Any, Any]]) -> dict[str, pl.DataFrame]:
    """The tables in the saved state of an operator's shards: per table, key and value columns, keys
    in order."""
    parts: dict[str, list[pl.DataFrame]] = {}
    for saved in states:
        state: StateBackend[Any, Any] = MemoryBackend()
        state.load(dict(saved))
        opened = operator.opened(state)
        for table_state in opened.engine.states:
            parts.setdefault(table_state.table.name, []).append(table_state.frame())
        opened.close()
    return {name: pl.concat(frames).sort("key") for name, frames in parts.items()}
