"""SQLite as a sink: exactly-once rows, or keyed upsert, in one file on one machine."""

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

from everstream.connectors.sql import TOKEN, Database, Session, quoted, quoted_column, upsert_sql
from everstream.connectors.tables import TableSink
from everstream.errors import ConnectorError, EverstreamError, UserError

ENVIRONMENT_CODES = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOTADB,
)
"""What is the machine's fault and not the rows'."""
PATIENCE_S = 60.0
"""How long to wait for other shards, or other programs, that write to the same file."""


class Sqlite(TableSink):
    """Rows into a table of a SQLite file. All hosts must be on the machine of the file.

    Records are dicts, tuples or rows of DataFrames. The table is made from the first rows if it
    is not there. Exactly-once; with `upsert_on=["id"]` rows replace those with the same key
    instead (idempotent: a row shows at once, and again after a failure). SQLite has no dates:
    they become ISO text; lists and dicts become JSON.

    >>> import sqlite3
    >>> rows = es.Pipeline("to-sqlite").source(es.Range(3, column="n"))
    >>> _ = rows.sink(es.Sqlite("numbers.db", "numbers"), shards=1).run()
    >>> sqlite3.connect("numbers.db").execute("select sum(n) from numbers").fetchall()
    [(3,)]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str,
        *,
        upsert_on: Sequence[str] | None = None,
        schema: Any = None,
    ) -> None:
        super().__init__(_SqliteFile(str(Path(path).absolute())), table, upsert_on, schema)


class _SqliteFile(Database):
    def __init__(self, path: str) -> None:
        self.path = path

    def __str__(self) -> str:
        return f"SQLite file '{self.path}',"

    def exists(self) -> bool:
        return Path(self.path).exists()

    def connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(self.path, timeout=PATIENCE_S, isolation_level=None)
            connection.execute("PRAGMA schema_version").fetchone()
        except sqlite3.Error as error:
            raise ConnectorError(
                f"cannot open the SQLite file '{self.path}': {error}. "
                "Check that its folder exists and may be written, and that it is a SQLite file."
            ) from error
        return connection

    @contextmanager
    def transaction(self, connection: sqlite3.Connection, table: str) -> Iterator[Session]:
        try:
            # A writer from the start: waiting for the lock later could only fail.
            connection.execute("BEGIN IMMEDIATE")
            yield _SqliteSession(connection)
            connection.execute("COMMIT")
        except (sqlite3.Error, OverflowError) as error:
            _roll_back(connection)
            raise self._explained(error, table) from error
        except EverstreamError:
            _roll_back(connection)
            raise

    def _explained(self, error: Exception, table: str) -> EverstreamError:
        where = f"table '{table}' in '{self.path}': {error}."
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in ENVIRONMENT_CODES:
            return ConnectorError(
                f"{where} Check that the disk has room, that the file may be written and that no "
                "other program keeps it locked."
            )
        if isinstance(error, sqlite3.OperationalError | sqlite3.IntegrityError):
            return UserError(
                f"{where} Make the rows fit the table; for rows that replace earlier ones use "
                "upsert_on=[...], for which the table needs a unique index on these columns."
            )
        return UserError(f"{where} Turn the values into numbers or text before the sink.")


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


class _SqliteSession(Session):
    numbering = "INTEGER PRIMARY KEY AUTOINCREMENT"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, tuple(values)).fetchall()

    def columns_of(self, table: str) -> list[str]:
        return [row[1] for row in self.query(f"PRAGMA table_info({quoted(table)})")]

    def kind_of(self, kind: pl.DataType) -> str:
        if kind.is_integer() or kind == pl.Boolean:
            return "INTEGER"
        if kind.is_float():
            return "REAL"
        return "BLOB" if kind == pl.Binary else "TEXT"

    def insert(self, table: str, frame: pl.DataFrame, token: int) -> None:
        names = [*map(quoted_column, frame.columns), TOKEN]
        self._connection.executemany(
            f"INSERT INTO {quoted(table)} ({', '.join(names)}) VALUES ({_marks(len(names))})",
            _rows(frame.with_columns(pl.lit(token, dtype=pl.Int64).alias(TOKEN))),
        )

    def upsert(self, table: str, frame: pl.DataFrame, keys: Sequence[str]) -> None:
        self._connection.executemany(upsert_sql(table, frame.columns, keys, "?"), _rows(frame))


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _rows(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    plain = all(
        kind.is_integer() or kind.is_float() or kind in (pl.String, pl.Boolean, pl.Binary)
        for kind in frame.schema.values()
    )
    rows = frame.rows()
    return rows if plain else [tuple(map(_value, row)) for row in rows]


def _value(value: Any) -> Any:
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value
