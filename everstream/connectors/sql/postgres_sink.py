"""PostgreSQL as a sink: exactly-once rows, or keyed upsert."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import polars as pl

from everstream.connectors.columns import (
    Format,
    Takes,
    in_microseconds,
    is_made_of,
    nanoseconds,
)
from everstream.connectors.sql.database import (
    TOKEN,
    Database,
    SqlTransaction,
    quoted,
    quoted_column,
    upsert_sql,
)
from everstream.connectors.sql.postgres import (
    connect,
    driver,
    explained,
    kept_in,
    sql_csv,
    sql_kind,
    sql_rows,
    unstorable,
)
from everstream.connectors.sql.tables import TableSink
from everstream.pipeline.exact import Kind, is_open

SETTING_UP = 7_305_202_301
"""The advisory lock for creating tables: PostgreSQL fails if two create one at once."""
NUMBERING = 7_305_202_302
"""The advisory lock for numbering writers. Its holder never waits for a table."""


class Postgres(TableSink):
    """Writes rows to a PostgreSQL table.

    `dsn` is a connection string ("host=... dbname=..." or "postgresql://..."). Records are dicts,
    tuples or rows of DataFrames; if the table does not exist, it is created from the first rows.
    Exactly-once; with `upsert_on=["id"]` rows replace those with the same key instead
    (idempotent: a row appears at once, and is written again after a failure).

    >>> counts = es.Pipeline("to-postgres").source(es.FromList([{"word": "to", "n": 1}]))
    >>> table = es.Postgres("dbname=shop", "counts", upsert_on=["word"])
    >>> pipeline = counts.sink(table, shards=1)
    """

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        upsert_on: Sequence[str] | None = None,
        schema: Any = None,
    ) -> None:
        driver()
        super().__init__(_PostgresDatabase(dsn, table), table, upsert_on, schema)


def _stored_as(kind: Kind) -> Kind | None:
    if kind in (pl.Int128, pl.UInt128):
        return pl.Decimal(38, 0)
    as_json = sql_kind(kind) == "jsonb" and is_made_of(kind, pl.Binary)
    return None if as_json or is_made_of(kind, pl.Object) else in_microseconds(kind)


def _needs_type(kind: Kind) -> bool:
    """Whether a column has had only None: it is not created yet, and JSON has no types."""
    return kind != pl.Null and is_open(kind) and sql_kind(kind) != "jsonb"


def _lost(values: pl.Series) -> pl.Series | None:
    lost = nanoseconds(values)
    return unstorable(values) if lost is None else lost


class _PostgresDatabase(Database):
    format = Format("PostgreSQL", _stored_as, needs_type=_needs_type, lost=_lost)

    def __init__(self, dsn: str, table: str) -> None:
        self.dsn = dsn
        self.table = table

    def __str__(self) -> str:
        return "the PostgreSQL"

    def connect(self) -> Any:
        return connect(self.dsn, self.table)

    @contextmanager
    def transaction(self, connection: Any, table: str) -> Iterator[SqlTransaction]:
        try:
            with connection.transaction(), connection.cursor() as cursor:
                yield _PostgresSession(cursor)
        except driver().Error as error:
            raise explained(error, table) from error


class _PostgresSession(SqlTransaction):
    mark = "%s"
    locking = " FOR UPDATE"

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self._cursor.execute(sql, tuple(values) or None)
        return list(self._cursor.fetchall()) if self._cursor.description else []

    def columns_of(self, table: str) -> list[str]:
        rows = self.query(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) "
            "AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (quoted(table),),
        )
        return [row[0] for row in rows]

    def kind_of(self, kind: pl.DataType) -> str:
        return sql_kind(kind)

    def takes(self, table: str) -> dict[str, Takes]:
        rows = self.query(
            "SELECT attname, atttypid::int, atttypmod FROM pg_attribute WHERE attrelid = "
            "to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (quoted(table),),
        )
        return {name: kept_in(name, *kind) for name, *kind in rows}

    def has_token_index(self, table: str) -> bool:
        rows = self.query(
            "SELECT 1 FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
            "AND a.attnum = i.indkey[0] WHERE i.indrelid = to_regclass(%s) AND a.attname = %s "
            "AND i.indisvalid AND i.indpred IS NULL",
            (quoted(table), TOKEN),
        )
        return bool(rows)

    def may_index(self, table: str) -> bool:
        rows = self.query(
            "SELECT pg_has_role(relowner, 'USAGE') AND has_schema_privilege(relnamespace, 'CREATE')"
            " FROM pg_class WHERE oid = to_regclass(%s)",
            (quoted(table),),
        )
        return bool(rows and rows[0][0])

    def add_token_index(self, table: str) -> None:
        self.query(f"CREATE INDEX ON {quoted(table)} ({TOKEN})")

    def one_at_a_time(self, numbering: bool = False) -> None:
        lock = NUMBERING if numbering else SETTING_UP
        self.query("SELECT pg_advisory_xact_lock(%s)", (lock,))

    def insert(self, table: str, frame: pl.DataFrame, token: int) -> None:
        names = ", ".join([*map(quoted_column, frame.columns), TOKEN])
        text = sql_csv(frame.with_columns(pl.lit(token, pl.Int64).alias(TOKEN)))
        if text is not None:
            with self._cursor.copy(
                f"COPY {quoted(table)} ({names}) FROM STDIN (FORMAT csv)"
            ) as copy:
                for piece in text:
                    copy.write(piece)
            return
        with self._cursor.copy(f"COPY {quoted(table)} ({names}) FROM STDIN") as copy:
            for row in sql_rows(frame):
                copy.write_row((*row, token))

    def upsert(self, table: str, frame: pl.DataFrame, keys: Sequence[str]) -> None:
        sql = upsert_sql(table, frame.columns, keys, "\0").replace("%", "%%").replace("\0", "%s")
        self._cursor.executemany(sql, sql_rows(frame))
