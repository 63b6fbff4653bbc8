"""PostgreSQL as a source: a table or query by key ranges, and the changes of a table as they come.

Both read in the order of a column, and the offset is the last value read. Rows with equal values
are always read together, so the column need not be unique. A lost connection is reopened once
before it is an error, because reading again from the offset does no harm.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import polars as pl

from everstream.connectors.options import at_least_one
from everstream.connectors.sql.database import quoted, quoted_column
from everstream.connectors.sql.postgres import connect, driver, explained, frame_of, is_lost
from everstream.errors import UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.checkpointing import seconds
from everstream.pipeline.operators.lookup import LookupTable
from everstream.pipeline.source import END, EndOfStream, Reader, Source
from everstream.pipeline.types import Row
from everstream.state.saved import Saved

ROWS_PER_BATCH = 16_384
PREPARED = "-1/"
"""Prefix of the names of transactions that are prepared for a second phase."""
RANGES = 64
"""Key ranges a table is cut into; the shards take them in turn."""


class _PostgresSource(Source[Row]):
    _rows: "_Rows"

    def describe_offsets(self) -> dict[str, Any]:
        return {**super().describe_offsets(), "table": self._rows.source, "key": self._rows.key}

    def stopping_point(self) -> tuple[Any, ...]:
        """The largest key there is now, if any; open transactions may still add smaller ones."""
        with closing(_Client(self._rows)) as client:
            key, source = column_sql(self._rows.key), self._rows.source
            largest = client.query(f"SELECT max({key}) FROM {source}")[0][0][0]
        return () if largest is None else (largest,)


class PostgresTable(_PostgresSource, LookupTable):
    """The rows of a table, or of a query, read in ranges of a key that the shards share.

    For `stream.lookup` it is a table that is asked for the rows of some keys; it needs no `key` then.

    `key` is a column with an order and without NULLs, preferably with an index. The ranges are cut
    when the run begins and end at the largest key of that time. Rows must not change while they
    are read, or a replay reads the changed rows; for a table that grows use PostgresChanges.
    With until="caught-up" the next run reads the rows with keys larger than the largest one now.

    >>> orders = es.PostgresTable("dbname=shop", "orders", key="id", columns=["id", "cents"])
    >>> stream = es.Pipeline("orders").source(orders, shards=2)
    """

    def __init__(
        self,
        dsn: str,
        table: str | None = None,
        *,
        key: str | None = None,
        query: str | None = None,
        columns: Sequence[str] | None = None,
        batch_rows: int = ROWS_PER_BATCH,
    ) -> None:
        driver()
        if (table is None) == (query is None):
            raise UserError("PostgresTable reads a table or a query: give one of the two.")
        at_least_one(batch_rows=batch_rows)
        source = _from(table, query)
        self._rows = _Rows(dsn, table or "(query)", source, key or "", columns, batch_rows)
        self._ranges: tuple[_KeyRange, ...] | None = None
        self._asking: _Client | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_asking": None}  # a connection stays in its process

    def rows(self, keys: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
        """The rows of these keys."""
        if self._asking is None:
            self._asking = _Client(self._rows)
        wanted = ", ".join(f"t.{column_sql(name)}" for name in [*keys.columns, *columns])
        arrays = ", ".join("%s::text[]" if one.dtype == pl.String else "%s" for one in keys)
        names = ", ".join(f"column{n}" for n in range(keys.width))
        same = " AND ".join(
            f"t.{column_sql(name)} = k.column{n}" for n, name in enumerate(keys.columns)
        )
        fetched, description = self._asking.query(
            f"SELECT {wanted} FROM {self._rows.source.removesuffix(' AS rows')} AS t "
            f"JOIN unnest({arrays}) AS k({names}) ON {same}",
            [column.to_list() for column in keys],
        )
        return frame_of(fetched, description, self._rows.table)

    def check(self) -> None:
        """Cut the key ranges, once for all shards."""
        if not self._rows.key:
            raise UserError(
                f"PostgresTable reads '{self._rows.table}' in the order of a column: give key='id', a "
                "column with an order and without NULLs."
            )
        self._ranges = self._cut()

    def open(self, shard: int, shards: int) -> Reader:
        ranges = self._ranges if self._ranges is not None else self._cut()
        upto = (ranges[-1].high,) if ranges else ()
        offset = KeyOffset(ranges[shard::shards], upto=upto)
        return _RangesReader(_Client(self._rows), offset, takes_later=shard == 0)

    def redistribute(self, offsets: "Sequence[KeyOffset]", shards: int) -> "Sequence[KeyOffset]":
        turns = zip_longest(*(offset.left() for offset in offsets))
        ranges = [keys for turn in turns for keys in turn if keys is not None]
        upto = offsets[0].upto  # the shard that reads later rows has the newest
        return [KeyOffset(tuple(ranges[shard::shards]), upto=upto) for shard in range(shards)]

    def unread(self, offsets: "Sequence[KeyOffset]", point: tuple[Any, ...]) -> str | None:
        if any(offset.left() for offset in offsets):
            return "rows of the ranges it began with"
        if not point or offsets[0].upto == point:
            return None
        return f"rows up to {self._rows.key} = {point[0]}"

    def _cut(self) -> "tuple[_KeyRange, ...]":
        rows = self._rows
        with closing(_Client(rows)) as client:
            key = column_sql(rows.key)
            if client.query(f"SELECT 1 FROM {rows.source} WHERE {key} IS NULL LIMIT 1")[0]:
                raise UserError(
                    f"table '{rows.table}' has rows whose key '{rows.key}' is NULL; they would "
                    f"not be read. Use another key, or query='SELECT ... WHERE {rows.key} IS NOT "
                    "NULL'."
                )
            shares = [(number + 1) / RANGES for number in range(RANGES)]
            quantiles, _ = client.query(
                f"SELECT percentile_disc(%s::float8[]) WITHIN GROUP (ORDER BY {key}) "
                f"FROM {rows.source}",
                (shares,),
            )
        bounds = list(dict.fromkeys(quantiles[0][0] or []))
        return tuple(
            _KeyRange(low, high) for low, high in zip([None, *bounds], bounds, strict=False)
        )


class PostgresChanges(_PostgresSource):
    """Rows as they are added to a table, or changed, found by polling an increasing column.

    `column` must increase with every insert (and update, if you want to see these): a sequence
    without cache, an identity column, a version. A row is emitted only when every writing
    transaction of the database that was open when the row was seen has ended, so a value that was
    drawn early and committed late is not lost. Draw a value in the transaction that inserts it:
    one that was drawn in an earlier transaction may be lost. A column filled with now() has the
    time its transaction began: set how long transactions may take, `lag="10s"`. Reads the rows
    after `start`; None for all rows. Never ends.

    `table` is a table of a primary server, also a partitioned one. Views, foreign tables, servers
    in recovery and tables filled by logical replication are refused, because their transactions
    are not visible.

    >>> orders = es.PostgresChanges("dbname=shop", "orders", column="id", every="500ms")
    >>> stream = es.Pipeline("orders").source(orders)
    """

    max_shards = 1

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        column: str,
        every: str | float = "1s",
        start: Any = None,
        lag: str | float | None = None,
        columns: Sequence[str] | None = None,
        batch_rows: int = ROWS_PER_BATCH,
    ) -> None:
        driver()
        at_least_one(batch_rows=batch_rows)
        self._rows = _Rows(dsn, table, _from(table, None), column, columns, batch_rows)
        self._every_s = seconds(every)
        self._lag_s = None if lag is None else seconds(lag)
        self._start = start

    def unread(self, offsets: Sequence[Any], point: tuple[Any, ...]) -> str | None:
        if not point or offsets[0] == point[0]:
            return None
        return f"rows up to {self._rows.key} = {point[0]}"

    def check(self) -> None:
        with closing(_Client(self._rows)) as client:
            client.query(f"SELECT {column_sql(self._rows.key)} FROM {self._rows.source} LIMIT 0")
            _check_watchable(client)

    def open(self, shard: int, shards: int) -> Reader:
        if shards > 1:
            raise UserError("PostgresChanges reads a table in order: use shards=1.")
        return _ChangesReader(_Client(self._rows), self._start, self._every_s, self._lag_s)


_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
_TREE = (
    "(WITH RECURSIVE tree AS (SELECT to_regclass(%s)::oid AS oid UNION "
    "SELECT inhrelid FROM pg_inherits JOIN tree ON inhparent = oid) SELECT oid FROM tree)"
)
"""A table and all its partitions."""


def _check_watchable(client: "_Client") -> None:
    """Raise unless the transactions that fill the table, and the order of its values, are visible."""
    table, column = client.rows.table, client.rows.key
    name = (quoted(table),)
    _refuse_a_replica(client)
    for kind, other in client.query(
        f"SELECT relkind, oid::regclass::text FROM pg_class WHERE oid IN {_TREE}", name
    )[0]:
        if kind in _KINDS:
            raise UserError(
                f"PostgresChanges cannot read '{table}': '{other}' is {_KINDS[kind]}, and the "
                "transactions that write its rows cannot be identified. Name the "
                "table itself, or read it once with PostgresTable."
            )
    filled = f"SELECT 1 FROM pg_subscription_rel WHERE srrelid IN {_TREE}"
    if client.query(filled, name)[0]:
        raise UserError(
            f"PostgresChanges cannot read '{table}': logical replication fills it, in the order in "
            "which transactions committed elsewhere. Read the table at its origin."
        )
    # The sequences that the column's default uses, or that belong to it.
    sequences, _ = client.query(
        "SELECT DISTINCT s.seqrelid::regclass::text, s.seqcache, s.seqincrement, s.seqcycle "
        f"FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum "
        "JOIN pg_depend p ON (p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid AND "
        "p.refclassid = 'pg_class'::regclass) OR (p.classid = 'pg_class'::regclass AND "
        "p.refclassid = 'pg_class'::regclass AND p.refobjid = a.attrelid AND p.refobjsubid = a.attnum "
        "AND p.deptype IN ('a', 'i')) JOIN pg_sequence s ON s.seqrelid IN (p.objid, p.refobjid) "
        f"WHERE a.attname = %s AND NOT a.attisdropped AND a.attrelid IN {_TREE}",
        (column, *name),
    )
    for sequence, cache, increment, cycle in sequences:
        wrong = (
            f"hands {cache} values at a time to each connection (ALTER SEQUENCE {sequence} CACHE 1)"
            if cache > 1
            else "counts down"
            if increment < 0
            else f"starts again at its end (ALTER SEQUENCE {sequence} NO CYCLE)"
            if cycle
            else None
        )
        if wrong is not None:
            raise UserError(
                f"PostgresChanges cannot follow column '{column}' of '{table}': its sequence "
                f"'{sequence}' {wrong}, so a later row can have a lower value and would be skipped."
            )


def _refuse_a_replica(client: "_Client") -> None:
    if client.query("SELECT pg_is_in_recovery()")[0][0][0]:
        raise UserError(
            f"PostgresChanges cannot read '{client.rows.table}' on a server in recovery (a "
            "replica): the open transactions of the primary are not visible there. Connect "
            "to the primary; with several hosts in the connection string add "
            "target_session_attrs=read-write."
        )


def _from(table: str | None, query: str | None) -> str:
    # Parameters are marked with %, so one in the user's query is doubled.
    source = quoted(table) if table is not None else f"({query}) AS rows"
    return source.replace("%", "%%")


def column_sql(name: str) -> str:
    return quoted_column(name).replace("%", "%%")


@dataclass(frozen=True)
class _Rows:
    """What is read, and in which order."""

    dsn: str = field(repr=False)
    table: str
    source: str
    key: str
    columns: Sequence[str] | None
    batch_rows: int

    @property
    def selected(self) -> str:
        if self.columns is None:
            return "*"
        return ", ".join(map(column_sql, self.columns))


@dataclass(frozen=True)
class _KeyRange(Saved, word="key-range"):
    """Keys above `low` (None: from the first) up to `high`, which belongs to it."""

    low: Any
    high: Any


@dataclass(frozen=True)
class KeyOffset(Saved, word="key-offset"):
    """A shard's ranges, which of them is being read, and the last key read in it."""

    ranges: tuple[_KeyRange, ...]
    index: int = 0
    last: Any = None
    upto: tuple[Any, ...] | None = None
    """The largest key of the ranges of all shards; empty for an empty table; None if an earlier
    version did not save it."""

    def left(self) -> list[_KeyRange]:
        ranges = list(self.ranges[self.index :])
        if ranges and self.last is not None:
            ranges[0] = _KeyRange(self.last, ranges[0].high)
        return ranges


class _Client:
    """A connection that is reopened once if it was lost."""

    def __init__(self, rows: _Rows) -> None:
        self.rows = rows
        self._connection: Any = None

    def query(self, sql: str, values: Sequence[Any] = ()) -> tuple[list[tuple[Any, ...]], Any]:
        fresh = self._connection is None
        try:
            return self._query(sql, values)
        except driver().Error as error:
            self.close()
            if fresh or not is_lost(error):
                raise explained(error, self.rows.table) from error
        return self.query(sql, values)  # over a new connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def read(self, low: Any, high: Any) -> tuple[pl.DataFrame, Any] | None:
        """The next rows with keys above `low` up to `high`, and the last key; None if none."""
        rows, key = self.rows, column_sql(self.rows.key)
        where, values = [f"{key} <= %s"], [high]
        if low is not None:
            where, values = [f"{key} > %s", *where], [low, high]
        sql = (
            f"SELECT {rows.selected}, {key} FROM {rows.source} WHERE {' AND '.join(where)} "
            f"ORDER BY {key} LIMIT {rows.batch_rows + 1}"
        )
        fetched, description = self.query(sql, values)
        if not fetched:
            return None
        if len(fetched) > rows.batch_rows:
            # More to come: end before the last key, whose rows may not all be here.
            last = fetched[-1][-1]
            whole = [row for row in fetched if row[-1] != last]
            if not whole:
                sql = f"SELECT {rows.selected}, {key} FROM {rows.source} WHERE {key} = %s"
                whole, description = self.query(sql, (last,))
            fetched = whole
        frame = frame_of([row[:-1] for row in fetched], description[:-1], rows.table)
        return frame, fetched[-1][-1]

    def _query(self, sql: str, values: Sequence[Any]) -> tuple[list[tuple[Any, ...]], Any]:
        if self._connection is None:
            self._connection = connect(self.rows.dsn, self.rows.table)
            self._connection.autocommit = True
        with self._connection.cursor() as cursor:
            cursor.execute(sql, tuple(values))
            return cursor.fetchall(), cursor.description


class _RangesReader(Reader):
    def __init__(self, client: _Client, offset: KeyOffset, *, takes_later: bool) -> None:
        """takes_later: whether this shard reads the rows that came after the ranges were cut."""
        self._client = client
        self._offset = offset
        self._takes_later = takes_later
        self._stops_at: tuple[Any, ...] = ()

    @property
    def offset(self) -> KeyOffset:
        return self._offset

    def seek(self, offset: KeyOffset) -> None:
        self._offset = offset

    def read(self) -> Batch | EndOfStream | None:
        while self._offset.index < len(self._offset.ranges):
            offset = self._offset
            keys = offset.ranges[offset.index]
            low = offset.last if offset.last is not None else keys.low
            batch = self._client.read(low, keys.high)
            if batch is not None:
                frame, last = batch
                self._offset = replace(offset, last=last)
                return frame
            self._offset = replace(offset, index=offset.index + 1, last=None)
        if self._take_up_later():
            return self.read()
        return END

    def stop_at(self, point: tuple[Any, ...]) -> None:
        self._stops_at = point

    def _take_up_later(self) -> bool:
        """Continue with a range of the rows that came since; False if there is none."""
        upto, point = self._offset.upto, self._stops_at
        if not self._takes_later or not point or upto == point:
            return False
        if upto is None:
            raise UserError(
                f"an earlier version of Everstream read table '{self._client.rows.table}' "
                "without recording how far, so rows that came later cannot be recognized. "
                "Remove until='caught-up', or start over with --fresh, which deletes the output."
            )
        later = _KeyRange(upto[0] if upto else None, point[0])
        self._offset = KeyOffset((later,), upto=point)
        return True

    def close(self) -> None:
        self._client.close()


class _ChangesReader(Reader):
    """`final` is a value up to which no more rows can appear; polling raises it.

    A poll reads the largest value, then lists all transactions of the database that write. A
    row below that value that was not visible yet belongs to one of them: its transaction drew the
    value before, and holds its lock on the sequence, or on what it wrote, until it ends. Once these
    have ended, the value is final. A transaction that was prepared for a second phase continues
    under another name, so the poll also waits for those that are prepared by then.
    """

    def __init__(self, client: _Client, start: Any, every_s: float, lag_s: float | None) -> None:
        self._client = client
        self._last = start
        self._every_s = every_s
        self._lag_s = lag_s
        self._final: Any = None
        self._candidate: Any = None
        self._writing: set[str] = set()
        self._prepared = False
        """Whether prepared transactions are among those it waits for."""
        self._idle = False
        self._stops_at: tuple[Any, ...] | None = None

    @property
    def offset(self) -> Any:
        return self._last

    def stop_at(self, point: tuple[Any, ...]) -> None:
        self._stops_at = point

    def seek(self, offset: Any) -> None:
        self._last = offset
        self._final = self._candidate = None

    def read(self) -> Batch | EndOfStream | None:
        if self._stops_at is not None and self._stops_at in ((), (self._last,)):
            return END
        if self._final is None:
            self._poll()
        self._idle = self._final is None
        if self._final is None:
            # Rows there may have been deleted, or are within the lag: do not wait for them.
            nothing = self._stops_at is not None and self._candidate is None
            return END if nothing else None
        batch = self._client.read(self._last, self._final)
        if batch is None:
            self._final = None
            self._idle = True
            return None if self._stops_at is None else END
        frame, self._last = batch
        if self._last == self._final:
            self._final = None
        return frame

    def ready_in_s(self) -> float:
        return self._every_s if self._idle else 0.0

    def close(self) -> None:
        self._client.close()

    def _poll(self) -> None:
        if self._candidate is None:
            _refuse_a_replica(self._client)
            self._candidate = self._largest()
            if self._candidate is None:
                return
            self._writing, self._prepared = self._writers(), False
        if self._writing:
            writers = self._writers()
            self._writing &= writers
            if not self._writing and not self._prepared:
                self._writing = {writer for writer in writers if writer.startswith(PREPARED)}
                self._prepared = True
        if not self._writing:
            self._final, self._candidate = self._candidate, None

    def _largest(self) -> Any:
        rows, key = self._client.rows, column_sql(self._client.rows.key)
        where, values = [], []
        if self._last is not None:
            where.append(f"{key} > %s")
            values.append(self._last)
        if self._stops_at:
            where.append(f"{key} <= %s")
            values.append(self._stops_at[0])
        if self._lag_s is not None:
            where.append(f"{key} <= now() - make_interval(secs => %s)")
            values.append(self._lag_s)
        condition = f" WHERE {' AND '.join(where)}" if where else ""
        largest, _ = self._client.query(f"SELECT max({key}) FROM {rows.source}{condition}", values)
        return largest[0][0]

    def _writers(self) -> set[str]:
        """The transactions of the database that have written or drawn from a sequence."""
        fetched, _ = self._client.query(
            "SELECT DISTINCT virtualtransaction FROM pg_locks l WHERE granted AND "
            "pid IS DISTINCT FROM pg_backend_pid() AND ("
            "(locktype = 'transactionid' AND mode = 'ExclusiveLock' AND (pid IS NULL OR pid IN "
            "(SELECT pid FROM pg_stat_activity WHERE datname = current_database()))) OR "
            "(locktype = 'relation' AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', "
            "'ExclusiveLock', 'AccessExclusiveLock') AND database = (SELECT oid FROM pg_database "
            "WHERE datname = current_database()) AND EXISTS (SELECT 1 FROM pg_class c WHERE "
            # Not indexes: VACUUM locks these for hours and writes no row.
            "c.oid = l.relation AND c.relkind IN ('r', 'p', 'S', 'f'))))"
        )
        return {row[0] for row in fetched}
