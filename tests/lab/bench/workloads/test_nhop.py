"""NHop: the matching operator against a plain program, and its judge against wrong output."""

from collections import deque

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstream.errors import UserError
from everstream.pipeline.operator import Context, bind_state
from everstream.state.backends.memory import MemoryBackend
from everstream.testing.sources import check_source
from everstream_lab.bench.workloads.graph_edges import Edges
from everstream_lab.bench.workloads.nhop import Match, judge
from everstream_lab.bench.workloads.verdict import Verdict


def matcher(hops: int = 2) -> tuple[Match, Context]:
    operator = Match(hops)
    bind_state(operator, lambda name, init, migration: MemoryBackend(init))
    return operator, Context("match", 0, 1, MemoryBackend())


def run_alone(edges: pl.DataFrame, hops: int, batch: int) -> pl.DataFrame:
    """One shard to which everything comes back before the next batch."""
    operator, ctx = matcher(hops)
    found = []
    for start in range(0, edges.height, batch):
        operator.process_batch(edges[start : start + batch], ctx)
        rows = [frame for _, frame in ctx.take_emitted()]
        found += rows
        for frame in rows:
            assert isinstance(frame, pl.DataFrame)
            operator.process_batch(frame.filter(pl.col("hops") < hops), ctx)
        assert ctx.take_emitted() == []
    return pl.concat(found)  # type: ignore[type-var]


def distances(edges: pl.DataFrame, longest: int) -> dict[tuple[int, int], int]:
    """Breadth first from every node."""
    out: dict[int, set[int]] = {}
    for start, stop in edges.iter_rows():
        out.setdefault(start, set()).add(stop)
    found: dict[tuple[int, int], int] = {}
    for origin in out:
        queue, seen = deque([(origin, 0)]), {origin}
        while queue:
            node, hops = queue.popleft()
            for after in out.get(node, set()) - seen if hops < longest else ():
                seen.add(after)
                found[origin, after] = hops + 1
                queue.append((after, hops + 1))
    return found


def test_edges_are_a_source_that_replays_and_covers_everything_once() -> None:
    edges = Edges(total=500, seed=1, nodes=30)
    check_source(lambda: edges.source(batch=32), expected=edges.all().rows(named=True))


def test_a_graph_with_fresh_nodes_always_has_something_to_find() -> None:
    edges = Edges(total=20_000, nodes=100, degree=4, fresh=0.1)
    check_source(lambda: edges.source(batch=3_000), expected=edges.all().rows(named=True))
    found = run_alone(edges.all(), 2, batch=500)
    assert judge(edges.all(), found) == Verdict(lost=0, duplicated=0, untrue=0)
    late = found.filter(pl.col("start") > 1_500)
    assert set(late["hops"]) == {1, 2}
    assert edges.all()["start"].max() > 2_000  # type: ignore[operator]


@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 30), hops=st.integers(1, 4))
@settings(max_examples=40)
def test_a_graph_seen_often_enough_is_known_by_its_shortest_paths(
    seed: int, nodes: int, hops: int
) -> None:
    graph = Edges(total=4_000, seed=seed, nodes=nodes, degree=2).all().unique(maintain_order=True)
    again = pl.concat([graph] * (hops + 1))
    found = run_alone(again, hops, batch=graph.height)
    shortest = found.group_by("start", "stop").agg(pl.col("hops").min())
    assert {(a, b): h for a, b, h in shortest.iter_rows()} == distances(graph, hops)


@given(seed=st.integers(0, 10**6), batch=st.integers(1, 200))
@settings(max_examples=40)
def test_what_is_found_in_any_batches_is_true_and_told_once(seed: int, batch: int) -> None:
    edges = Edges(total=400, seed=seed, nodes=25, degree=3).all()
    found = run_alone(edges, 2, batch)
    assert judge(edges, found) == Verdict(lost=0, duplicated=0, untrue=0)
    assert found.filter(pl.col("hops") == 2).height > 0


def test_the_judge_finds_lost_duplicated_and_untrue_rows() -> None:
    edges = Edges(total=300, nodes=20, degree=3).all()
    found = run_alone(edges, 2, 20)
    single = found.filter(pl.col("hops") == 1)
    lacking = found.join(single[3:5], on=found.columns, how="anti")
    assert judge(edges, lacking).lost == 2
    assert judge(edges, pl.concat([found, found[7:10]])).duplicated == 3
    wrong = found[:1].with_columns(stop=pl.col("start"))
    assert judge(edges, pl.concat([found, wrong])).untrue == 1


def test_paths_that_come_back_give_no_output() -> None:
    operator, ctx = matcher()
    operator.process_batch(pl.DataFrame({"start": [1], "stop": [2]}), ctx)
    ctx.take_emitted()
    operator.process_batch(pl.DataFrame({"start": [5], "stop": [1], "hops": [1], "via": [5]}), ctx)
    assert ctx.take_emitted() == []
    operator.process_batch(pl.DataFrame({"start": [1], "stop": [3]}), ctx)
    [(_, found)] = ctx.take_emitted()
    assert isinstance(found, pl.DataFrame)
    assert found.rows() == [(1, 3, 1, 1), (5, 3, 2, 1)]


def test_a_matcher_needs_at_least_one_hop() -> None:
    with pytest.raises(UserError, match="hops"):
        Match(0)
