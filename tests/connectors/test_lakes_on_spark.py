"""Lake tables in real runs on Spark: workers killed at every step of a commit, and several shards."""

from pathlib import Path

import duckdb
import polars as pl
import pytest
from pyspark.sql import SparkSession

import everstream as es
from tests.connectors.lake_places import LakePlace


def write_and_kill(
    spark: SparkSession, folder: Path, total: int, rate: int, kill: list[str], every: str
) -> None:
    """Into both tables at once, from two shards each, and read back by others."""
    lakes = {kind: LakePlace(kind, folder / kind) for kind in ("delta", "iceberg")}
    pipeline = es.Pipeline("lakes")
    rows = pipeline.source(es.Paced(es.Range(total, column="n", batch=20), rate=rate), name="read")
    rows = rows.with_columns((pl.col("n") % 2).alias("odd"))
    for kind, lake in lakes.items():
        rows.on_demand().sink(lake.open(partition_by=["odd"]), name=kind, shards=2)
    result = pipeline.run(
        spark=spark,
        store=folder / "store",
        checkpoint=es.Coordinated(every=every),
        kill=kill,
    )
    assert result.recoveries, "workers that are killed together count as one failure"
    expected = [{"n": n, "odd": n % 2} for n in range(total)]
    for kind, lake in lakes.items():
        assert lake.read().select("n", "odd").sort("n").to_dicts() == expected, kind
        files = [file.path.removeprefix("file://") for file in lake.open()._table.load().files()]  # type: ignore[union-attr]
        paths = [path if path.startswith("/") else f"{lake.lake}/{path}" for path in files]
        sql = f"SELECT count(*), count(DISTINCT n), sum(n) FROM read_parquet({paths!r})"
        assert duckdb.sql(sql).fetchall() == [(total, total, total * (total - 1) // 2)], kind


def test_killed_workers_lose_and_double_nothing_in_a_lake(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_and_kill(spark, tmp_path, 600, 600, ["delta@in-commit", "iceberg@300"], "300ms")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_many_killed_workers_lose_and_double_nothing_in_a_lake(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    points = ("before-snapshot", "in-snapshot", "after-snapshot", "after-prepare", "in-commit")
    kill = [f"{'delta' if (k + seed) % 2 else 'iceberg'}@{p}" for k, p in enumerate(points)]
    write_and_kill(spark, tmp_path, 4_000, 400, [*kill, "read@2000"], "400ms")
