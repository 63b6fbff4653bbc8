"""Transactions whose tables are partitioned over several shards.

One shard, `Sequencer`, puts all events in one order. Every shard of `PartitionedTransact` gets that
order, owns the keys whose hash leads to it, and runs each transaction that has one of them. It
sends the values of its keys to the other shards of the transaction, keyed by the position of the
transaction and the number of the operation, and runs the function once it has theirs. All shards
of a transaction call the function with the same values, so they agree on its verdict; each writes
its own keys. The earliest unfinished transaction never waits for a later one, so there is no
deadlock. See docs/explanation/decisions/sharded-transactions.md.

The engine sees ordinary transactions: a value from elsewhere is first written to a separate cell,
by a transaction that the recovery scheme logs like any other. So every scheme recovers a shard from
its own log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from everstream.errors import GraphError, InternalError
from everstream.pipeline.batch import Batch, columns_of, rows_together
from everstream.pipeline.graph import ByRoute, Edge
from everstream.pipeline.keyed_state.spreading import CONTEXT_STATE, Entries, Place
from everstream.pipeline.keys import KEY_GROUPS, hash_column
from everstream.pipeline.methods.base import Options, StreamBase
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.routes import Router
from everstream.state.backends.memory import MemoryBackend
from everstream.state.backends.protocol import StateBackend
from everstream.transactions.compiled import kernel
from everstream.transactions.definition import Key, Transaction, transaction
from everstream.transactions.errors import InputError
from everstream.transactions.index import Rows
from everstream.transactions.layout import DataLayout
from everstream.transactions.operator import shown
from everstream.transactions.ordering import POSITION, OrderedEvents
from everstream.transactions.recovery import BatchRun
from everstream.transactions.state_log import EngineInState
from everstream.transactions.tables import Table, TableState

if TYPE_CHECKING:
    from everstream.pipeline.stream import Stream
    from everstream.pipeline.types import Row

VALUES = "values"
"""The output and the input of values exchanged between shards."""
_PENDING, _RECEIVED, _NEXT = "pending", "received", "next"
_PRIVATE = "everstream "
_SENT = _PRIVATE + "sent"
_FIRST_IMPORT = -(2**63)
_MOST_IMPORTS = 2**32
_IMPORT_TEXT = "\0everstream "

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
RowNumbers = npt.NDArray[np.intp]


def attach_sharded(
    stream: StreamBase[Any], declared: OrderedEvents, options: Options
) -> "Stream[Row]":
    """Adds both operators behind a stream, and the channel for values; returns the outcomes."""
    name = options.name or stream.pipeline._free_name("transact")
    if not isinstance(options.shards, int) or not 1 <= options.shards <= KEY_GROUPS:
        raise GraphError(
            name,
            f"cannot have {options.shards!r} shards",
            f"Its keys are in {KEY_GROUPS} groups: give a number of shards from 1 to {KEY_GROUPS}.",
        )
    order = replace(options, name=f"{name}-order", shards=1, part_of=name)
    ordered = stream._then("transact", Sequencer(**declared.__getstate__()), order).broadcast()
    tables = PartitionedTransact(
        declared.transactions,
        parallelism=declared.parallelism,
        recovery=declared.recovery,
        select=declared.select,
    )
    done = ordered._then("transact", tables, Options(name, options.shards))
    graph = stream.pipeline.graph
    graph.nodes[name].named = options.name is not None
    to_owner = ByRoute(Router("to", name))
    graph.edges.append(Edge(name, name, to_owner, VALUES, side=VALUES, feedback=True))
    return done


class Sequencer(OrderedEvents):
    """Gives every event its position in the one order that all shards follow."""

    max_shards = 1

    def describe_state(self) -> dict[str, Any]:
        """Nothing but positions and events that wait for their epoch."""
        return {"operator": "transact order"}

    def on_start(self, ctx: Context) -> None:
        self.restore_waiting(ctx)

    def before_checkpoint(self, ctx: Context) -> None:
        self.save_waiting(ctx)

    def without_misfits(self, frame: pl.DataFrame, ctx: Context) -> pl.DataFrame:
        """Here, because a shard sees only its part of a transaction."""
        if ctx.on_error == "fail":
            reasons = self.misfits(frame).drop_nulls()
            if len(reasons):
                raise InputError(f"an event cannot run: {reasons[0]}")
        return super().without_misfits(frame, ctx)

    def run_epoch(self, epoch: pl.DataFrame, ctx: Context) -> None:
        first = ctx.state.get(_NEXT, 0)
        ctx.state.put(_NEXT, first + len(epoch))
        positions = pl.int_range(first, first + len(epoch), eager=True).alias(POSITION)
        ctx.emit_batch(epoch.with_columns(self.name_column(epoch), positions))


class PartitionedTransact(Operator):
    """Runs, in each of its shards, the operations on the keys of that shard; see the module."""

    why_in_memory = OrderedEvents.why_in_memory
    # Outcomes of transactions that wait for values would be late behind a watermark that does not.
    announces_watermarks = True

    def __init__(
        self,
        transactions: Sequence[Transaction],
        *,
        parallelism: int = 1,
        recovery: str = "delta",
        select: str = "transaction",
    ) -> None:
        self.transactions = tuple(transactions)
        self.parallelism = parallelism
        self.recovery = recovery
        self.select = select
        keys = [key for declared in self.transactions for key in declared.keys]
        self.tables = tuple({key.table.name: key.table for key in keys}.values())
        self._imports = tuple(_import(table) for table in self.tables)
        local = (_with_own_key_columns(declared) for declared in self.transactions)
        self._run_in_engine = (*self._imports, *local)
        self._layout = DataLayout(self.tables, self.transactions)
        self._engine: EngineInState | None = None
        self._pending: _Pending | None = None
        self._received: list[pl.DataFrame] = []
        self._cell_slots = [np.zeros(0, np.int32) for _ in self.tables]

    def __getstate__(self) -> dict[str, Any]:
        names = ("transactions", "parallelism", "recovery", "select")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def describe_state(self) -> dict[str, Any]:
        """Tables, and the transactions that some schemes run again when they recover."""
        return {
            "operator": "transact partitions",
            "tables": {table.name: dict(table.fields) for table in self.tables},
            "keys": {table.name: table.keys for table in self.tables},
            "transactions": [declared.name for declared in self.transactions],
            "recovery": self.recovery,
        }

    # The state.

    def on_start(self, ctx: Context) -> None:
        self._engine = self.opened(ctx.state)
        self._pending = None
        if _PENDING in ctx.state:
            self._arrive(ctx.state[_PENDING], ctx)
        received = ctx.state.get(_RECEIVED)
        self._received = [] if received is None else [received]

    def opened(self, state: StateBackend[Any, Any]) -> EngineInState:
        """An engine that has recovered from this state."""
        opened = EngineInState(
            state,
            self.tables,
            self._run_in_engine,
            parallelism=self.parallelism,
            recovery=self.recovery,
            select=self.select,
        )
        for table_state in opened.engine.states:
            keys = table_state.index.keys_from(0)
            table_state.written[: len(keys)][_are_imports(table_state.table, keys)] = 0
        return opened

    def on_stop(self, ctx: Context) -> None:
        if self._engine is not None:
            self._engine.close()

    def before_checkpoint(self, ctx: Context) -> None:
        assert self._engine is not None
        self._engine.save()
        if self._pending is None:
            ctx.state.delete(_PENDING)
        else:
            ctx.state.put(_PENDING, self._pending.saved())
        if self._received:
            self._received = [pl.concat(self._received)]
            ctx.state.put(_RECEIVED, self._received[0])
        else:
            ctx.state.delete(_RECEIVED)

    def redistribute(
        self, parts: Mapping[int, Mapping[str, Entries]], place: Place
    ) -> dict[str, dict[Any, Any]]:
        """The rows of the tables whose keys this shard owns; no transaction waits at such a time."""
        columns: dict[str, list[dict[str, npt.NDArray[Any]]]] = {}
        for states in parts.values():
            earlier: StateBackend[Any, Any] = MemoryBackend()
            earlier.load(dict(states.get(CONTEXT_STATE, {})))
            if _PENDING in earlier:
                raise InternalError("transactions wait for values while shards change")
            opened = self.opened(earlier)
            for state in opened.engine.states:
                image = state.snapshot()
                keys = pl.Series(image["keys"].tolist(), dtype=_key_type(state.table))
                mine = (image["written"] != 0) & (_owners(keys, place.shards) == place.shard)
                kept = {name: column[mine] for name, column in image.items()}
                columns.setdefault(state.table.name, []).append(kept)
            opened.close()
        own: StateBackend[Any, Any] = MemoryBackend()
        fresh = self.opened(own)
        fresh.engine.load_images(
            {
                table: {
                    name: np.concatenate([image[name] for image in images]) for name in images[0]
                }
                for table, images in columns.items()
            }
        )
        fresh.engine.save_snapshot()
        fresh.close()
        return {CONTEXT_STATE: dict(own.items())}

    # Events and values.

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        frame = columns_of(batch, ctx.operator)
        if ctx.input == VALUES:
            self._received.append(frame)
        else:
            self._arrive(frame.with_columns(pl.lit(False).alias(_SENT)), ctx)
        self._advance(ctx)
        self._promise(ctx)

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        self._promise(ctx)

    def _promise(self, ctx: Context) -> None:
        if self._pending is None:
            ctx.advance_watermark(ctx.watermark)

    def on_end(self, ctx: Context) -> None:
        if self._pending is not None:
            raise InternalError("the input has ended, and transactions still wait for values")

    def _arrive(self, events: pl.DataFrame, ctx: Context) -> None:
        """Transactions that have a key here, with the owners of their operands and the slots of own
        keys."""
        names = [declared.name for declared in self.transactions]
        types = events[self.select].replace_strict(
            names, list(range(len(names))), return_dtype=pl.UInt8
        )
        kinds = types.to_numpy()
        keys: list[tuple[int, Table, npt.NDArray[np.intp], pl.Series]] = []
        owners = np.full((self._layout.width, len(events)), -1, np.int16)
        for number, declared in enumerate(self.transactions):
            rows = np.flatnonzero(kinds == number)
            if not len(rows):
                continue
            for position, key in enumerate(declared.keys):
                column = _checked_keys(key, events[key.column].gather(rows))
                owners[position, rows] = _owners(column, ctx.shards)
                keys.append((position, key.table, rows, column))
        slots = np.full(owners.shape, -1, np.int32)
        for position, table, rows, column in keys:
            own = owners[position, rows] == ctx.shard
            slots[position, rows[own]] = self._slots(table, column.filter(pl.Series(own)))
        here = (owners == ctx.shard).any(axis=0)
        if here.any():
            arrived = _Pending(
                events.filter(pl.Series(here)),
                kinds[here],
                owners[:, here],
                slots[:, here],
            )
            self._pending = arrived if self._pending is None else self._pending.and_then(arrived)

    def _slots(self, table: Table, keys: pl.Series) -> npt.NDArray[np.int32]:
        assert self._engine is not None
        slots = np.full((1, len(keys)), -1, np.int32)
        alike = Rows(np.zeros(len(keys), np.uint8), np.zeros(1, np.int8), slots)
        state = self._engine.engine.table(table.name)
        state.index.assign(keys, alike, None, 1)
        state.reserve()
        assigned: npt.NDArray[np.int32] = slots[0]
        return assigned

    def _advance(self, ctx: Context) -> None:
        """Run what can run, and send the values of own keys to the others as soon as they are known."""
        pending = self._pending
        if pending is None:
            return
        received = _Received.of(pl.concat(self._received) if self._received else None)
        where = received.found(pending)
        foreign = (pending.owners >= 0) & (pending.slots < 0)
        waiting: Flags = np.any(foreign & (where < 0), axis=0)
        blocked: Flags = np.zeros(len(waiting), np.bool_)
        readable: Flags = np.ones(len(waiting), np.bool_)
        if waiting.any():
            largest = max(state.index.count for state in self._states)
            cells = np.where(
                pending.slots >= 0,
                pending.slots * len(self.tables) + self._layout.table_of[pending.types].T,
                -1,
            )
            marks = np.zeros((largest + 1) * len(self.tables), np.uint8)
            is_write = self._layout.is_write
            _find_blocked(pending.types, cells, is_write, waiting, marks, blocked, readable)
        run = np.flatnonzero(~blocked)
        if len(run):
            self._execute(pending, run, received, where[:, run], ctx)
        heads = np.flatnonzero(blocked & readable)
        if len(heads):
            self._send(pending, heads, self._live_values(pending, heads), ctx)
        pending.sent |= readable
        self._pending = pending.only(blocked) if blocked.any() else None
        rest = received.without(where[:, run])
        self._received = [rest] if rest is not None else []

    @property
    def _states(self) -> list[TableState]:
        assert self._engine is not None
        return self._engine.engine.states

    # In the engine.

    def _execute(
        self,
        pending: "_Pending",
        rows: RowNumbers,
        received: "_Received",
        where: Numbers,
        ctx: Context,
    ) -> None:
        """Run these transactions in order; values from elsewhere are written to cells first."""
        assert self._engine is not None
        types, slots = pending.types[rows], pending.slots[:, rows].copy()
        engine = self._engine.engine
        values: dict[str, npt.NDArray[Any]] = {}
        cells: list[npt.NDArray[np.int32]] = []
        for number, table in enumerate(self.tables):
            of_table = (where >= 0) & (number == self._layout.table_of[types].T)
            at = where[of_table]
            own = self._cells(number, len(at))
            slots[of_table] = own
            cells.append(own)
            for field, number_type in table.fields.items():
                values[_import_field(table, field)] = (
                    received.columns[_value(table, field)][at]
                    if len(at)
                    else np.zeros(0, number_type)
                )
        counts = [len(part) for part in cells]
        imports = sum(counts)
        all_types = np.concatenate(
            [
                np.repeat(np.arange(len(counts), dtype=np.uint8), counts),
                types + np.uint8(len(counts)),
            ]
        )
        all_slots = np.full((len(slots), len(all_types)), -1, np.int32)
        all_slots[0, :imports] = np.concatenate(cells)
        all_slots[:, imports:] = slots
        begins = np.cumsum([0, *counts])
        fields = []
        for name in engine.layout.fields:
            if name in values:
                column = np.zeros(len(all_types), values[name].dtype)
                begin = begins[self._import_names[name]]
                column[begin : begin + len(values[name])] = values[name]
            else:
                own_field = pending.field(name)[rows]
                column = np.zeros(len(all_types), own_field.dtype)
                column[imports:] = own_field
            fields.append(column)
        run = BatchRun(engine.next_event, all_types, all_slots, fields, [], np.zeros(0, np.uint8))
        events = self._events_of(run) if self._engine.saves_events else None
        outcomes = self._engine.process_prepared(run, events, ctx.operator)[imports:]
        for state, hidden in zip(engine.states, cells, strict=True):
            state.written[hidden] = 0
        read = [column[imports:] for column in run.reads]

        def values_read(number: int, position: int, at: RowNumbers) -> list[npt.NDArray[Any]]:
            place = (number + len(self.tables), position)
            return [
                values[at]
                for column, values in zip(engine.layout.reads, read, strict=True)
                if place in column.users
            ]

        self._send(pending, rows, values_read, ctx)
        home = pending.owners[0, rows] == ctx.shard
        if home.any():
            events = pending.events.drop(_SENT)[rows[home]]
            imported = [name for name in outcomes.columns if name.startswith((_CELL, _IMPORT))]
            outcomes = outcomes.drop(imported).filter(pl.Series(home))
            ctx.emit_batch(shown(events, outcomes.with_columns(event=events[POSITION])))

    def _cells(self, number: int, count: int) -> npt.NDArray[np.int32]:
        """The slots of this many cells for values from elsewhere; runs use them again."""
        known = self._cell_slots[number]
        if len(known) < count:
            table = self.tables[number]
            more = self._slots(table, _cell_keys(table, len(known), 2 * count))
            known = self._cell_slots[number] = np.concatenate([known, more])
        return known[:count]

    def _events_of(self, run: BatchRun) -> pl.DataFrame:
        """The events that would have made this run, for a scheme that runs them again."""
        assert self._engine is not None
        names = [declared.name for declared in self._run_in_engine]
        columns: dict[str, Any] = {
            self.select: pl.Series(names).gather(run.types),
            **dict(zip(self._engine.engine.layout.fields, run.fields, strict=True)),
        }
        keys = {state.table.name: state.index.keys_from(0) for state in self._states}
        for number, declared in enumerate(self._run_in_engine):
            for position, key in enumerate(declared.keys):
                known = keys[key.table.name]
                nothing = np.full(
                    len(run.types), "" if key.table.keys == "string" else 0, known.dtype
                )
                column = columns.setdefault(key.column, nothing)
                rows = np.flatnonzero(run.types == number)
                column[rows] = known[run.slots[position, rows]]
        return pl.DataFrame(columns, schema_overrides=self._key_types)

    @cached_property
    def _key_types(self) -> dict[str, Any]:
        return {
            key.column: _key_type(key.table)
            for declared in self._run_in_engine
            for key in declared.keys
        }

    @cached_property
    def _import_names(self) -> dict[str, int]:
        """The fields of the imports, and the number of their table."""
        return {
            _import_field(table, field): number
            for number, table in enumerate(self.tables)
            for field in table.fields
        }

    # Values for other shards.

    def _live_values(self, pending: "_Pending", rows: RowNumbers) -> "_ValuesOf":
        """What transactions that wait for other shards will read."""

        def values(number: int, position: int, at: RowNumbers) -> list[npt.NDArray[Any]]:
            state = self._states[int(self._layout.table_of[number, position])]
            slots = pending.slots[position, rows[at]]
            return [column[slots] for column in state.columns]

        return values

    def _send(
        self, pending: "_Pending", rows: RowNumbers, values_of: "_ValuesOf", ctx: Context
    ) -> None:
        """Send own values of these transactions to their other shards, unless that has happened."""
        rows_unsent = ~pending.sent[rows]
        owners, types = pending.owners[:, rows], pending.types[rows]
        pieces: list[tuple[int, int, RowNumbers, Table, list[npt.NDArray[Any]]]] = []
        for shard in range(ctx.shards):
            if shard == ctx.shard:
                continue
            wanted = (owners == shard).any(axis=0) & rows_unsent
            if not wanted.any():
                continue
            for number, declared in enumerate(self.transactions):
                of_type = wanted & (types == number)
                for position, key in enumerate(declared.keys):
                    at = np.flatnonzero(of_type & (owners[position] == ctx.shard))
                    if len(at):
                        values = values_of(number, position, at)
                        pieces.append((shard, position, at, key.table, values))
        if not pieces:
            return
        sizes = [len(at) for _, _, at, _, _ in pieces]
        columns: dict[str, npt.NDArray[Any]] = {
            "to": np.repeat(np.array([shard for shard, *_ in pieces], np.int32), sizes),
            POSITION: pending.positions[rows[np.concatenate([at for _, _, at, _, _ in pieces])]],
            "operand": np.repeat(np.array([piece[1] for piece in pieces], np.int8), sizes),
        }
        for table in self.tables:
            for field, number_type in table.fields.items():
                columns[_value(table, field)] = np.zeros(sum(sizes), number_type)
        begin = 0
        for _, _, at, table, values in pieces:
            for field, column in zip(table.fields, values, strict=True):
                columns[_value(table, field)][begin : begin + len(at)] = column
            begin += len(at)
        ctx.emit_batch(pl.DataFrame(columns), output=VALUES)


class _ValuesOf(Protocol):
    def __call__(self, number: int, position: int, at: RowNumbers) -> list[npt.NDArray[Any]]:
        """The fields of the operand at `position` of these rows, all of transaction `number`."""


class _Pending:
    """Transactions of a shard that are not finished, in the order of their positions."""

    def __init__(
        self,
        events: pl.DataFrame,
        types: npt.NDArray[np.uint8],
        owners: npt.NDArray[np.int16],
        slots: npt.NDArray[np.int32],
        sent: Flags | None = None,
    ) -> None:
        """owners: per operand and row, the shard of its key; -1 where there is no such operand.

        slots: of own keys; -1 for those of others.
        """
        self.events = events
        self.types = types
        self.owners = owners
        self.slots = slots
        self.sent: Flags = events[_SENT].to_numpy().copy() if sent is None else sent
        self.positions = events[POSITION].to_numpy()
        self._fields: dict[str, npt.NDArray[Any]] = {}

    def field(self, name: str) -> npt.NDArray[Any]:
        if name not in self._fields:
            column = self.events[name]
            if column.null_count():
                column = column.fill_null(False if column.dtype == pl.Boolean else 0)
            values = column.to_numpy()
            if values.dtype.kind not in "iufb":
                raise InputError(
                    f"field {name!r} must be a number or a boolean, not {column.dtype}"
                )
            self._fields[name] = values
        return self._fields[name]

    def and_then(self, later: "_Pending") -> "_Pending":
        return _Pending(
            rows_together([self.events, later.events], "transact"),
            np.concatenate([self.types, later.types]),
            np.concatenate([self.owners, later.owners], axis=1),
            np.concatenate([self.slots, later.slots], axis=1),
            np.concatenate([self.sent, later.sent]),
        )

    def only(self, chosen: Flags) -> "_Pending":
        if chosen.all():
            return self
        return _Pending(
            self.events.filter(pl.Series(chosen)),
            self.types[chosen],
            self.owners[:, chosen],
            self.slots[:, chosen],
            self.sent[chosen],
        )

    def saved(self) -> pl.DataFrame:
        return self.events.with_columns(pl.Series(_SENT, self.sent))


@dataclass(frozen=True)
class _Received:
    """Values from other shards, by column."""

    frame: pl.DataFrame | None
    columns: dict[str, npt.NDArray[Any]]

    @staticmethod
    def of(frame: pl.DataFrame | None) -> "_Received":
        if frame is None:
            return _Received(None, {})
        return _Received(frame, {name: frame[name].to_numpy() for name in frame.columns})

    def found(self, pending: _Pending) -> Numbers:
        """Per operand and pending transaction, the index of its value here; -1 without."""
        where = np.full(pending.owners.shape, -1, np.int64)
        if self.frame is not None:
            wanted = self.columns[POSITION]
            at = np.searchsorted(pending.positions, wanted)
            at = np.minimum(at, len(pending.positions) - 1)
            known = np.flatnonzero(pending.positions[at] == wanted)
            where[self.columns["operand"][known], at[known]] = known
        return where

    def without(self, used: Numbers) -> pl.DataFrame | None:
        if self.frame is None:
            return None
        left = np.ones(len(self.frame), np.bool_)
        left[used[used >= 0]] = False
        return self.frame.filter(pl.Series(left)) if left.any() else None


_READ, _WRITTEN = 1, 2


@kernel
def _find_blocked(
    types: Any, cells: Any, is_write: Any, missing: Any, marks: Any, blocked: Any, readable: Any
) -> None:
    """A transaction is blocked by missing values, and by an earlier blocked one that it conflicts with."""
    for i in range(len(types)):
        kind = types[i]
        conflict = False
        for p in range(cells.shape[0]):
            cell = cells[p, i]
            if cell >= 0 and (
                marks[cell] & _WRITTEN or (is_write[kind, p] != 0 and marks[cell] & _READ)
            ):
                conflict = True
        readable[i] = not conflict
        if not conflict and not missing[i]:
            continue
        blocked[i] = True
        for p in range(cells.shape[0]):
            cell = cells[p, i]
            if cell >= 0:
                marks[cell] |= _WRITTEN if is_write[kind, p] != 0 else _READ


_KEY, _CELL, _IMPORT = _PRIVATE + "key ", "everstream_cell", "everstream_import_"


def _key_column(position: int, table: Table) -> str:
    return f"{_KEY}{position} {table.name}"


def _cell_column(table: Table) -> str:
    return f"{_PRIVATE}cell {table.name}"


def _import_field(table: Table, field: str) -> str:
    return f"everstream_{table.name}_{field}"


def _value(table: Table, field: str) -> str:
    return f"{table.name}.{field}"


def _key_type(table: Table) -> Any:
    return pl.String if table.keys == "string" else pl.Int64


def _owners(keys: pl.Series, shards: int) -> npt.NDArray[np.int16]:
    """The shard of each key."""
    groups = hash_column(keys) % np.uint64(KEY_GROUPS)
    return (groups % np.uint64(shards)).astype(np.int16)


def _cell_keys(table: Table, first: int, count: int) -> pl.Series:
    """The keys of `count` cells for values from elsewhere."""
    numbers = range(first, first + count)
    if table.keys == "string":
        return pl.Series([f"{_IMPORT_TEXT}{number}" for number in numbers], dtype=pl.String)
    return pl.Series([_FIRST_IMPORT + number for number in numbers], dtype=pl.Int64)


def _are_imports(table: Table, keys: npt.NDArray[Any]) -> Flags:
    if table.keys == "string":
        return np.array([key.startswith(_IMPORT_TEXT) for key in keys], np.bool_)
    return np.asarray(keys < _FIRST_IMPORT + _MOST_IMPORTS)


def _checked_keys(key: Key, column: pl.Series) -> pl.Series:
    """The keys as their table holds them."""
    if key.table.keys == "string":
        keys = column.cast(pl.String)
        reserved = keys.str.starts_with(_IMPORT_TEXT)
    elif column.dtype.is_integer():
        keys = column.cast(pl.Int64, wrap_numerical=True)
        reserved = keys < _FIRST_IMPORT + _MOST_IMPORTS
    else:
        raise InputError(f"column {key.column!r} must hold whole numbers, not {column.dtype}")
    if reserved.any():
        raise InputError(
            f"column {key.column!r} has the key {keys.filter(reserved)[0]!r}, and with several shards "
            f"keys below {_FIRST_IMPORT + _MOST_IMPORTS}, and texts that begin with "
            f"{_IMPORT_TEXT!r}, are reserved"
        )
    return keys


def _with_own_key_columns(declared: Transaction) -> Transaction:
    """Keys in columns of their own: a column of events may be a key here and a field there."""
    keys = tuple(
        replace(key, column=_key_column(position, key.table))
        for position, key in enumerate(declared.keys)
    )
    return replace(declared, keys=keys)


def _import(table: Table) -> Transaction:
    """The transaction that writes a value from elsewhere to a cell."""
    names = [_import_field(table, field) for field in table.fields]
    value = f"({', '.join(names)},)" if table.is_record else names[0]
    name = f"{_IMPORT}{table.name}"
    source = f"def {name}({_CELL}, {', '.join(names)}):\n    return {value}\n"
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    cell = table.key(_cell_column(table))
    return transaction(writes=_CELL, everstream_cell=cell)(namespace[name])
