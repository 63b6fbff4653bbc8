"""Running aggregates per key against plain Polars, with faults; and how small their checkpoints are."""

from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everstream as es
from everstream.connectors.generate.sources import FromList
from everstream.errors import UserError
from everstream.pipeline.aggregation.aggregates import Aggregates
from everstream.pipeline.aggregation.local_parts import LocalParts
from everstream.pipeline.aggregation.running import PAGE, RunningChanges, RunningRecords
from everstream.pipeline.keys import Keying
from everstream.pipeline.operator import Context
from everstream.pipeline.stream import Pipeline, Stream
from everstream.state.objects import ObjectRef
from everstream.state.snapshot import ShardState
from tests.pipeline.aggregations import AGGREGATES, IN_POLARS
from tests.pipeline.sim import Sink, as_tuple, rows, rows_source, simulate

QUICK = settings(max_examples=25, suppress_health_check=list(HealthCheck))
SIMPLE = {name: AGGREGATES[name] for name in ("n", "known", "total", "mean", "low", "high")}
DAY = datetime(2024, 5, 1)


@st.composite
def records(draw: st.DrawFn) -> pl.DataFrame:
    keys = st.sampled_from(["a", "b", "c", None])
    values = st.one_of(st.none(), st.integers(-9, 9))
    made = draw(st.lists(st.tuples(keys, st.integers(0, 50), values), min_size=1, max_size=60))
    return pl.DataFrame(made, schema={"k": pl.String, "t": pl.Int64, "v": pl.Int64}, orient="row")


@QUICK
@given(records(), st.integers(1, 9), st.integers(1, 3), st.integers(0, 10_000))
def test_each_record_comes_with_the_aggregates_up_to_it(
    frame: pl.DataFrame, batch: int, shards: int, seed: int
) -> None:
    def build(pipeline: Pipeline, sink: Sink) -> None:
        keyed = pipeline.source(rows_source(frame, batch)).key_by("k")
        sink(keyed.aggregate(**SIMPLE, emit="record", shards=shards), "out")

    expected = []
    for position, row in enumerate(frame.rows(named=True)):
        before = frame[: position + 1].filter(pl.col("k").eq_missing(row["k"]))
        told = before.select(**{name: IN_POLARS[name] for name in SIMPLE}).row(0, named=True)
        expected.append(as_tuple({**row, **told}))
    simulate(build, {"out": expected}, seed)


@QUICK
@given(records(), st.integers(1, 9), st.integers(1, 3), st.integers(0, 10_000))
def test_each_batch_gives_one_row_for_each_key_that_it_changes(
    frame: pl.DataFrame, batch: int, shards: int, seed: int
) -> None:
    def build(pipeline: Pipeline, sink: Sink) -> None:
        keyed = pipeline.source(rows_source(frame, batch)).key_by("k")
        sink(keyed.aggregate(**AGGREGATES, shards=shards), "out")

    expected: list[Any] = []
    for start in range(0, len(frame), batch):
        changed = frame[start : start + batch].select("k").unique()
        so_far = frame[: start + batch].join(changed, on="k", how="semi", nulls_equal=True)
        expected += rows(so_far.group_by("k").agg(**IN_POLARS))
    simulate(build, {"out": expected}, seed)


def test_several_sources_and_compound_keys_come_to_the_same_totals() -> None:
    frame = pl.DataFrame({"a": [i % 3 for i in range(90)], "b": [i % 2 == 0 for i in range(90)]})

    class Last(es.Operator):
        def process(self, record: Any, ctx: Context) -> None:
            ctx.state.put((record["a"], record["b"]), record["n"])

        def on_end(self, ctx: Context) -> None:
            for key, count in ctx.state.items():
                ctx.emit((*key, count))

    def build(pipeline: Pipeline, sink: Sink) -> None:
        keyed = pipeline.source(rows_source(frame, 4), shards=3).key_by("a", "b")
        counts = keyed.aggregate(n=es.count(), shards=2).key_by("a", "b")
        sink(counts.process(Last(), shards=1), "out")

    simulate(build, {"out": [(a, b, 15) for a in range(3) for b in (False, True)]})


class Bench:
    """Both halves of a running aggregation in one process, with its state."""

    def __init__(self, **aggregates: Any) -> None:
        self.aggregates = aggregates
        self.state = ShardState()
        self.start()

    def start(self) -> None:
        named = Aggregates(self.aggregates)
        self.local, self.running = LocalParts(Keying("k"), named), RunningChanges(named)
        self.ctx = Context("running", 0, 1, self.state.keystore("running", "ctx.state"))
        self.running.on_start(self.ctx)

    def feed(self, **columns: Any) -> list[dict[str, Any]]:
        self.local.process_batch(pl.DataFrame(columns), self.ctx)
        for _, parts in self.ctx.take_emitted():
            self.running.process_batch(parts, self.ctx)
        ((_, out),) = self.ctx.take_emitted()
        assert isinstance(out, pl.DataFrame)
        return out.sort("k").rows(named=True)

    def checkpoint(self) -> bytes:
        """The bytes of the next one, which becomes durable."""
        capture = self.state.capture({})
        data = capture.encode()
        self.chain = self.state.mark_durable(capture, ObjectRef.of(f"{capture.sequence}", data))
        self.stored = {**getattr(self, "stored", {}), f"{capture.sequence}": data}
        return data

    def crash(self) -> None:
        self.state = ShardState()
        self.state.restore([self.stored[ref.name] for ref in self.chain], self.chain)
        self.start()


def test_a_checkpoint_holds_the_pages_that_changed_and_no_others() -> None:
    it = Bench(n=es.count(), total=es.sum("v"))
    many = 10 * PAGE
    it.feed(k=range(many), v=range(many))
    full = it.checkpoint()
    it.feed(k=[5, 5, 7], v=[1, 1, 1])
    delta = it.checkpoint()
    assert len(delta) < len(full) / 8
    it.feed(k=[many, many + 1], v=[1, 2])
    it.checkpoint()
    it.feed(k=[5], v=[100])
    it.crash()
    changed = it.feed(k=[5, 7, many, 3 * PAGE], v=[0, 0, 0, 0])
    assert [(row["k"], row["n"], row["total"]) for row in changed] == [
        *[(5, 4, 7), (7, 3, 8), (3 * PAGE, 2, 3 * PAGE), (many, 2, 1)]
    ]


def test_a_checkpoint_does_not_see_what_comes_after_it() -> None:
    it = Bench(n=es.count())
    it.feed(k=["a"])
    capture = it.state.capture({})
    it.feed(k=["a", "a", "b"])
    data = capture.encode()
    it.chain = it.state.mark_durable(capture, ObjectRef.of("1", data))
    it.stored = {"1": data}
    it.crash()
    assert it.feed(k=["a"]) == [{"k": "a", "n": 2}]


def test_numbers_may_become_fractions_and_nulls_do_not_count() -> None:
    it = Bench(low=es.min("v"), total=es.sum("v"), mean=es.avg("v"))
    assert it.feed(k=["a"], v=[None]) == [{"k": "a", "low": None, "total": 0, "mean": None}]
    assert it.feed(k=["a"], v=[4]) == [{"k": "a", "low": 4, "total": 4, "mean": 4.0}]
    it.checkpoint()
    assert it.feed(k=["b"], v=[2.5]) == [{"k": "b", "low": 2.5, "total": 2.5, "mean": 2.5}]
    it.checkpoint()
    it.crash()
    assert it.feed(k=["a"], v=[0.5]) == [{"k": "a", "low": 0.5, "total": 4.5, "mean": 2.25}]
    assert it.feed(k=["c"], v=[None])[0]["low"] is None


def test_the_first_and_last_of_times_are_times() -> None:
    it = Bench(first=es.min("v"), last=es.max("v"))
    it.feed(k=["a", "a"], v=[DAY, DAY + timedelta(days=2)])
    assert it.feed(k=["a"], v=[DAY + timedelta(days=1)]) == [
        {"k": "a", "first": DAY, "last": DAY + timedelta(days=2)}
    ]


def test_top_k_and_custom_aggregates_survive_a_crash() -> None:
    it = Bench(
        best=es.top_k("v", 2),
        words=es.custom(set, lambda seen, row: seen | {row["v"]}, set.union, len),
    )
    it.feed(k=["a", "a"], v=[3, 9])
    it.checkpoint()
    it.crash()
    assert it.feed(k=["a", "a"], v=[5, 9]) == [{"k": "a", "best": [9, 9], "words": 3}]


def stream() -> Stream:
    return Pipeline("test").source(FromList([{"k": 1, "v": "x"}]))


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: stream().aggregate(n=es.count()), "Put .key_by"),
        (lambda: stream().key_by("k").aggregate(emit="never", n=es.count()), "is not valid"),
        (lambda: stream().key_by("k").aggregate(emit="record", t=es.top_k("v", 1)), "top_k"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_runs(build: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        build()


def test_a_running_minimum_of_words_is_refused_with_a_reason() -> None:
    with pytest.raises(UserError, match="needs numbers or times"):
        Bench(low=es.min("v")).feed(k=["a"], v=["word"])


def test_a_key_that_has_the_name_of_a_result_is_refused_with_a_reason() -> None:
    with pytest.raises(UserError, match="another name for the aggregate"):
        Bench(k=es.count()).feed(k=["a"])


def test_columns_may_be_called_init_and_update() -> None:
    keyed = Pipeline("test").source(FromList([{"k": 1}])).key_by("k")
    keyed.aggregate(init=es.count(), update=es.count(), emit="record")
    assert isinstance(keyed.pipeline.graph.nodes["aggregates"].what, RunningRecords)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [({"n": 3}, "n=3 is not an aggregate"), ({}, "give at least one aggregate")],
)
def test_what_is_no_aggregate_is_refused(columns: dict[str, Any], problem: str) -> None:
    keyed = Pipeline("test").source(FromList([{"k": 1}])).key_by("k")
    with pytest.raises(UserError, match=problem):
        keyed.aggregate(**columns)
