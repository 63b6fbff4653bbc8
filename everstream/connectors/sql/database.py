"""What the table sinks need from a database, and the SQL that all databases share.

To support a database, implement `SqlTransaction` and `Database`; `tables` explains how rows and writers
make exactly-once output.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import polars as pl

from everstream.connectors.columns import Format, Takes
from everstream.connectors.ownership import Owner
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.sink import SinkShard

TOKEN = "_everstream"
"""The column that records the writer and the checkpoint of a row."""
WRITERS = "_everstream_writers"
OWNERS = "_everstream_owners"
EARLIER = "_everstream_commits"
"""A table of an earlier version, with a row for each commit: it cannot be resumed from."""
CHECKPOINTS = 1 << 36
"""How many checkpoints a writer can commit: 21 years at a hundred a second."""
EARLIER_CHECKPOINTS = 1 << 40
"""The same for writers numbered by an earlier version. Their numbers are positive."""
EARLIER_WRITERS = 1 << 23
WRITERS_AT_MOST = 1 << 27


@dataclass(frozen=True)
class Writing:
    """A shard as the database has it."""

    number: int
    """Negative, and different for every shard. An earlier version used positive numbers."""
    generation: int
    committed: int
    """The newest checkpoint whose rows are in. Commits of a shard are in order, so all before are."""

    def token(self, checkpoint: int) -> int:
        """The number that rows of this checkpoint carry. Increases with the checkpoint."""
        first, end = tokens_of(self.number)
        if not 0 <= checkpoint < end - first:
            raise ConnectorError(
                f"checkpoint {checkpoint} is beyond what a database can number for one shard "
                f"({end - first}). Rename the sink (name=...), or start over with "
                "--fresh, which deletes the existing rows."
            )
        return first + checkpoint


def tokens_of(number: int) -> tuple[int, int]:
    """The tokens of a writer: from the first one up to, but not including, the second."""
    size = CHECKPOINTS if number < 0 else EARLIER_CHECKPOINTS
    return number * size, (number + 1) * size


def quoted(name: str) -> str:
    """A name quoted for SQL, `schema.table` in two parts."""
    return ".".join(map(quoted_column, name.split(".")))


def quoted_column(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def upsert_sql(table: str, columns: Sequence[str], keys: Sequence[str], mark: str) -> str:
    names = ", ".join(map(quoted_column, columns))
    marks = ", ".join([mark] * len(columns))
    others = [quoted_column(name) for name in columns if name not in keys]
    then = ", ".join(f"{name} = excluded.{name}" for name in others)
    return (
        f"INSERT INTO {quoted(table)} ({names}) VALUES ({marks}) "
        f"ON CONFLICT ({', '.join(map(quoted_column, keys))}) "
        + (f"DO UPDATE SET {then}" if then else "DO NOTHING")
    )


class SqlTransaction(ABC):
    """One open transaction of one database."""

    mark = "?"
    """The placeholder for a parameter."""
    locking = ""
    """The clause that makes a SELECT lock its rows."""
    typeless_columns = False
    """Whether a column can be created before its type is known."""

    @abstractmethod
    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows, if it has any."""

    @abstractmethod
    def columns_of(self, table: str) -> list[str]:
        """The columns of a table; empty if there is no such table."""

    @abstractmethod
    def kind_of(self, kind: pl.DataType) -> str:
        """The database's name for the type of a column."""

    @abstractmethod
    def takes(self, table: str) -> dict[str, Takes]:
        """The columns of a table, with the types they can hold; empty if there is no such table."""

    @abstractmethod
    def insert(self, table: str, frame: pl.DataFrame, token: int) -> None:
        """Insert rows with their token."""

    @abstractmethod
    def upsert(self, table: str, frame: pl.DataFrame, keys: Sequence[str]) -> None:
        """Insert rows, or replace those that have the same key."""

    @abstractmethod
    def has_token_index(self, table: str) -> bool:
        """Whether rows can be found by their token without scanning the table."""

    @abstractmethod
    def may_index(self, table: str) -> bool:
        """Whether this user may add an index to the table."""

    @abstractmethod
    def add_token_index(self, table: str) -> None:
        """Add an index on the token."""

    def one_at_a_time(self, numbering: bool = False) -> None:
        """Wait until no other transaction creates tables (or assigns numbers)."""

    # The same in every database.

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.query(sql.replace("?", self.mark), values)

    def set_up(self) -> None:
        """Create the tables of writers and owners if they do not exist."""
        if self.columns_of(WRITERS) and self.columns_of(OWNERS):
            return
        if self.columns_of(EARLIER):
            raise UserError(
                f"this database has the table {EARLIER} of an earlier version, whose rows can no "
                "longer be found. Use another database; or drop that table and the tables that "
                "were written, and start over with --fresh, which deletes the output."
            )
        self.one_at_a_time()
        identity = "target text NOT NULL, pipeline text NOT NULL, operator text NOT NULL"
        self.query(
            f"CREATE TABLE IF NOT EXISTS {WRITERS} (id bigint PRIMARY KEY, {identity}, shard integer "
            "NOT NULL, generation bigint NOT NULL, committed bigint NOT NULL, "
            "UNIQUE (target, pipeline, operator, shard))"
        )
        self.query(
            f"CREATE TABLE IF NOT EXISTS {OWNERS} ({identity}, store text NOT NULL, "
            "identity text NOT NULL, host text NOT NULL, PRIMARY KEY (target, pipeline, operator))"
        )

    def create(self, table: str, schema: pl.Schema, keys: Sequence[str], token: bool) -> None:
        """Create the table if it does not exist; columns of unknown type are added by `fit`."""
        if self.columns_of(table):
            return
        if not self.typeless_columns:
            schema = pl.Schema({name: kind for name, kind in schema.items() if kind != pl.Null})
        self.one_at_a_time()
        columns = [f"{quoted_column(name)} {self.kind_of(kind)}" for name, kind in schema.items()]
        if token:
            columns.append(f"{TOKEN} bigint")
        if keys:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted_column, keys))})")
        self.query(f"CREATE TABLE IF NOT EXISTS {quoted(table)} ({', '.join(columns)})")
        if token:
            self.index_tokens(table)

    def index_tokens(self, table: str) -> None:
        """Index rows by their token, so that rolling some back costs only as much as those rows."""
        if self.has_token_index(table) or not self.may_index(table):
            return
        self.one_at_a_time()
        if not self.has_token_index(table):
            self.add_token_index(table)

    def fit(self, table: str, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows without columns that have had no value yet; adds columns that have one now."""
        there = self.columns_of(table)
        new = {n: k for n, k in frame.schema.items() if n not in there and k != pl.Null}
        if new:
            self.one_at_a_time()
            there = self.columns_of(table)
        for name, kind in new.items():
            if name not in there:
                column = f"{quoted_column(name)} {self.kind_of(kind)}"
                self.query(f"ALTER TABLE {quoted(table)} ADD COLUMN {column}")
        return frame.select(name for name in frame.columns if name in (*there, *new))

    def writing(self, table: str, shard: SinkShard) -> Writing:
        """The state of this shard, locked until the transaction ends."""
        own = (table, shard.pipeline, shard.operator, shard.shard)
        writing = self._find(own)
        if writing is None or writing.number >= EARLIER_WRITERS:
            self.one_at_a_time(numbering=True)
            writing = self._find(own)  # another transaction may have been faster
        if writing is None:
            number = self._next_number()
            self.run(
                f"INSERT INTO {WRITERS} (id, target, pipeline, operator, shard, generation, "
                "committed) VALUES (?, ?, ?, ?, ?, 0, 0)",
                (number, *own),
            )
            return Writing(number, 0, 0)
        if writing.number >= EARLIER_WRITERS:
            # Numbered by an earlier version, and its numbers ran out before anything was committed.
            number = self._next_number()
            self.run(f"UPDATE {WRITERS} SET id = ? WHERE id = ?", (number, writing.number))
            return replace(writing, number=number)
        return writing

    def _find(self, own: Sequence[Any]) -> Writing | None:
        rows = self.run(
            f"SELECT id, generation, committed FROM {WRITERS} WHERE {_OWN} AND shard = ?"
            + self.locking,
            own,
        )
        return Writing(*map(int, rows[0])) if rows else None

    def _next_number(self) -> int:
        """Below all others. Rows of writers are never deleted, so no number is used twice."""
        lowest = self.run(f"SELECT min(id) FROM {WRITERS}")[0][0]
        number = min(int(lowest or 0), 0) - 1
        if number < -WRITERS_AT_MOST:
            raise ConnectorError(
                f"the table {WRITERS} has {WRITERS_AT_MOST} writers, the most it can number. "
                "Write to another database."
            )
        return number

    def take_over(self, writing: Writing, generation: int) -> None:
        """Fence older generations: from here on they are refused."""
        self.run(f"UPDATE {WRITERS} SET generation = ? WHERE id = ?", (generation, writing.number))

    def note_committed(self, writing: Writing, checkpoint: int) -> None:
        self.run(f"UPDATE {WRITERS} SET committed = ? WHERE id = ?", (checkpoint, writing.number))

    def remove_after(self, table: str, writing: Writing, checkpoint: int) -> None:
        """Remove what a shard committed after a checkpoint; nothing if it committed nothing."""
        if writing.committed <= checkpoint:
            return
        first, last = writing.token(checkpoint) + 1, writing.token(writing.committed)
        self._remove_rows(table, first, last + 1)
        self.note_committed(writing, checkpoint)

    def remove_all(self, table: str, pipeline: str, operator: str) -> None:
        own = (table, pipeline, operator)
        for number, committed in self._numbers(own):
            if committed:
                self._remove_rows(table, *tokens_of(number))
        self.run(f"UPDATE {WRITERS} SET generation = 0, committed = 0 WHERE {_OWN}", own)

    def _remove_rows(self, table: str, first: int, end: int) -> None:
        if TOKEN in self.columns_of(table):
            self.index_tokens(table)  # a table of an earlier version, or of the user, has none
            self.run(f"DELETE FROM {quoted(table)} WHERE {_BETWEEN}", (first, end))

    def _numbers(self, own: Sequence[str]) -> list[tuple[int, int]]:
        rows = self.run(f"SELECT id, committed FROM {WRITERS} WHERE {_OWN}", own)
        return [(int(number), int(committed)) for number, committed in rows]

    def has_committed(self, table: str, pipeline: str, operator: str) -> bool:
        return any(committed for _, committed in self._numbers((table, pipeline, operator)))

    def count_rows(self, table: str, pipeline: str, operator: str) -> int:
        """How many rows `remove_all` would remove."""
        if TOKEN not in self.columns_of(table) or not self.columns_of(WRITERS):
            return 0
        sql = f"SELECT count(*) FROM {quoted(table)} WHERE {_BETWEEN}"
        numbers = self._numbers((table, pipeline, operator))
        return sum(
            int(self.run(sql, tokens_of(number))[0][0])
            for number, committed in numbers
            if committed
        )

    def owner(self, table: str, pipeline: str, operator: str) -> Owner | None:
        sql = f"SELECT store, identity, host FROM {OWNERS} WHERE {_OWN}"
        rows = self.run(sql, (table, pipeline, operator))
        return Owner(pipeline, operator, *rows[0]) if rows else None

    def set_owner(self, table: str, owner: Owner) -> bool:
        """Record the owner of the output; False if there already is one."""
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
_BETWEEN = f"{TOKEN} >= ? AND {TOKEN} < ?"


class Database(ABC):
    """Where a database is; picklable. As text it names the database, never a password."""

    format: ClassVar[Format]
    """What its columns can hold."""

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def connect(self) -> Any:
        """A connection; raises a ConnectorError that names the database."""

    @abstractmethod
    def transaction(self, connection: Any, table: str) -> Any:
        """A context manager that gives a SqlTransaction; commits at its end, rolls back on an error.

        The driver's errors are raised as a ConnectorError or a UserError that names the table.
        """

    def exists(self) -> bool:
        """Whether there is anything to clean up."""
        return True

    @contextmanager
    def session(self, table: str) -> Iterator[SqlTransaction]:
        """One transaction on a separate connection."""
        connection = self.connect()
        try:
            with self.transaction(connection, table) as session:
                yield session
        finally:
            connection.close()
