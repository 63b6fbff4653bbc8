"""Connectors in real runs on Spark: a killed worker, dead letters, DataFrames in and files out."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from pyspark.sql import SparkSession

import everstream as es
from everstream.errors import ConnectorError, UserError
from everstream.pipeline.source import Source
from everstream.testing.sources import check_source
from tests.connectors.postgres_server import PostgresServer


def test_a_killed_worker_loses_and_doubles_nothing_in_any_sink(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    lines = [json.dumps({"n": n}) if n % 10 != 3 else f"broken {n}" for n in range(600)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    pipeline = es.Pipeline("bad-input")
    source = es.JsonLines(
        tmp_path / "in.jsonl", schema={"n": pl.Int64}, batch_bytes=64, on_error="dead_letter"
    )
    numbers = pipeline.source(es.Paced(source, rate=1200), name="read")
    good = numbers.map(
        lambda row: {"n": row["n"], "share": 100 // (row["n"] % 10 - 5)},
        name="divide",
        on_error="dead_letter",
    )
    kept = good.on_demand().filter(lambda row: row["share"] < 1000, name="keep", on_error="skip")
    for sink, name in (
        (es.Parquet(tmp_path / "parquet"), "parquet"),
        (es.Csv(tmp_path / "csv"), "csv"),
        (es.Sqlite(tmp_path / "out.db", "numbers"), "sqlite"),
        (es.Sqlite(tmp_path / "out.db", "latest", upsert_on=["n"]), "upsert"),
        (es.Postgres(postgres.dsn, "numbers_of_spark"), "postgres"),
    ):
        kept.sink(sink, name=name)
    result = pipeline.run(
        spark=spark,
        store=tmp_path / "store",
        checkpoint=es.Coordinated(every="100ms"),
        kill=["divide@250", "keep@350"],
    )
    assert len(result.recoveries) == 2
    expected = [n for n in range(600) if n % 10 not in (3, 5)]
    assert result.skipped == {"read": 60, "divide": 60}
    assert result.to_json()["skipped"] == result.skipped

    frame = spark.read.parquet(str(tmp_path / "parquet"))
    assert sorted(row.n for row in frame.collect()) == expected
    frame = spark.read.csv(str(tmp_path / "csv"), header=True, inferSchema=True)
    assert sorted(row.n for row in frame.collect()) == expected
    with sqlite3.connect(tmp_path / "out.db") as connection:
        for table in ("numbers", "latest"):
            found = connection.execute(f"SELECT n FROM {table} ORDER BY n").fetchall()
            assert [n for (n,) in found] == expected, table
    connection.close()
    with psycopg.connect(postgres.dsn) as server:
        found = server.execute("SELECT n FROM numbers_of_spark ORDER BY n").fetchall()
    assert [n for (n,) in found] == expected

    def letters(operator: str) -> list[dict[str, Any]]:
        files = (tmp_path / "store" / "dead_letters" / operator).glob("part-*.jsonl")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    assert sorted(letter["record"] for letter in letters("read")) == sorted(
        f"broken {n}" for n in range(3, 600, 10)
    )
    assert all("in.jsonl', line" in letter["place"] for letter in letters("read"))
    assert sorted(letter["record"]["n"] for letter in letters("divide")) == list(range(5, 600, 10))
    assert {letter["error"] for letter in letters("divide")} == {
        "ZeroDivisionError: integer division or modulo by zero"
    }


def test_a_spark_dataframe_flows_through_a_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(500).selectExpr("id", "concat('t', id) AS text").repartition(3)
    pipeline = es.Pipeline("frame")
    rows = pipeline.source(es.SparkDataFrame(frame, batch_rows=20), name="frame", shards=2)
    rows.filter(pl.col("id") % 2 == 0).collect()
    result = pipeline.run(spark=spark, store=tmp_path, kill=["frame@100"])
    assert len(result.recoveries) == 1
    assert sorted(row["id"] for row in result.collected()) == list(range(0, 500, 2))
    assert result.to_spark(spark).count() == 250


def test_a_spark_dataframe_keeps_the_promises_of_a_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.range(60).selectExpr("id", "rand() AS chance").repartition(4)

    def make(resuming: bool) -> Source:
        source = es.SparkDataFrame(frame, batch_rows=7)
        source.before_run("p", "frame", str(tmp_path), resuming)
        return source

    make(resuming=False)
    first = pl.read_parquet(tmp_path / "sources" / "frame" / "*.parquet").to_dicts()
    check_source(lambda: make(resuming=True), expected=first)
    assert sorted(row["id"] for row in first) == list(range(60))


def test_a_spark_dataframe_that_cannot_be_read_is_explained(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = es.SparkDataFrame(spark.range(3))
    with pytest.raises(UserError, match="run it in a pipeline"):
        source.open(0, 1)
    with pytest.raises(ConnectorError, match=r"no longer in .*--fresh"):
        source.before_run("p", "frame", str(tmp_path), resuming=True)
    broken = spark.range(3).selectExpr("raise_error('no such luck')")
    with pytest.raises(ConnectorError, match="Spark could not write"):
        es.SparkDataFrame(broken).before_run("p", "frame", str(tmp_path), resuming=False)
    with pytest.raises(UserError, match="Polars use FromFunction"):
        es.SparkDataFrame(pl.DataFrame({"n": [1]}))  # type: ignore[arg-type]
