"""Databases for tests of the table sinks: where one is, and the rows that somebody else sees in it."""

import hashlib
import sqlite3
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg

from everstream.connectors import Postgres, Sqlite
from everstream.connectors.sql.database import CHECKPOINTS, TOKEN, WRITERS, SqlTransaction
from everstream.connectors.sql.tables import TableSink
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Committable, Sink, SinkShard

OWN = (
    f"EXISTS (SELECT 1 FROM {WRITERS} WHERE target = {{0}} AND pipeline = {{0}} AND operator = {{0}} "
    f"AND {TOKEN} >= id * {CHECKPOINTS} AND {TOKEN} < (id + 1) * {CHECKPOINTS})"
)


def table_for(place: str) -> str:
    return "t" + hashlib.sha256(place.encode()).hexdigest()[:16]


def sqlite_rows(file: Path, table: str, shard: SinkShard | None = None) -> list[dict[str, Any]]:
    with sqlite3.connect(file) as connection:
        connection.row_factory = sqlite3.Row
        known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,))
        if not known.fetchall():
            return []
        sql, values = f'SELECT * FROM "{table}"', ()
        if shard is not None:
            sql += f" WHERE {OWN.format('?')}"
            values = (table, shard.pipeline, shard.operator)
        rows = [dict(row) for row in connection.execute(sql, values)]
    connection.close()
    return [{name: value for name, value in row.items() if name != TOKEN} for row in rows]


def postgres_rows(dsn: str, table: str, shard: SinkShard | None = None) -> list[dict[str, Any]]:
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        if (
            connection.execute("SELECT to_regclass(%s) AS t", (f'"{table}"',)).fetchone()["t"]
            is None
        ):
            return []
        sql, values = f'SELECT * FROM "{table}"', ()
        if shard is not None:
            sql += f" WHERE {OWN.format('%s')}"
            values = (table, shard.pipeline, shard.operator)
        rows = connection.execute(sql, values).fetchall()
    return [{name: value for name, value in row.items() if name != TOKEN} for row in rows]


class Place:
    """One database of either kind, with a table of the test's own."""

    def __init__(self, kind: str, folder: Path, dsn: str) -> None:
        self.kind = kind
        self.folder = folder
        self.dsn = dsn
        self.file = folder / "out.db"
        self.table = table_for(str(folder))

    def sink(self, **options: Any) -> Sink:
        if self.kind == "sqlite":
            return Sqlite(self.file, self.table, **options)
        return Postgres(self.dsn, self.table, **options)

    @property
    def salt(self) -> int:
        """A number of the test's own, for what all tests of one server share."""
        return int(self.table[1:6], 16)

    def session(self) -> AbstractContextManager[SqlTransaction]:
        sink = self.sink()
        assert isinstance(sink, TableSink)
        return sink._database.session(self.table)

    def rows(self) -> list[dict[str, Any]]:
        if self.kind == "sqlite":
            return sqlite_rows(self.file, self.table)
        return postgres_rows(self.dsn, self.table)

    def sink_shard(self, generation: int = 1, shard: int = 0) -> SinkShard:
        return SinkShard("words", "counts", shard, 2, generation, f"{self.folder}/store")

    def execute(self, sql: str) -> None:
        connection = self._connect()
        connection.execute(sql)
        connection.commit()
        connection.close()

    def select(self, sql: str) -> list[tuple[Any, ...]]:
        connection = self._connect()
        rows: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
        connection.close()
        return rows

    def _connect(self) -> Any:
        return sqlite3.connect(self.file) if self.kind == "sqlite" else psycopg.connect(self.dsn)

    def prepared(self, batch: Batch, checkpoint: int = 1, **options: Any) -> Committable:
        writer = self.sink(**options).open(self.sink_shard())
        writer.write(batch)
        transaction = writer.prepare(checkpoint)
        assert transaction is not None
        transaction.persist()
        return transaction
