"""Every query on real Spark gives what DuckDB says about the same events."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from everstream.bench.workloads.catalogue import QUERIES, Query
from everstream.bench.workloads.inputs import DUE, Inputs
from everstream.bench.workloads.nexmark import Nexmark
from everstream.bench.workloads.verdict import EXACT
from everstream.bench.workloads.words import Words
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.stream import Pipeline
from everstream.spark.context import make_context

EVENTS = Nexmark(events=40_000, seed=3, events_per_s=1_000.0)
WORDS = Words(total=30_000, seed=3, vocabulary=300, words_per_s=1_000.0)


@pytest.fixture(scope="module", autouse=True)
def spark() -> Iterator[SparkSession]:
    session = SparkSession(make_context("local[2]", "workloads"))
    yield session
    session.stop()


def inputs_of(pipeline: Pipeline, shards: int) -> Inputs:
    return Inputs(pipeline, EVENTS, WORDS, shards=shards, batch=5_000)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_query_gives_what_duckdb_says(query: Query, shards: int, spark: SparkSession) -> None:
    pipeline = Pipeline("query")
    inputs = inputs_of(pipeline, shards)
    query.build(inputs).collect()
    result = pipeline.run(spark=spark, checkpoint=Coordinated(every="500ms"))
    assert query.expected(inputs).height > 0
    assert query.judge(inputs, result.to_polars()) == EXACT


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_paced_query_hands_due_times_on_and_gives_the_same(
    query: Query, spark: SparkSession
) -> None:
    pipeline = Pipeline("paced")
    # Far behind its schedule from the start, so that nothing has to be waited for.
    inputs = inputs_of(pipeline, 2)
    inputs.rate = 1e6
    query.build(inputs).collect()
    output = pipeline.run(spark=spark, checkpoint=None).to_polars()
    assert query.judge(inputs, output) == EXACT
    assert output[DUE].dtype.is_integer()
    assert output[DUE].null_count() == 0


def test_the_operator_to_kill_is_one_of_the_query() -> None:
    for query in QUERIES.values():
        pipeline = Pipeline("query")
        query.build(inputs_of(pipeline, 2)).collect()
        assert query.target in pipeline.graph.nodes


def test_windows_can_be_scaled_down(spark: SparkSession) -> None:
    query = QUERIES["nexmark-5-large"]
    pipeline = Pipeline("query")
    inputs = inputs_of(pipeline, 2)
    inputs.factor = 10.0
    assert query.beat_s(inputs) == pytest.approx(0.1)
    query.build(inputs).collect()
    output = pipeline.run(spark=spark).to_polars()
    assert query.judge(inputs, output) == EXACT
    inputs.factor = 5.0
    assert query.judge(inputs, output) != EXACT
