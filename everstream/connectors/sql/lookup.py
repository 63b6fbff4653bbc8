"""A table of a SQLite database that `lookup` asks."""

import os
import sqlite3
from contextlib import closing

import polars as pl

from everstream.connectors.sql.database import quoted, quoted_column
from everstream.pipeline.operators.lookup import LookupTable


class SqliteTable(LookupTable):
    """A table of a SQLite database, for `stream.lookup`.

    >>> import sqlite3
    >>> database = sqlite3.connect("customers.db")
    >>> _ = database.execute("create table customers (id integer primary key, city text)")
    >>> _ = database.execute("insert into customers values (0, 'Rome')")
    >>> database.commit(); database.close()
    >>> orders = es.Pipeline("orders").source(es.FromList([{"id": 0}, {"id": 1}]))
    >>> table = es.SqliteTable("customers.db", "customers")
    >>> cities = orders.lookup(table, on="id", schema={"city": pl.String})
    >>> cities.collect().run().to_polars().rows()
    [(0, 'Rome'), (1, None)]
    """

    def __init__(self, path: str | os.PathLike[str], table: str) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.table = table

    def rows(self, keys: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
        """The rows of these keys."""
        wanted = [*keys.columns, *columns]
        names = ", ".join(f"t.{quoted_column(name)}" for name in wanted)
        values = ", ".join(f"({', '.join('?' * keys.width)})" for _ in range(len(keys)))
        same = " AND ".join(
            f"t.{quoted_column(name)} = k.column{place}"
            for place, name in enumerate(keys.columns, 1)
        )
        query = f"SELECT {names} FROM (VALUES {values}) k JOIN {quoted(self.table)} t ON {same}"
        given = [value for row in keys.rows() for value in row]
        with closing(sqlite3.connect(self.path)) as database:
            found = database.execute(query, given).fetchall()
        values_of = zip(*found, strict=True) if found else ([] for _ in wanted)
        return pl.DataFrame(
            [pl.Series(n, list(v), strict=True) for n, v in zip(wanted, values_of, strict=True)]
        )
