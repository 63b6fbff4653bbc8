"""What the table sinks ask of a database, and the SQL that is the same in every one.

A database that is to be written to fills in `Session` and `Database`; how rows, commits and fences
make exactly-once output is told in `tables`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import polars as pl

from everstream.pipeline.sink import SinkShard

TOKEN = "_everstream"
COMMITS = "_everstream_commits"
FENCES = "_everstream_fences"


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
    own_commit_columns: ClassVar[str]
    """The columns of the table of commits that the database fills in, with `id` among them."""

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
        """Make the tables of commits and fences if they are not there."""
        if self.columns_of(COMMITS) and self.columns_of(FENCES):
            return
        self.one_at_a_time()
        owner = "target text NOT NULL, pipeline text NOT NULL, operator text NOT NULL"
        self.query(
            f"CREATE TABLE IF NOT EXISTS {COMMITS} ({self.own_commit_columns}, {owner}, "
            "shard integer NOT NULL, checkpoint bigint NOT NULL, "
            "UNIQUE (target, pipeline, operator, shard, checkpoint))"
        )
        self.query(
            f"CREATE TABLE IF NOT EXISTS {FENCES} ({owner}, "
            "shard integer NOT NULL, generation bigint NOT NULL, "
            "PRIMARY KEY (target, pipeline, operator, shard))"
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

    def add_token(self, table: str, who: SinkShard, checkpoint: int) -> int:
        """Note that a checkpoint's rows are in; the token's number."""
        rows = self.run(
            f"INSERT INTO {COMMITS} (target, pipeline, operator, shard, checkpoint) "
            "VALUES (?, ?, ?, ?, ?) RETURNING id",
            (*_own(table, who), who.shard, checkpoint),
        )
        return int(rows[0][0])

    def has_token(self, table: str, who: SinkShard, checkpoint: int) -> bool:
        sql = f"SELECT 1 FROM {COMMITS} WHERE {_OWN} AND shard = ? AND checkpoint = ?"
        return bool(self.run(sql, (*_own(table, who), who.shard, checkpoint)))

    def fence(self, table: str, who: SinkShard) -> int | None:
        """The newest generation of this shard; locks the answer until the transaction ends."""
        sql = f"SELECT generation FROM {FENCES} WHERE {_OWN} AND shard = ?{self.locking}"
        found = self.run(sql, (*_own(table, who), who.shard))
        return int(found[0][0]) if found else None

    def set_fence(self, table: str, who: SinkShard) -> None:
        self.run(
            f"INSERT INTO {FENCES} (target, pipeline, operator, shard, generation) "
            "VALUES (?, ?, ?, ?, ?) ON CONFLICT (target, pipeline, operator, shard) "
            "DO UPDATE SET generation = excluded.generation",
            (*_own(table, who), who.shard, who.generation),
        )

    def remove_after(self, table: str, who: SinkShard, checkpoint: int) -> None:
        """Take back what a shard committed after a checkpoint."""
        chosen = f"{_OWN} AND shard = ? AND checkpoint > ?"
        self._remove(table, chosen, (*_own(table, who), who.shard, checkpoint))

    def remove_all(self, table: str, pipeline: str, operator: str) -> None:
        """Take back everything of an operator, and forget who wrote it."""
        self._remove(table, _OWN, (table, pipeline, operator))
        self.run(f"DELETE FROM {FENCES} WHERE {_OWN}", (table, pipeline, operator))

    def count_tokens(self, table: str, pipeline: str, operator: str) -> int:
        sql = f"SELECT count(*) FROM {COMMITS} WHERE {_OWN}"
        return int(self.run(sql, (table, pipeline, operator))[0][0])

    def count_rows(self, table: str, pipeline: str, operator: str) -> int:
        """How many rows `remove_all` would take back."""
        if TOKEN not in self.columns_of(table) or not self.columns_of(COMMITS):
            return 0
        sql = (
            f"SELECT count(*) FROM {quoted(table)} WHERE {TOKEN} IN "
            f"(SELECT id FROM {COMMITS} WHERE {_OWN})"
        )
        return int(self.run(sql, (table, pipeline, operator))[0][0])

    def _remove(self, table: str, chosen: str, values: Sequence[Any]) -> None:
        if TOKEN in self.columns_of(table):
            self.run(
                f"DELETE FROM {quoted(table)} WHERE {TOKEN} IN "
                f"(SELECT id FROM {COMMITS} WHERE {chosen})",
                values,
            )
        self.run(f"DELETE FROM {COMMITS} WHERE {chosen}", values)


_OWN = "target = ? AND pipeline = ? AND operator = ?"


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
