"""Iceberg tables for tests: a catalog in a folder, and the rows that others see in it."""

from pathlib import Path
from typing import Any

import polars as pl
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import ManifestEntryStatus

from everstream.connectors.files.parts import owner_of
from everstream.connectors.lake.table import TableMark
from everstream.pipeline.sink import SinkShard

NAME = "lake.words"


def catalog_in(folder: str | Path) -> dict[str, str]:
    Path(folder).mkdir(parents=True, exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


def opened(folder: str | Path) -> Catalog:
    return load_catalog("default", **catalog_in(folder))


def rows_of(catalog: Catalog, shard: SinkShard | None = None) -> list[dict[str, Any]]:
    """The rows, of one operator or of all, read from the files with Polars."""
    try:
        table = catalog.load_table(NAME)
    except NoSuchTableError:
        return []
    owners: dict[str, str | None] = {}
    for snapshot in table.snapshots():
        mark = TableMark.parse(snapshot.summary.additional_properties.get("everstream"))
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                    if entry.status == ManifestEntryStatus.ADDED:
                        owners[entry.data_file.file_path] = mark.owner if mark else None
    wanted = None if shard is None else owner_of(shard.pipeline, shard.operator)
    paths = [task.file.file_path for task in table.scan().plan_files()]
    rows: list[dict[str, Any]] = []
    for path in paths:
        if wanted is None or owners[path] == wanted:
            frame = pl.read_parquet(path.removeprefix("file://"), hive_partitioning=False)
            rows += frame.to_dicts()
    return rows
