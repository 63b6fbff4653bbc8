"""Lake tables for tests, of either format: ours to open, and as others write and read them."""

import os
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog

from everstream.connectors import Delta, Iceberg
from everstream.connectors.lake.connector import LakeConnector
from everstream.pipeline.batch import Batch
from everstream.pipeline.sink import Committable, SinkShard
from tests.connectors import delta_reading, iceberg_reading

os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # there is a faster one, which we do not need


class LakePlace:
    """One table of either format in a folder of the test's own."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.store = f"{folder}/store"
        self.lake = folder / "lake"
        self._catalog: Catalog | None = None

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(self.lake)

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = iceberg_reading.opened(self.lake)
        return self._catalog

    @property
    def iceberg(self) -> Any:
        return self.catalog.load_table(iceberg_reading.NAME)

    def open(self, **options: Any) -> LakeConnector:
        if self.kind == "delta":
            return Delta(self.lake, **options)
        return Iceberg(iceberg_reading.NAME, iceberg_reading.catalog_in(self.lake), **options)

    def sink_shard(
        self, generation: int = 1, shard: int = 0, operator: str = "counts"
    ) -> SinkShard:
        return SinkShard("words", operator, shard, 2, generation, self.store)

    def prepared(self, batch: Batch, checkpoint: int = 1, **options: Any) -> Committable:
        writer = self.open(**options).open(self.sink_shard())
        writer.write(batch)
        transaction = writer.prepare(checkpoint)
        assert transaction is not None
        transaction.persist()
        return transaction

    def rows(self) -> list[dict[str, Any]]:
        """What the files hold, by a reader that is not the one that wrote them."""
        if self.kind == "delta":
            return delta_reading.rows_of(self.lake)
        return iceberg_reading.rows_of(self.catalog)

    def read(self) -> pl.DataFrame:
        """As Polars reads the table."""
        scan = (
            pl.scan_delta(str(self.lake)) if self.kind == "delta" else pl.scan_iceberg(self.iceberg)
        )
        return scan.collect()

    def append(self, frame: pl.DataFrame) -> None:
        """As somebody else does it."""
        arrow = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
        if self.kind == "delta":
            write_deltalake(self.lake, arrow, mode="append")
            return
        self.catalog.create_namespace_if_not_exists("lake")
        self.catalog.create_table_if_not_exists(iceberg_reading.NAME, arrow.schema).append(arrow)

    def delete(self, predicate: str) -> None:
        self.delta.delete(predicate) if self.kind == "delta" else self.iceberg.delete(predicate)

    def version(self) -> int:
        if self.kind == "delta":
            return int(self.delta.version())
        return int(self.iceberg.current_snapshot().snapshot_id)

    def parquet_files(self) -> set[str]:
        return {str(path) for path in self.lake.rglob("*.parquet")}
