"""What the table sinks ask of a database, and the SQL that is the same in every one.

A database that is to be written to fills in `Session` and `Database`; how rows and writers
make exactly-once output is told in `tables`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import polars as pl

from everstream.connectors.ownership import Owner
from everstream.errors import UserError
from everstream.pipeline.sink import SinkShard

TOKEN = "_everstream"
"""The column that says which writer wrote a row, and with which checkpoint."""
WRITERS = "_everstream_writers"
OWNERS = "_everstream_owners"
EARLIER = "_everstream_commits"
"""A table that had a row for each commit: what it says cannot be gone on with."""
CHECKPOINTS = 1 << 40
"""So many checkpoints a writer can commit; its number times this is where its tokens begin."""


@dataclass(frozen=True)
class Writing:
    """A shard as the database knows it."""

    number: int
    generation: int
    committed: int
    """The newest checkpoint whose rows are in. Commits of a shard come in order, so all before are."""

    def token(self, checkpoint: int) -> int:
        return self.number * CHECKPOINTS + checkpoint


def quoted(name: str) -> str:
    """A name as SQL writes it, `schema.table` in two parts."""
    return ".".join(map(quoted_column, name.split(".")))


def quoted_column(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def upsert_sql(table: str, columns: Sequence[str], keys: Sequence[str], mark: str) -> str:
    """INSERT that replaces the row with the same key."""
    names = ", ".join(map(quoted_column, columns))
    marks = ", ".join([mark] * len(columns))
    others = [quoted_column(name) for name in columns if name not in keys]
    then = ", ".join(f"{name} = excluded.{name}" for name in others)
    return (
        f"INSERT INTO {quoted(table)} ({names}) VALUES ({marks}) "
        f"ON CONFLICT ({', '.join(map(quoted_column, keys))}) "
        + (f"DO UPDATE SET {then}" if then else "DO NOTHING")
    )


class Session(ABC):
    """One open transaction of one database."""

    mark = "?"
    """How a parameter is written."""
    locking = ""
    """What makes a SELECT lock its rows."""
    numbering: ClassVar[str]
    """The type of a column that the database numbers by itself, and never gives a number twice."""

    @abstractmethod
    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and give its rows, if it has any."""

    @abstractmethod
    def columns_of(self, table: str) -> list[str]:
        """The columns of a table; none if there is no such table."""

    @abstractmethod
    def kind_of(self, kind: pl.DataType) -> str:
        """The type of a column, as the database calls it."""

    @abstractmethod
    def insert(self, table: str, frame: pl.DataFrame, token: int) -> None:
        """Add rows with the number of their token."""

    @abstractmethod
    def upsert(self, table: str, frame: pl.DataFrame, keys: Sequence[str]) -> None:
        """Add rows, or replace those that have the same key."""

    def one_at_a_time(self) -> None:
        """Wait until no other transaction makes tables, if it could get in the way."""

    # What is the same in every database.

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.query(sql.replace("?", self.mark), values)

    def set_up(self) -> None:
        """Make the tables of writers and owners if they are not there."""
        if self.columns_of(WRITERS) and self.columns_of(OWNERS):
            return
        if self.columns_of(EARLIER):
            raise UserError(
                f"this database has the table {EARLIER} of an earlier version, whose rows cannot "
                "be found any more. Use another database; or drop that table and the tables that "
                "were written, and start over with --fresh, which deletes the output."
            )
        self.one_at_a_time()
        whose = "target text NOT NULL, pipeline text NOT NULL, operator text NOT NULL"
        self.query(
            f"CREATE TABLE IF NOT EXISTS {WRITERS} (id {self.numbering}, {whose}, shard integer "
            "NOT NULL, generation bigint NOT NULL, committed bigint NOT NULL, "
            "UNIQUE (target, pipeline, operator, shard))"
        )
        self.query(
            f"CREATE TABLE IF NOT EXISTS {OWNERS} ({whose}, store text NOT NULL, "
            "identity text NOT NULL, host text NOT NULL, PRIMARY KEY (target, pipeline, operator))"
        )

    def create(self, table: str, schema: pl.Schema, keys: Sequence[str], token: bool) -> None:
        """Make the table if it is not there."""
        if self.columns_of(table):
            return
        self.one_at_a_time()
        columns = [f"{quoted_column(name)} {self.kind_of(kind)}" for name, kind in schema.items()]
        if token:
            columns.append(f"{TOKEN} bigint")
        if keys:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted_column, keys))})")
        self.query(f"CREATE TABLE IF NOT EXISTS {quoted(table)} ({', '.join(columns)})")

    def writing(self, table: str, who: SinkShard) -> Writing:
        """What is known of this shard; nobody else can change it until the transaction ends."""
        own = (*_own(table, who), who.shard)
        self.run(
            f"INSERT INTO {WRITERS} (target, pipeline, operator, shard, generation, committed) "
            "VALUES (?, ?, ?, ?, 0, 0) ON CONFLICT (target, pipeline, operator, shard) DO NOTHING",
            own,
        )
        found = self.run(
            f"SELECT id, generation, committed FROM {WRITERS} WHERE {_OWN} AND shard = ?"
            + self.locking,
            own,
        )
        return Writing(*map(int, found[0]))

    def take_over(self, writing: Writing, generation: int) -> None:
        """What an older generation still tries is refused from here on."""
        self.run(f"UPDATE {WRITERS} SET generation = ? WHERE id = ?", (generation, writing.number))

    def note_committed(self, writing: Writing, checkpoint: int) -> None:
        self.run(f"UPDATE {WRITERS} SET committed = ? WHERE id = ?", (checkpoint, writing.number))

    def remove_after(self, table: str, writing: Writing, checkpoint: int) -> None:
        """Take back what a shard committed after a checkpoint."""
        if TOKEN in self.columns_of(table):
            self.run(
                f"DELETE FROM {quoted(table)} WHERE {TOKEN} > ? AND {TOKEN} < ?",
                (writing.token(checkpoint), writing.token(CHECKPOINTS)),
            )
        if writing.committed > checkpoint:
            self.note_committed(writing, checkpoint)

    def remove_all(self, table: str, pipeline: str, operator: str) -> None:
        """Take back everything of an operator, and forget who wrote it."""
        own = (table, pipeline, operator)
        if TOKEN in self.columns_of(table):
            self.run(f"DELETE FROM {quoted(table)} WHERE {_WRITTEN}", own)
        self.run(f"DELETE FROM {WRITERS} WHERE {_OWN}", own)

    def has_committed(self, table: str, pipeline: str, operator: str) -> bool:
        sql = f"SELECT 1 FROM {WRITERS} WHERE {_OWN} AND committed > 0"
        return bool(self.run(sql, (table, pipeline, operator)))

    def count_rows(self, table: str, pipeline: str, operator: str) -> int:
        """How many rows `remove_all` would take back."""
        if TOKEN not in self.columns_of(table) or not self.columns_of(WRITERS):
            return 0
        sql = f"SELECT count(*) FROM {quoted(table)} WHERE {_WRITTEN}"
        return int(self.run(sql, (table, pipeline, operator))[0][0])

    def owner(self, table: str, pipeline: str, operator: str) -> Owner | None:
        sql = f"SELECT store, identity, host FROM {OWNERS} WHERE {_OWN}"
        found = self.run(sql, (table, pipeline, operator))
        return Owner(pipeline, operator, *found[0]) if found else None

    def set_owner(self, table: str, owner: Owner) -> bool:
        """Note whose output it is; False if somebody is noted already."""
        columns = asdict(owner)
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        made = self.run(
            f"INSERT INTO {OWNERS} (target, {names}) VALUES (?, {marks}) "
            "ON CONFLICT (target, pipeline, operator) DO NOTHING RETURNING 1",
            (table, *columns.values()),
        )
        return bool(made)

    def remove_owner(self, table: str, pipeline: str, operator: str) -> None:
        self.run(f"DELETE FROM {OWNERS} WHERE {_OWN}", (table, pipeline, operator))


_OWN = "target = ? AND pipeline = ? AND operator = ?"
_WRITTEN = f"{TOKEN} / {CHECKPOINTS} IN (SELECT id FROM {WRITERS} WHERE {_OWN})"
"""Of a row: one of an operator's shards wrote it."""


def _own(table: str, who: SinkShard) -> tuple[str, str, str]:
    return table, who.pipeline, who.operator


class Database(ABC):
    """Where a database is; picklable. As text it says which one, and never a password."""

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def connect(self) -> Any:
        """A connection; raises a ConnectorError that names the database."""

    @abstractmethod
    def transaction(self, connection: Any, table: str) -> Any:
        """A context manager that gives a Session; commits at its end, rolls back on an error.

        What the driver raises comes out as a ConnectorError or a UserError that names the table.
        """

    def exists(self) -> bool:
        """Whether there is anything to clean up."""
        return True

    @contextmanager
    def session(self, table: str) -> Iterator[Session]:
        """One transaction on a connection of its own."""
        connection = self.connect()
        try:
            with self.transaction(connection, table) as session:
                yield session
        finally:
            connection.close()
