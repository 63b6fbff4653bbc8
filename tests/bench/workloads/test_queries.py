"""Every query on real Spark gives what DuckDB says about the same events."""

from collections.abc import Callable, Iterator

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession

from everstream.bench.workloads import queries, truth
from everstream.bench.workloads.inputs import Inputs
from everstream.bench.workloads.nexmark import KINDS, Nexmark
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.stream import Pipeline, Stream
from everstream.spark.context import make_context

EVENTS = Nexmark(events=60_000, seed=3, events_per_s=1_000.0)


@pytest.fixture(scope="module", autouse=True)
def spark() -> Iterator[SparkSession]:
    session = SparkSession(make_context("local[2]", "workloads"))
    yield session
    session.stop()


def run(build: Callable[[Inputs], Stream], spark: SparkSession, shards: int) -> pl.DataFrame:
    pipeline = Pipeline("query")
    build(Inputs(pipeline, EVENTS, shards=shards, batch=7_000)).collect()
    return pipeline.run(spark=spark, checkpoint=Coordinated(every="500ms")).to_polars()


def check(found: pl.DataFrame, sql: str, *, of: Nexmark = EVENTS) -> None:
    want = truth.ask(sql, {kind: of.all(kind) for kind in KINDS})
    assert want.height > 0
    assert_frame_equal(
        found.select(want.columns).cast(dict(want.schema)),
        want,
        check_row_order=False,
        check_dtypes=False,
        rel_tol=1e-12,
        abs_tol=0,
    )


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("build", "sql"),
    [
        (queries.currency, truth.Q1),
        (queries.selection, truth.Q2),
        (queries.local_items, truth.Q3),
        (queries.category_average, truth.Q4),
        (queries.seller_average, truth.Q6),
        (queries.highest_bids, truth.highest_bids(10_000_000)),
    ],
    ids=["1", "2", "3", "4", "6", "7"],
)
def test_nexmark_query_gives_what_duckdb_says(
    build: Callable[[Inputs], Stream], sql: str, shards: int, spark: SparkSession
) -> None:
    check(run(build, spark, shards), sql)
