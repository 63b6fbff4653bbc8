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

from everstream.connectors.columns import (
    Evolve,
    Format,
    Takes,
    in_microseconds,
    is_made_of,
    nanoseconds,
    never,
    without_json,
)
from everstream.connectors.sql.database import (
    TOKEN,
    Database,
    SqlTransaction,
    quoted,
    quoted_column,
    upsert_sql,
)
from everstream.connectors.sql.tables import TableSink
from everstream.errors import ConnectorError, EverstreamError, UserError
from everstream.pipeline.exact import Kind

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
"""Errors that are the machine's fault, not the rows'."""
PATIENCE_S = 60.0
"""How long to wait for other shards, or other programs, that write to the same file."""


class Sqlite(TableSink):
    """Writes rows to a table of a SQLite file. All workers must be on the machine of the file.

    Records are dicts, tuples or rows of DataFrames. If the table does not exist, it is created
    from the first rows. Exactly-once; with `upsert_on=["id"]` rows replace those with the same key
    instead (idempotent: a row appears at once, and is written again after a failure). SQLite has
    no dates: they become ISO text; lists and dicts become JSON.

    With `evolve="add_columns"`, columns that the table does not have are added to it, otherwise they are
    refused. The type of a column never changes.

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
        evolve: Evolve = "refuse",
    ) -> None:
        super().__init__(_SqliteFile(str(Path(path).absolute())), table, upsert_on, schema, evolve)


def _stored_as(kind: Kind) -> Kind | None:
    if kind in (pl.UInt64, pl.Int128, pl.UInt128):
        return pl.Int64()
    nested = kind.is_nested() and is_made_of(kind, pl.Binary)
    return None if nested or is_made_of(kind, pl.Object) else in_microseconds(kind)


def _lost(values: pl.Series) -> pl.Series | None:
    if values.dtype.is_float():
        return values.is_nan()  # SQLite has no NaN: it would become NULL
    lost = nanoseconds(values)
    return without_json(values) if lost is None else lost


def _takes(declared: str) -> Takes:
    """How a column keeps values: SQLite converts them depending on the declared type."""
    word = declared.upper()
    if "INT" in word:
        return _numbers
    if any(text in word for text in ("CHAR", "CLOB", "TEXT")):
        return lambda kind: None if kind.is_numeric() and kind.base_type() != pl.Decimal else kind
    if not word or "BLOB" in word:
        return lambda kind: kind
    if any(text in word for text in ("REAL", "FLOA", "DOUB")):
        return lambda kind: pl.Float64() if _numbers(kind) else None
    return _numbers


def _numbers(kind: Kind) -> Kind | None:
    plain = kind.is_integer() or kind.is_float() or kind in (pl.Boolean, pl.Binary, pl.Null)
    return kind if plain else None


def _keeps(before: Kind, after: Kind) -> bool:
    """A column created for numbers turns text into numbers, also the text of a Decimal."""
    numbers = before != pl.Null and _numbers(before) is not None
    return not numbers or _numbers(after) is not None


class _SqliteFile(Database):
    format = Format("SQLite", _stored_as, True, _keeps, needs_type=never, lost=_lost)

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
                "Check that its folder exists and is writable, and that it is a SQLite file."
            ) from error
        return connection

    @contextmanager
    def transaction(self, connection: sqlite3.Connection, table: str) -> Iterator[SqlTransaction]:
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
                f"{where} Check that the disk has space, that the file is writable and that no "
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


class _SqliteSession(SqlTransaction):
    typeless_columns = True

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, tuple(values)).fetchall()

    def columns_of(self, table: str) -> list[str]:
        return [row[1] for row in self.query(f"PRAGMA table_info({quoted(table)})")]

    def has_token_index(self, table: str) -> bool:
        for index in self.query(f"PRAGMA index_list({quoted(table)})"):
            columns = self.query(f"PRAGMA index_info({quoted_column(index[1])})")
            partial = bool(index[4])
            if not partial and columns and columns[0][2] == TOKEN:
                return True
        return False

    def may_index(self, table: str) -> bool:
        return True

    def add_token_index(self, table: str) -> None:
        self.query(f"CREATE INDEX {quoted_column(table + TOKEN)} ON {quoted(table)} ({TOKEN})")

    def kind_of(self, kind: pl.DataType) -> str:
        if kind.is_integer() or kind == pl.Boolean:
            return "INTEGER"
        if kind.is_float():
            return "REAL"
        if kind == pl.Null:
            return ""  # keeps any value unchanged
        return "BLOB" if kind == pl.Binary else "TEXT"

    def takes(self, table: str) -> dict[str, Takes]:
        columns = self.query(f"PRAGMA table_info({quoted(table)})")
        return {row[1]: _takes(row[2]) for row in columns}

    def insert(self, table: str, frame: pl.DataFrame, token: int) -> None:
        names = [*map(quoted_column, frame.columns), TOKEN]
        marks = ", ".join("?" * len(names))
        self._connection.executemany(
            f"INSERT INTO {quoted(table)} ({', '.join(names)}) VALUES ({marks})",
            _rows(frame.with_columns(pl.lit(token, dtype=pl.Int64).alias(TOKEN))),
        )

    def upsert(self, table: str, frame: pl.DataFrame, keys: Sequence[str]) -> None:
        self._connection.executemany(upsert_sql(table, frame.columns, keys, "?"), _rows(frame))


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
