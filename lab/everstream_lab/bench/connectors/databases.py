"""The databases, against their own Python drivers: a transaction a second, as checkpoints make."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from everstream.connectors.sql.postgres import Postgres, driver, frame_of
from everstream.connectors.sql.postgres_source import PostgresTable
from everstream.connectors.sql.sqlite import Sqlite
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Sink
from everstream.pipeline.source import Source
from everstream_lab.bench.connectors.file_sources import sample
from everstream_lab.bench.connectors.row import Row, SinkRow, SourceRow, per_checkpoint

ROWS_PER_BATCH = 16_384
COLUMNS = "id bigint, user_name text, price double precision"


def _sample(rows: int) -> pl.DataFrame:
    return sample(rows).rename({"user": "user_name"})


class SqliteSink(SinkRow):
    name, bare_client, records = "sqlite-sink", "sqlite3 executemany", 2_000_000

    def batch(self) -> Batch:
        return _sample(ROWS_PER_BATCH)

    def sink(self, folder: Path) -> Sink:
        return Sqlite(folder / "rows.db", "rows")

    def write(self, folder: Path, batches: Iterator[Batch]) -> None:
        database = sqlite3.connect(folder / "rows.db", isolation_level=None)
        database.execute(f"CREATE TABLE rows ({COLUMNS})")
        for part in per_checkpoint(batches):
            database.execute("BEGIN IMMEDIATE")
            for batch in part:
                assert isinstance(batch, pl.DataFrame)
                database.executemany("INSERT INTO rows VALUES (?, ?, ?)", batch.rows())
            database.execute("COMMIT")
        database.close()

    def arrived(self, folder: Path) -> int:
        database = sqlite3.connect(folder / "rows.db")
        (count,) = database.execute("SELECT count(*) FROM rows").fetchone()
        database.close()
        return int(count)


class PostgresSink(SinkRow):
    name, bare_client, records = "postgres-sink", "psycopg COPY of CSV", 4_000_000
    server = "postgres"

    def batch(self) -> Batch:
        return _sample(ROWS_PER_BATCH)

    def sink(self, folder: Path) -> Sink:
        return Postgres(self.address, _table(folder))

    def write(self, folder: Path, batches: Iterator[Batch]) -> None:
        table = _table(folder)
        with connected(self.address) as server:
            server.execute(f"CREATE TABLE {table} ({COLUMNS})")
            for part in per_checkpoint(batches):
                with server.transaction(), server.cursor() as cursor:
                    for batch in part:
                        assert isinstance(batch, pl.DataFrame)
                        with cursor.copy(f"COPY {table} FROM STDIN (FORMAT csv)") as copy:
                            copy.write(batch.write_csv(include_header=False))

    def arrived(self, folder: Path) -> int:
        with connected(self.address) as server:
            (count,) = server.execute(f"SELECT count(*) FROM {_table(folder)}").fetchall()
            server.execute(f"DROP TABLE {_table(folder)}")
        return int(count[0])


class PostgresSource(SourceRow):
    name, bare_client, records = "postgres-source", "psycopg cursor on the server", 1_000_000
    server = "postgres"

    @property
    def table(self) -> str:
        return f"bench_input_{self.total}"

    def make(self) -> None:
        with connected(self.address) as server:
            server.execute(f"DROP TABLE IF EXISTS {self.table}")
            server.execute(
                f"CREATE TABLE {self.table} AS SELECT n AS id, 'user-' || n % 10007 AS user_name, "
                f"(n % 9973) / 100.0::float8 AS price FROM generate_series(1, {self.total}) AS n"
            )
            server.execute(f"ALTER TABLE {self.table} ADD PRIMARY KEY (id)")
            server.execute(f"ANALYZE {self.table}")

    def source(self) -> Source[Any]:
        return PostgresTable(self.address, self.table, key="id")

    def read(self) -> Iterator[Batch]:
        query = f"SELECT * FROM {self.table} ORDER BY id"
        with connected(self.address) as server, server.transaction():
            cursor = server.cursor(name="bench")
            cursor.execute(query)
            while rows := cursor.fetchmany(ROWS_PER_BATCH):
                yield frame_of(rows, cursor.description, self.table)


def connected(address: str) -> Any:
    return driver().connect(address, autocommit=True)


def _table(folder: Path) -> str:
    return "bench_" + folder.name.replace("-", "_")


ROWS: tuple[type[Row], ...] = (SqliteSink, PostgresSource, PostgresSink)
