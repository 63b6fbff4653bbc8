"""Every query gives what DuckDB says about the same events."""

from typing import Any

import polars as pl
import pytest

from everstream.core.plan import make_plan
from everstream.errors import UserError
from everstream.pipeline.checkpointing import CommunicationInduced, Coordinated, Uncoordinated
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.workloads.catalogue import QUERIES
from everstream_lab.bench.workloads.graph_edges import Edges
from everstream_lab.bench.workloads.inputs import DUE, Inputs
from everstream_lab.bench.workloads.nexmark import Nexmark
from everstream_lab.bench.workloads.verdict import EXACT
from everstream_lab.bench.workloads.words import Words
from tests.sampling import sampled

EVENTS = Nexmark(events=20_000, seed=3, events_per_s=1_000.0)
EDGES = Edges(total=8_000, seed=3, nodes=200, fresh=0.05)
STRAIGHT = [name for name, query in QUERIES.items() if not query.cyclic]
QUICK = [name for name in STRAIGHT if not name.endswith("-large") and name != "nexmark-6-small"]
WORDS = Words(total=30_000, seed=3, vocabulary=300, words_per_s=1_000.0)


def inputs_of(pipeline: Pipeline, shards: int) -> Inputs:
    return Inputs(pipeline, EVENTS, WORDS, EDGES, shards=shards, batch=5_000)


@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("name", sampled(STRAIGHT, QUICK))
def test_a_query_gives_what_duckdb_says(name: str, shards: int) -> None:
    query = QUERIES[name]
    pipeline = Pipeline("query")
    inputs = inputs_of(pipeline, shards)
    query.build(inputs).collect()
    result = pipeline.run(checkpoint=Coordinated(every="500ms"))
    assert query.expected(inputs).height > 0
    assert query.judge(inputs, result.to_polars()) == EXACT


@pytest.mark.parametrize("name", sampled(QUERIES, ["nexmark-2", "nexmark-5-small", "nhop"]))
def test_a_paced_query_hands_due_times_on_and_gives_the_same(
    name: str,
) -> None:
    query = QUERIES[name]
    pipeline = Pipeline("paced")
    # Far behind its schedule from the start, so that nothing has to be waited for.
    inputs = inputs_of(pipeline, 2)
    inputs.rate = 1e6
    query.build(inputs).collect()
    output = pipeline.run(checkpoint=None).to_polars()
    assert query.judge(inputs, output) == EXACT
    assert output[DUE].dtype.is_integer()
    assert output[DUE].null_count() == 0


@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.long), 3])
@pytest.mark.parametrize(
    "checkpoint",
    [
        CommunicationInduced(every="300ms"),
        Uncoordinated(every="300ms"),
        Coordinated("300ms", mode="unaligned"),
    ],
    ids=["hmnr", "uncoordinated", "unaligned"],
)
def test_nhop_tells_every_edge_once_and_only_true_paths(checkpoint: Any, shards: int) -> None:
    query = QUERIES["nhop"]
    inputs, output = n_hop(shards, checkpoint=checkpoint)
    assert query.judge(inputs, output) == EXACT
    assert (output["hops"] == 2).sum() > EDGES.nodes
    with pytest.raises(UserError, match="judge"):
        query.expected(inputs)


def n_hop(shards: int, **options: Any) -> tuple[Inputs, pl.DataFrame]:
    pipeline = Pipeline("nhop")
    inputs = inputs_of(pipeline, shards)
    QUERIES["nhop"].build(inputs).collect()
    return inputs, pipeline.run(**options).to_polars()


@pytest.mark.long  # `tests/engine/microbatch/test_cycles.py` has a cycle on Spark in every run
def test_nhop_in_micro_batches_tells_what_it_tells_with_long_tasks() -> None:
    inputs, output = n_hop(
        2, engine="microbatch", checkpoint=Coordinated(every_records=EDGES.total // 4)
    )
    assert QUERIES["nhop"].judge(inputs, output) == EXACT
    assert (output["hops"] == 2).sum() > EDGES.nodes
    _, other = n_hop(2, checkpoint=Coordinated("300ms", mode="unaligned"))
    pairs = [  # which longer paths are found depends on who comes first
        frame.filter(pl.col("hops") == 1).select("start", "stop", "via").sort("start", "stop")
        for frame in (output, other)
    ]
    assert pairs[0].equals(pairs[1])


def test_the_operator_to_kill_is_one_of_the_query() -> None:
    for query in QUERIES.values():
        pipeline = Pipeline("query")
        query.build(inputs_of(pipeline, 2)).collect()
        assert query.target in pipeline.graph.nodes


@pytest.mark.parametrize("name", ["nexmark-1", "nexmark-2", "nexmark-2-half", "nexmark-7"])
def test_operators_kept_apart_from_their_source_give_the_same(
    name: str,
) -> None:
    query = QUERIES[name]
    pipeline = Pipeline("apart")
    inputs = inputs_of(pipeline, 2)
    inputs.apart = True
    query.build(inputs).collect()
    assert make_plan(pipeline, 2).channels
    assert query.judge(inputs, pipeline.run().to_polars()) == EXACT


def test_windows_can_be_scaled_down() -> None:
    query = QUERIES["nexmark-5-large"]
    pipeline = Pipeline("query")
    inputs = inputs_of(pipeline, 2)
    inputs.factor = 10.0
    assert query.beat_s(inputs) == pytest.approx(0.1)
    query.build(inputs).collect()
    output = pipeline.run().to_polars()
    assert query.judge(inputs, output) == EXACT
    inputs.factor = 5.0
    assert query.judge(inputs, output) != EXACT
