"""What the PostgreSQL sources and sinks share: connections, errors that name the table, types.

psycopg is an optional package. It is imported when the first connection is made; if it is missing,
the error shows the command that installs it.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import or_
from typing import Any

import polars as pl

from everstream.connectors.columns import (
    Evolve,
    Format,
    Takes,
    fixed,
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
from everstream.connectors.sql.tables import TableSink
from everstream.errors import ConnectionLost, ConnectorError, EverstreamError, UserError
from everstream.extras import extra
from everstream.pipeline.exact import Kind, is_open

CONNECT_TIMEOUT_S = 10
ROWS_AT_ONCE = 16_384
"""Rows per piece: the server takes some while the next ones are converted to text."""


def driver() -> Any:
    with extra("postgres"):
        import psycopg
    return psycopg


def connect(dsn: str, table: str) -> Any:
    """A connection without autocommit."""
    psycopg = driver()
    _check_password(dsn, table)
    try:
        return psycopg.connect(
            dsn, connect_timeout=CONNECT_TIMEOUT_S, fallback_application_name="everstream"
        )
    except psycopg.OperationalError as error:
        kind = ConnectionLost if _may_be_back(error) else ConnectorError
        raise kind(
            f"cannot connect to the database of table '{table}': {_text(error)}. Check that the "
            "server runs and that address, user and password are right (a ~/.pgpass file or "
            "PGPASSWORD keeps the password out of the program)."
        ) from error
    except psycopg.ProgrammingError:
        # The error quotes parts of the string, and any part may be the password.
        raise UserError(
            f"the connection string for table '{table}' is not valid. Write it as \"host=... "
            "dbname=... user=...\", with quotes ('...') around values that have spaces, or as "
            "postgresql://user@host/dbname, with special characters percent-encoded."
        ) from None


def _check_password(dsn: str, table: str) -> None:
    """Refuse a URL whose password would be parsed as a host or a port, and shown in an error."""
    scheme, _, rest = dsn.partition("://")
    credentials, _, _ = rest.rpartition("@")
    if scheme in ("postgresql", "postgres") and not frozenset("@/?#").isdisjoint(credentials):
        raise UserError(
            f"the connection string for table '{table}' has one of the characters @ / ? # in the "
            "password, or an @ after the host. Write them as %40 %2F %3F %23."
        )


def explained(error: Exception, table: str) -> EverstreamError:
    psycopg = driver()
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return ConnectionLost(
            f"the connection to the database of table '{table}' was lost: {_text(error)}. Check "
            "that the server runs; the pipeline resumes from its last checkpoint."
        )
    hint = "Make the rows match the table, in names, types and constraints."
    if isinstance(error, psycopg.errors.InvalidColumnReference):
        hint = "upsert_on=[...] needs a primary key or a unique index on exactly these columns."
    elif isinstance(error, psycopg.errors.UniqueViolation):
        hint = "For rows that replace earlier ones use upsert_on=[...]."
    elif isinstance(error, psycopg.errors.InsufficientPrivilege):
        hint = "Grant the rights to this user."
    return UserError(f"table '{table}': {_text(error)}. {hint}")


def _may_be_back(error: Exception) -> bool:
    """Whether the server did not answer, or cannot answer yet, rather than refusing."""
    text = str(error)
    return "FATAL" not in text or any(phrase in text for phrase in _NOT_YET)


_NOT_YET = (
    *("starting up", "shutting down", "recovery mode", "too many clients"),
    *("terminating connection", "remaining connection slots", "not yet accepting connections"),
)


def _text(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def is_lost(error: Exception) -> bool:
    psycopg = driver()
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


_SQL_KINDS: dict[Any, str] = {
    pl.Int8: "smallint",
    pl.Int16: "smallint",
    pl.Int32: "integer",
    pl.Int64: "bigint",
    pl.UInt8: "smallint",
    pl.UInt16: "integer",
    pl.UInt32: "bigint",
    pl.UInt64: "numeric(20)",
    pl.Float32: "real",
    pl.Float64: "double precision",
    pl.Boolean: "boolean",
    pl.Binary: "bytea",
    pl.Date: "date",
    pl.Time: "time",
    pl.Duration: "interval",
}


def sql_kind(kind: pl.DataType) -> str:
    if isinstance(kind, pl.Datetime):
        return "timestamptz" if kind.time_zone else "timestamp"
    if isinstance(kind, pl.Decimal):
        return f"numeric({kind.precision or 38}, {kind.scale})"
    if isinstance(kind, pl.List) and not kind.inner.is_nested():
        return f"{sql_kind(kind.inner)}[]"  # type: ignore[arg-type]
    if kind.is_nested():
        return "jsonb"
    return _SQL_KINDS.get(kind.base_type(), "text")


def sql_csv(frame: pl.DataFrame) -> Iterator[str] | None:
    """The rows for COPY in format csv, some at a time; None if their text may not be exact.

    Texts are quoted and NULLs are not, which is how COPY distinguishes an empty text from NULL. A
    line with only a backslash and a dot ends the input, even within quotes.
    """
    if not all(map(_has_plain_text, frame.dtypes)):
        return None
    ends = frame.select(pl.col(pl.String).str.contains(r"(^|[\r\n])\\\.").any())
    if ends.width and any(ends.row(0)):
        return None
    return (
        piece.write_csv(include_header=False, quote_style="non_numeric")
        for piece in frame.iter_slices(ROWS_AT_ONCE)
    )


def _has_plain_text(kind: pl.DataType) -> bool:
    if isinstance(kind, pl.Datetime):
        return kind.time_unit != "ns"
    return kind.is_numeric() or kind in (pl.String, pl.Boolean, pl.Date)


def sql_rows(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    as_json = [position for position, kind in enumerate(frame.dtypes) if sql_kind(kind) == "jsonb"]
    rows = frame.rows()
    if not as_json:
        return rows
    changed = []
    for row in rows:
        values = list(row)
        for position in as_json:
            if values[position] is not None:
                values[position] = json.dumps(values[position], ensure_ascii=False, default=str)
        changed.append(tuple(values))
    return changed


_POLARS_KINDS: dict[int, Any] = {
    16: pl.Boolean(),
    17: pl.Binary(),
    18: pl.String(),
    19: pl.String(),
    20: pl.Int64(),
    21: pl.Int16(),
    23: pl.Int32(),
    25: pl.String(),
    26: pl.Int64(),
    700: pl.Float32(),
    701: pl.Float64(),
    1042: pl.String(),
    1043: pl.String(),
    1082: pl.Date(),
    1083: pl.Time(),
    1114: pl.Datetime("us"),
    1184: pl.Datetime("us", "UTC"),
    1186: pl.Duration("us"),
    1000: pl.List(pl.Boolean()),
    1005: pl.List(pl.Int16()),
    1007: pl.List(pl.Int32()),
    1009: pl.List(pl.String()),
    1015: pl.List(pl.String()),
    1016: pl.List(pl.Int64()),
    1021: pl.List(pl.Float32()),
    1022: pl.List(pl.Float64()),
}
NUMERIC = 1700
JSON_KINDS = (114, 3802)
_LARGEST_DECIMAL = 38
_TIMES = (1083, 1114, 1184, 1186)
_MICROSECONDS = 6
_NOT_FOR_WRITING = (18, 19, 26, 1042)
"""Types that truncate or pad their values."""


def kept_in(name: str, kind: int, modifier: int) -> Takes:
    """How a column of this type keeps values; PostgreSQL rounds what does not fit."""
    if kind == NUMERIC and modifier >= 0:
        precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
        if precision <= _LARGEST_DECIMAL and scale <= precision:
            return fixed(pl.Decimal(precision, scale))
    if kind in _TIMES and 0 <= modifier < _MICROSECONDS:
        raise UserError(
            f"column '{name}' of the table keeps times to {modifier} digits and would round them. "
            "Make it a timestamp, timestamptz or time without a number."
        )
    known = None if kind in _NOT_FOR_WRITING else _POLARS_KINDS.get(kind)
    return (lambda other: other) if known is None else fixed(known)


def frame_of(rows: list[tuple[Any, ...]], description: Sequence[Any], table: str) -> pl.DataFrame:
    """Rows as a DataFrame whose types depend on the columns alone, never on the values.

    Types that Polars does not have (uuid, inet, ranges) become text, JSON stays JSON as text.
    """
    columns: dict[str, pl.Series] = {}
    for position, column in enumerate(description):
        values = [row[position] for row in rows]
        kind = _POLARS_KINDS.get(column.type_code)
        if column.type_code == NUMERIC:
            # As in Spark where the column declares no scale.
            kind = pl.Decimal(38, column.scale if column.precision is not None else 18)
        elif column.type_code in JSON_KINDS:
            values = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]
            kind = pl.String()
        elif kind is None:
            values = [None if v is None else str(v) for v in values]
            kind = pl.String()
        try:
            columns[column.name] = pl.Series(column.name, values, dtype=kind)
        except (pl.exceptions.PolarsError, TypeError, OverflowError) as error:
            raise ConnectorError(
                f"table '{table}', column '{column.name}': {error}. Cast it in a query: "
                f"query='SELECT {column.name}::text, ...'."
            ) from error
    return pl.DataFrame(columns)


NUL = "\0"


def unstorable(values: pl.Series) -> pl.Series | None:
    """True for the values of a column that PostgreSQL would refuse; None if it accepts all of them.

    Its texts, also those inside arrays and JSON, cannot contain the character U+0000, and its JSON
    has neither NaN nor infinity. The server reports that only when rows are inserted, when their
    checkpoint is already stable, and again at every recovery. So they are found here, before.
    """
    test = _is_unstorable(pl.element(), values.dtype, sql_kind(values.dtype) == "jsonb")
    if test is None or not len(values):
        return None
    return values.implode().list.eval(test).explode()


def _is_unstorable(value: pl.Expr, kind: pl.DataType, as_json: bool) -> pl.Expr | None:
    """Whether a value of this type, or anything in it, cannot be stored; None if all can be."""
    if kind in (pl.String, pl.Categorical, pl.Enum):
        return value.cast(pl.String).str.contains(NUL, literal=True).fill_null(False)
    if kind.is_float():
        return (~value.is_finite()).fill_null(False) if as_json else None
    if isinstance(kind, pl.Array):
        kind, value = pl.List(kind.inner), value.arr.to_list()
    if isinstance(kind, pl.List):
        inner = _is_unstorable(pl.element(), kind.inner, as_json)  # type: ignore[arg-type]
        return None if inner is None else value.list.eval(inner).list.any().fill_null(False)
    if isinstance(kind, pl.Struct):
        if any(NUL in field.name for field in kind.fields):
            return value.is_not_null()
        tests = [
            _is_unstorable(value.struct.field(field.name), field.dtype, as_json)  # type: ignore[arg-type]
            for field in kind.fields
        ]
        known = [test for test in tests if test is not None]
        return reduce(or_, known) if known else None
    return None


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

    With `evolve="add_columns"`, columns that the table does not have are added to it, otherwise they are
    refused. The type of a column never changes.

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
        evolve: Evolve = "refuse",
    ) -> None:
        driver()
        super().__init__(_PostgresDatabase(dsn, table), table, upsert_on, schema, evolve)


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
