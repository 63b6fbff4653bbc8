"""Iceberg tables, to read and to write."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from everstream.connectors.iceberg_table import IcebergTable
from everstream.connectors.lake_both_ways import LakeBothWays
from everstream.connectors.lake_source import OnChange

ROWS_PER_BATCH = 65_536


class Iceberg(LakeBothWays):
    """An Iceberg table in a catalog. Batches are DataFrames. Needs `pip install 'everstream[iceberg]'`.

    `table` is its name, `"namespace.table"`; `catalog` the properties that pyiceberg opens the
    catalog with, or the name of one that is set up on every machine (`~/.pyiceberg.yaml`). Its
    passwords are in no checkpoint.

    As a source: the table as it is, or as it was in a `version` (the id of a snapshot, or a time);
    `columns` are the ones to read, all by default. With `follow=True` it never ends: rows that
    later snapshots add come too, snapshot by snapshot. Snapshots that delete or replace rows end
    the run, or with `on_change="skip"` are left out. Compactions change no rows, and are.

    As a sink: exactly-once. Each checkpoint's rows come in one snapshot of the table per shard. It
    is created with the columns of the first rows, or of `schema={'name': pl.Float64, ...}`, and
    partitioned by the values of `partition_by`. Columns it does not have are refused unless
    `evolve=True`.

    >>> catalog = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "file:///tmp/lake"}
    >>> numbers = es.Iceberg("docs.numbers", catalog)
    >>> numbers
    Iceberg(the Iceberg table 'docs.numbers')
    """

    def __init__(
        self,
        table: str,
        catalog: str | Mapping[str, str] = "default",
        *,
        version: int | datetime | None = None,
        follow: bool = False,
        on_change: OnChange = "fail",
        columns: Sequence[str] | None = None,
        batch_rows: int = ROWS_PER_BATCH,
        partition_by: Sequence[str] = (),
        schema: Mapping[str, Any] | None = None,
        evolve: bool = False,
    ) -> None:
        super().__init__(
            IcebergTable(table, catalog),
            version=version,
            follow=follow,
            on_change=on_change,
            columns=columns,
            batch_rows=batch_rows,
            partition_by=partition_by,
            schema=schema,
            evolve=evolve,
        )
