"""Exactly-once and keyed-upsert output to database tables, whatever the database.

Exactly-once: rows wait as part files in the run's store, as durable as the checkpoint they belong
to. The database has a row for each shard (pipeline, operator, shard), which every transaction
reads and locks: with the newest checkpoint it has committed, so that nothing goes in twice, and with
its newest generation, so that what an older one still tries, even in the middle of a commit, is
refused by the database. A commit inserts rows and moves that checkpoint on in one transaction, and
commits of one shard come in order: nothing piles up, however long a pipeline runs. Each row carries
the shard's number and the checkpoint in the column `_everstream`, so that recovery to an older
checkpoint finds the rows to take back.

Upsert: rows replace those with the same key at once; records that come again after a failure
change nothing. The generation keeps a writer that was replaced from putting old values back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from everstream.connectors.encoding import decode, encode
from everstream.connectors.files import remove
from everstream.connectors.frames import Columns
from everstream.connectors.ownership import Claim, Owner
from everstream.connectors.parts import (
    PartFolder,
    PartTransaction,
    PartWriter,
    PendingName,
)
from everstream.connectors.sql import OWNERS, TOKEN, Database, Session, Writing, quoted
from everstream.connectors.summing import sum_of
from everstream.errors import ConnectorError, InternalError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Delivery, Permit, Sink, SinkShard, Transaction, Writer
from everstream.state.saved import Saved

ENDING = ".batches"


class TableSink(Sink):
    """Rows into a table: exactly-once, or with `upsert_on` keyed upsert."""

    delivery = Delivery.EXACTLY_ONCE

    def __init__(
        self, database: Database, table: str, upsert_on: Sequence[str] | None, schema: Any
    ) -> None:
        if isinstance(upsert_on, str) or (upsert_on is not None and not upsert_on):
            raise UserError(f"upsert_on={upsert_on!r} must list the key columns: ['id'].")
        self._database = database
        self._table = table
        self._keys = list(upsert_on) if upsert_on else None
        self._schema = pl.Schema(schema) if schema is not None else None
        if self._keys is not None:
            self.delivery = Delivery.IDEMPOTENT

    def open(self, who: SinkShard) -> Writer:
        columns = Columns(who.operator, self._schema)
        if self._keys is not None:
            return _UpsertWriter(self._database, self._table, who, columns, self._keys)
        return _TableWriter(self._database, self._table, who, columns)

    def check(self) -> None:
        """Raise if the database cannot be reached or the table cannot take our rows."""
        with self._database.session(self._table) as session:
            columns = session.columns_of(self._table)
        if columns and self._keys is None and TOKEN not in columns:
            raise UserError(
                f"table '{self._table}' has no column {TOKEN}, by which rows are found that a "
                f"failure takes back. Add it: ALTER TABLE {quoted(self._table)} ADD COLUMN "
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
                    f"'{operator}', from an earlier run. Name another table, or say --fresh, which "
                    "deletes them."
                )
            claim.take()
            session.remove_all(self._table, pipeline, operator)
        _waiting(store, operator).start_fresh(pipeline, operator, replace)

    def before_resume(self, pipeline: str, operator: str, store: str) -> None:
        with self._database.session(self._table) as session:
            session.set_up()
            self._claim(session, pipeline, operator, store).keep()

    def _claim(self, session: Session, pipeline: str, operator: str, store: str) -> Claim:
        return TableClaim(session, self._table, Owner.of(pipeline, operator, store))

    def left_behind(self, pipeline: str, operator: str, store: str) -> str | None:
        if not self._database.exists():
            return None
        with self._database.session(self._table) as session:
            rows = session.count_rows(self._table, pipeline, operator)
        return f"{rows} row(s) in {self._database} table '{self._table}'" if rows else None


def _waiting(store: str, operator: str) -> PartFolder:
    return PartFolder.in_store(store, "waiting", operator, ENDING)


class TableClaim(Claim):
    """To a table, within a transaction of its database."""

    kind = "table"

    def __init__(self, session: Session, table: str, owner: Owner) -> None:
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


def _writing(session: Session, table: str, who: SinkShard) -> Writing:
    """The shard as the database knows it, unless it has been replaced."""
    writing = session.writing(table, who)
    if writing.generation > who.generation:
        raise ConnectorError(
            f"generation {writing.generation} of shard {who.shard} of '{who.operator}' has taken over table "
            f"'{table}'; generation {who.generation} must stop."
        )
    return writing


@dataclass
class TableTransaction(Transaction, Saved, word="table-transaction"):
    """Rows in a part file that go into the table together with the note that they are in.

    Pickles without its database: a checkpoint must hold no password, and the password may have
    changed, or the database moved. `recover` gives it the sink's own.
    """

    table: str
    who: SinkShard
    part: PartTransaction
    checkpoint: int
    database: Database | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "database": None}

    def persist(self) -> None:
        self.part.persist()

    def abort(self) -> None:
        self.part.abort()

    def commit(self, permit: Permit) -> None:
        if permit.checkpoint < self.checkpoint:
            raise InternalError(
                f"rows of checkpoint {self.checkpoint} for table '{self.table}' were to be "
                f"committed with a permit for checkpoint {permit.checkpoint} only"
            )
        if self.part.file is not None:
            self.part.persist()
        if self.database is None:
            raise InternalError(f"rows for table '{self.table}' were given to no `recover`")
        waiting = self._rows()
        with self.database.session(self.table) as session:
            session.set_up()
            writing = _writing(session, self.table, self.who)
            if writing.committed < self.checkpoint:
                if waiting is None:
                    raise ConnectorError(
                        f"the rows of checkpoint {self.checkpoint} for table '{self.table}' are "
                        f"neither in it nor in '{self.part.path}'. Someone removed that file: put "
                        "it back, or start over with --fresh, which deletes the rows there are."
                    )
                self._insert(session, waiting, writing)
        remove(self.part.place.fs, self.part.path)

    def _rows(self) -> pl.DataFrame | None:
        """What waits in the part file; None if it was committed and removed before."""
        try:
            data: bytes = self.part.place.fs.cat_file(self.part.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConnectorError(f"cannot read '{self.part.path}': {error}") from error
        self.part.require_whole(len(data), sum_of(data))
        frames = [batch for batch in decode(data) if isinstance(batch, pl.DataFrame)]
        return pl.concat(frames)

    def _insert(self, session: Session, frame: pl.DataFrame, writing: Writing) -> None:
        session.create(self.table, frame.schema, (), token=True)
        _check_columns(session, self.table, [*frame.columns, TOKEN])
        session.insert(self.table, frame, writing.token(self.checkpoint))
        session.note_committed(writing, self.checkpoint)


def _check_columns(session: Session, table: str, wanted: Sequence[str]) -> None:
    there = session.columns_of(table)
    missing = [name for name in wanted if name not in there]
    if missing:
        raise UserError(
            f"table '{table}' has no column {', '.join(missing)}; it has {', '.join(there)}. Add "
            "the column to the table, or select others before the sink."
        )


class _TableWriter(PartWriter):
    def __init__(self, database: Database, table: str, who: SinkShard, columns: Columns) -> None:
        super().__init__(_waiting(who.store, who.operator), who)
        self._database = database
        self._table = table
        self._columns = columns

    def encode(self, batch: Batch) -> bytes:
        return encode(self._columns.settle(batch))

    def prepare(self, checkpoint: int) -> Transaction | None:
        part = super().prepare(checkpoint)
        if part is None:
            return None
        assert isinstance(part, PartTransaction)
        return TableTransaction(self._table, self._who, part, checkpoint, self._database)

    def recover(self, transactions: Sequence[Transaction], permit: Permit) -> Sequence[Transaction]:
        with self._database.session(self._table) as session:
            session.set_up()
            writing = _writing(session, self._table, self._who)
            session.take_over(writing, self._who.generation)
            session.remove_after(self._table, writing, permit.checkpoint)
        return super().recover(transactions, permit)

    def _bound(self, transaction: Transaction) -> Transaction:
        assert isinstance(transaction, TableTransaction)
        part = replace(transaction.part, folder=self._folder)
        return replace(transaction, part=part, who=self._who, database=self._database)

    def _pending_of(self, transaction: Transaction) -> list[PendingName]:
        assert isinstance(transaction, TableTransaction)
        return [transaction.part.pending]


class _UpsertWriter(Writer):
    def __init__(
        self,
        database: Database,
        table: str,
        who: SinkShard,
        columns: Columns,
        keys: Sequence[str],
    ) -> None:
        self._database = database
        self._table = table
        self._who = who
        self._columns = columns
        self._keys = list(keys)
        self._connection: Any = None
        self._created = False

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        frame = self._columns.settle(batch)
        missing = [key for key in self._keys if key not in frame.columns]
        if missing:
            raise UserError(
                f"operator '{self._who.operator}': records have no {', '.join(missing)}, which "
                "upsert_on= names as a key."
            )
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

    def recover(self, transactions: Sequence[Transaction], permit: Permit) -> Sequence[Transaction]:
        with self._database.session(self._table) as session:
            session.set_up()
            writing = _writing(session, self._table, self._who)
            session.take_over(writing, self._who.generation)
        return ()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _upsert(self, frame: pl.DataFrame) -> None:
        if self._connection is None:
            self._connection = self._database.connect()
        with self._database.transaction(self._connection, self._table) as session:
            if not self._created:
                session.set_up()
                session.create(self._table, frame.schema, self._keys, token=False)
                _check_columns(session, self._table, frame.columns)
            _writing(session, self._table, self._who)
            session.upsert(self._table, frame, self._keys)
        self._created = True
