"""Delta Lake tables, to read and to write."""

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from everstream.connectors.delta_state import MOST_SHARDS
from everstream.connectors.delta_table import DeltaLog
from everstream.connectors.lake_both_ways import LakeBothWays
from everstream.connectors.lake_source import OnChange

ROWS_PER_BATCH = 65_536


class Delta(LakeBothWays):
    """A Delta Lake table. Batches are DataFrames. Needs `pip install 'everstream[delta]'`.

    As a source: the table as it is, or as it was at a `version` (a number or a time); `columns`
    are the ones to read, all by default. With `follow=True` it never ends: rows that later
    versions add come too, version by version. Versions that delete or replace rows end the run,
    or with `on_change="skip"` are left out. Compactions change no rows, and are.

    As a sink: exactly-once. Each checkpoint's rows come in one version of the table per shard. It
    is created with the columns of the first rows, or of `schema={'name': pl.Float64, ...}`, and
    partitioned by `partition_by`. Columns it does not have are refused unless `evolve=True`.

    `storage_options` are those of deltalake (`AWS_ENDPOINT_URL`, ...); checkpoints hold none.

    >>> rows = es.Pipeline("write").source(es.Range(2, column="n"))
    >>> _ = rows.sink(es.Delta("numbers-table")).run()
    >>> es.Pipeline("read").source(es.Delta("numbers-table")).collect().run().collected()
    [{'n': 0}, {'n': 1}]
    """

    max_shards = MOST_SHARDS

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        version: int | datetime | None = None,
        follow: bool = False,
        on_change: OnChange = "fail",
        columns: Sequence[str] | None = None,
        batch_rows: int = ROWS_PER_BATCH,
        partition_by: Sequence[str] = (),
        schema: Mapping[str, Any] | None = None,
        evolve: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            DeltaLog(path, storage_options),
            version=version,
            follow=follow,
            on_change=on_change,
            columns=columns,
            batch_rows=batch_rows,
            partition_by=partition_by,
            schema=schema,
            evolve=evolve,
        )
