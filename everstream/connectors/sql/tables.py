"""Exactly-once and keyed-upsert output to database tables, for any database.

Exactly-once: rows are kept in the run's store (`connectors.staged`) until the commit. The database
has a row for each shard (pipeline, operator, shard), which every transaction reads and locks. It has
the newest committed checkpoint, so that nothing is inserted twice, and the newest generation, so
that the database refuses older ones, even in the middle of a commit. A commit inserts rows and
advances that checkpoint in one transaction, and commits of one shard are in order: nothing
accumulates, however long a pipeline runs. Each row carries the shard's number and the checkpoint in
the column `_everstream`, so that recovery to an older checkpoint finds the rows to remove.

Upsert: rows replace those with the same key at once; replayed records change nothing. The
generation keeps a writer that was replaced from restoring old values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from everstream.connectors.agreed_schema import Agreement
from everstream.connectors.columns import (
    Columns,
    ColumnsWriter,
    Evolve,
    Takes,
    adds_columns,
    evolving,
)
from everstream.connectors.encoding import encode
from everstream.connectors.files.parts import PartTransaction, owner_of
from everstream.connectors.ownership import Claim, Owner, refuse_replaced
from everstream.connectors.sql.database import (
    OWNERS,
    TOKEN,
    Database,
    SqlTransaction,
    Writing,
    quoted,
)
from everstream.connectors.staged import StagedTransaction, StagedWriter, waiting_folder
from everstream.errors import ConnectorError, RefusedRecords, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.exact import Unfit, shown, together
from everstream.pipeline.operators.models import schema_of
from everstream.pipeline.sink import Committable, Delivery, Permit, Sink, SinkShard, Writer

ENDING = ".batches"


class TableSink(Sink):
    """Writes rows to a table: exactly-once, or with `upsert_on` keyed upsert."""

    delivery = Delivery.EXACTLY_ONCE

    def __init__(
        self,
        database: Database,
        table: str,
        upsert_on: Sequence[str] | None,
        schema: Any,
        evolve: Evolve,
    ) -> None:
        adds_columns(evolve)
        if isinstance(upsert_on, str) or (upsert_on is not None and not upsert_on):
            raise UserError(f"upsert_on={upsert_on!r} must list the key columns: ['id'].")
        self._database = database
        self._table = table
        self._evolve = evolve
        self._keys = list(upsert_on) if upsert_on else None
        self._schema = schema_of(schema)
        if self._keys is not None:
            self.delivery = Delivery.IDEMPOTENT

    def open(self, shard: SinkShard) -> Writer:
        columns = self.columns(shard)
        if self._keys is not None:
            return _UpsertWriter(self._database, self._table, shard, columns, self._keys)
        return _TableWriter(self._database, self._table, shard, columns)

    def columns(self, shard: SinkShard) -> Columns:
        format = evolving(self._database.format, self._evolve)
        return Columns(shard, self._schema, format, self._existing)

    def _existing(self) -> Mapping[str, Takes]:
        with self._database.session(self._table) as session:
            return session.takes(self._table)

    def check(self) -> None:
        """Raise if the database cannot be reached or the table cannot hold our rows."""
        with self._database.session(self._table) as session:
            columns = session.columns_of(self._table)
        if columns and self._keys is None and TOKEN not in columns:
            raise UserError(
                f"table '{self._table}' has no column {TOKEN}, which is needed to roll back rows "
                f"after a failure. Add it: ALTER TABLE {quoted(self._table)} ADD COLUMN "
                f"{TOKEN} BIGINT; or name a table that does not exist yet; or use upsert_on=[...]."
            )
        missing = [key for key in self._keys or () if columns and key not in columns]
        if missing:
            raise UserError(f"table '{self._table}' has no column {', '.join(missing)}.")

    def start_fresh(self, pipeline: str, operator: str, store: str, replace: bool) -> None:
        with self._database.session(self._table) as session:
            session.set_up()
            claim = self._claim(session, pipeline, operator, store)
            claim.check()
            if session.has_committed(self._table, pipeline, operator) and not replace:
                raise UserError(
                    f"table '{self._table}' already holds rows of pipeline '{pipeline}', operator "
                    f"'{operator}', from an earlier run. Name another table, or use --fresh, which "
                    "deletes them."
                )
            claim.take()
            session.remove_all(self._table, pipeline, operator)
        Agreement(pipeline, operator, store).forget()
        waiting_folder(store, operator, ENDING).start_fresh(pipeline, operator, replace)

    def before_resume(self, pipeline: str, operator: str, store: str) -> None:
        with self._database.session(self._table) as session:
            session.set_up()
            self._claim(session, pipeline, operator, store).keep()
            written = session.has_committed(self._table, pipeline, operator)
        pendings = waiting_folder(store, operator, ENDING).pendings(owner_of(pipeline, operator))
        if not written and not any(name.token != "fence" for name in pendings):
            Agreement(pipeline, operator, store).forget()

    def _claim(self, session: SqlTransaction, pipeline: str, operator: str, store: str) -> Claim:
        return TableClaim(session, self._table, Owner.of(pipeline, operator, store))

    def left_behind(self, pipeline: str, operator: str, store: str) -> str | None:
        if not self._database.exists():
            return None
        with self._database.session(self._table) as session:
            rows = session.count_rows(self._table, pipeline, operator)
        return f"{rows} row(s) in {self._database} table '{self._table}'" if rows else None


class TableClaim(Claim):
    kind = "table"

    def __init__(self, session: SqlTransaction, table: str, owner: Owner) -> None:
        super().__init__(f"table '{table}'", owner)
        self._session = session
        self._table = table

    def read(self) -> Owner | None:
        return self._session.owner(self._table, self.owner.pipeline, self.owner.operator)

    def create(self) -> bool:
        return self._session.set_owner(self._table, self.owner)

    def remove(self) -> None:
        self._session.remove_owner(self._table, self.owner.pipeline, self.owner.operator)

    def how_to_free(self) -> str:
        return f"remove its row from the table {OWNERS}"


def _writing(session: SqlTransaction, table: str, shard: SinkShard) -> Writing:
    writing = session.writing(table, shard)
    refuse_replaced(shard, writing.generation, f"table '{table}'")
    return writing


@dataclass
class TableTarget:
    """The database that a shard writes to, and the newest checkpoint known to be committed there.

    `committed` is written where transactions are committed, one after the other, and read where
    they are prepared.
    """

    database: Database
    shard: SinkShard
    committed: int = 0


@dataclass
class TableTransaction(StagedTransaction, word="table-transaction"):
    """Rows that are inserted into the table in one transaction with their checkpoint."""

    table: str
    after: int = 0
    """The newest checkpoint that was committed when these were prepared; 0 if none or unknown."""
    target: TableTarget | None = field(default=None, repr=False, compare=False, kw_only=True)

    def deliver(self) -> None:
        assert self.target is not None
        target, waiting = self.target, self._rows()
        with target.database.session(self.table) as session:
            session.set_up()
            writing = _writing(session, self.table, target.shard)
            if writing.committed < self.checkpoint:
                self._refuse_if_restored(target, writing)
                if waiting is None:
                    raise ConnectorError(
                        f"the rows of checkpoint {self.checkpoint} for table '{self.table}' are "
                        f"neither in it nor in '{self.part.path}': that file was removed. Restore "
                        "it, or start over with --fresh, which deletes the existing rows."
                    )
                self._insert(session, waiting, writing)
        target.committed = max(target.committed, self.checkpoint)

    def _refuse_if_restored(self, target: TableTarget, writing: Writing) -> None:
        known = max(self.after, target.committed)
        if writing.committed < known:
            raise UserError(
                f"{target.database} table '{self.table}' was restored to an earlier point: shard "
                f"{target.shard.shard} of '{target.shard.operator}' committed checkpoint {known}, but "
                f"the newest one there is {writing.committed}. The rows in between are lost. Restore "
                "a later copy, go back with `everstream rewind` to a checkpoint that the database "
                "has, or start over with --fresh, which deletes the existing rows."
            )

    def _rows(self) -> list[pl.DataFrame] | None:
        try:
            frames = list(self.frames())
        except FileNotFoundError:
            return None
        try:
            return [together(frames)]
        except Unfit:  # no single type holds all of them, and untyped columns need none
            return frames

    def _insert(
        self, session: SqlTransaction, frames: list[pl.DataFrame], writing: Writing
    ) -> None:
        for frame in frames:
            session.create(self.table, frame.schema, (), token=True)
            fitting = session.fit(self.table, frame)
            _check_columns(session, self.table, [TOKEN])
            session.insert(self.table, fitting, writing.token(self.checkpoint))
        session.note_committed(writing, self.checkpoint)


def _check_columns(session: SqlTransaction, table: str, wanted: Sequence[str]) -> None:
    there = session.columns_of(table)
    missing = [name for name in wanted if name not in there]
    if missing:
        raise UserError(
            f"table '{table}' has no column {', '.join(missing)}; it has {', '.join(there)}. Add "
            "the column to the table, or select others before the sink."
        )


class _TableWriter(ColumnsWriter, StagedWriter):
    def __init__(self, database: Database, table: str, shard: SinkShard, columns: Columns) -> None:
        super().__init__(shard, ENDING)
        self._table = table
        self._columns = columns
        self._target = TableTarget(database, shard)
        self._written: pl.Schema | None = None
        """The columns of the last rows."""

    def encode(self, batch: Batch) -> bytes:
        frame = self._columns.settle(batch)
        self._written = frame.schema
        return encode(frame)

    def finish(self) -> bytes:
        self._columns.require_types()
        schema = self._columns.schema
        # This part may have only rows without a value: the types come with its last frame.
        return encode(pl.DataFrame(schema=schema)) if schema != self._written else b""

    def stage(self, part: PartTransaction) -> TableTransaction:
        return TableTransaction(part, part.checkpoint, self._table, self._target.committed)

    def target(self) -> TableTarget:
        return self._target

    def recover(self, transactions: Sequence[Committable], permit: Permit) -> Sequence[Committable]:
        with self._target.database.session(self._table) as session:
            session.set_up()
            writing = _writing(session, self._table, self._shard)
            session.take_over(writing, self._shard.generation)
            session.remove_after(self._table, writing, permit.checkpoint)
        committed = min(writing.committed, permit.checkpoint)
        self._target = replace(self._target, committed=committed)
        return super().recover(transactions, permit)


class _UpsertWriter(ColumnsWriter):
    def __init__(
        self,
        database: Database,
        table: str,
        shard: SinkShard,
        columns: Columns,
        keys: Sequence[str],
    ) -> None:
        self._database = database
        self._table = table
        self._shard = shard
        self._columns = columns
        self._keys = list(keys)
        self._connection: Any = None
        self._created = False

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        frame = self._columns.settle(batch)
        if not self._created:
            self._columns.require_types()
            frame = self._columns.settled([frame])
        missing = [key for key in self._keys if frame.schema.get(key, pl.Null) == pl.Null]
        if missing:
            raise UserError(
                f"operator '{self._shard.operator}': records have no {', '.join(missing)}, which "
                "upsert_on= names as a key."
            )
        self._refuse_without_key(frame)
        # Of several rows with one key the last one counts; a statement may touch a row once.
        frame = frame.unique(self._keys, keep="last", maintain_order=True)
        fresh = self._connection is None
        try:
            self._upsert(frame)
        except ConnectorError:
            if fresh:
                raise
            # The connection may have been lost long ago; writing again does no harm.
            self.close()
            self._upsert(frame)

    def recover(self, transactions: Sequence[Committable], permit: Permit) -> Sequence[Committable]:
        with self._database.session(self._table) as session:
            session.set_up()
            writing = _writing(session, self._table, self._shard)
            session.take_over(writing, self._shard.generation)
        return ()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _refuse_without_key(self, frame: pl.DataFrame) -> None:
        """A NULL key equals no other: the row would be inserted again after each failure."""
        lacking = frame.select(pl.any_horizontal(pl.col(self._keys).is_null())).to_series()
        if lacking.any():
            raise RefusedRecords(
                {
                    row: f"operator '{self._shard.operator}': a record has no value for "
                    f"{', '.join(self._keys)}, which upsert_on= names as its key. Record: "
                    f"{shown(frame.row(row, named=True))}."
                    for row in lacking.arg_true().to_list()
                }
            )

    def _upsert(self, frame: pl.DataFrame) -> None:
        if self._connection is None:
            self._connection = self._database.connect()
        with self._database.transaction(self._connection, self._table) as session:
            if not self._created:
                session.set_up()
                session.create(self._table, frame.schema, self._keys, token=False)
            frame = session.fit(self._table, frame)
            _writing(session, self._table, self._shard)
            session.upsert(self._table, frame, self._keys)
        self._created = True
