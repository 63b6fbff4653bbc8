"""Wrong graphs fail before anything starts, with the operator named and the fix said."""

import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import polars as pl
import polars.selectors as cs
import pytest

from everstream.connectors.generate.sources import FromList, Range
from everstream.errors import GraphError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.graph import Broadcast, Edge
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.sink import Sink, SinkShard, Writer
from everstream.pipeline.source import END, EndOfStream, Reader, Source
from everstream.pipeline.stream import NoKey, Pipeline, Stream, planned_shards
from everstream.pipeline.validate import validate
from everstream.simulation.outside import OutsideSink


def problem(build: Callable[[Pipeline, Stream], Any], shards: int = 1) -> tuple[str, str, str]:
    """Operator, problem and fix of the error that this graph ends in."""
    pipeline = Pipeline("test")
    stream: Stream = pipeline.source(FromList([1]), name="numbers", shards=shards)
    with pytest.raises(GraphError) as caught:
        build(pipeline, stream)
        validate(planned_shards(pipeline.graph))
    return caught.value.operator, caught.value.problem, caught.value.fix


def sink() -> OutsideSink:
    return OutsideSink(0)


def test_a_pipeline_needs_a_source() -> None:
    with pytest.raises(GraphError) as caught:
        validate(Pipeline("empty").graph)
    assert str(caught.value) == (
        "operator 'empty': has no source. Start with pipeline.source(...)."
    )


def test_a_pipeline_needs_a_sink() -> None:
    assert problem(lambda p, s: s.map(abs)) == (
        "test",
        "has no sink",
        "End a stream with .sink(...) or .collect().",
    )


def test_every_stream_must_end_somewhere() -> None:
    def build(pipeline: Pipeline, stream: Stream) -> None:
        stream.sink(sink())
        stream.map(abs, name="lost")

    assert problem(build) == (
        "lost",
        "its output goes nowhere",
        "End it with .sink(...) or .collect(), or remove the operator.",
    )


class OneShardSink(Sink):
    max_shards = 1

    def open(self, who: SinkShard) -> Writer:
        raise NotImplementedError


def test_a_sink_or_source_may_limit_its_shards() -> None:
    assert problem(lambda p, s: s.sink(OneShardSink(), name="out"), shards=2) == (
        "out",
        "OneShardSink can have at most 1 shard(s), not 2",
        "Use shards=1.",
    )


@pytest.mark.parametrize("method", ["fold", "reduce", "aggregate"])
def test_state_per_key_needs_a_key(method: str) -> None:
    def build(pipeline: Pipeline, stream: Stream) -> None:
        getattr(stream, method)

    assert problem(build) == (
        "numbers",
        f"{method}(...) keeps a value per key, but the stream from here has no key",
        f"Put .key_by(...) right before .{method}(...).",
    )


def test_whether_a_stream_has_a_key_can_be_asked() -> None:
    stream = Pipeline("test").source(FromList([1]))
    assert not hasattr(stream, "fold") and hasattr(stream.key_by(abs), "fold")
    with pytest.raises(AttributeError, match="a Stream has no 'fald'"):
        getattr(stream, "fald")  # noqa: B009
    copied = pickle.loads(pickle.dumps(NoKey("numbers", "has no key", "Put one.")))
    assert str(copied) == "operator 'numbers': has no key. Put one."


def test_a_union_forgets_the_keys_of_its_parts() -> None:
    def build(pipeline: Pipeline, stream: Stream) -> None:
        keyed = stream.key_by(abs)
        union: Any = keyed.union(keyed)
        union.reduce(max, name="top").sink(sink())

    assert problem(build)[2] == "Put .key_by(...) right before .reduce(...)."


def mixed(routing_of_second: Any) -> tuple[str, str, str]:
    def build(pipeline: Pipeline, stream: Stream) -> None:
        stream.key_by(abs).map(abs, name="meet").sink(sink())
        pipeline.graph.edges.append(Edge("numbers", "meet", routing_of_second))

    return problem(build)


def test_inputs_are_all_keyed_or_none() -> None:
    assert mixed(Broadcast()) == (
        "meet",
        "some of its inputs are keyed and others are not",
        "Call .key_by(...) after .union(...).",
    )


def test_inputs_are_keyed_in_one_way() -> None:
    other = Pipeline("other").source(FromList([1])).key_by(abs)._routing
    assert mixed(other) == (
        "meet",
        "its inputs are keyed in different ways",
        "Use one .key_by(...).",
    )


class Nothing(Operator):
    pass


class Yields(Operator):
    def process(self, record: Any, ctx: Context) -> Iterator[Any]:  # type: ignore[override]
        yield record


class Awaits(Operator):
    async def process_batch(self, batch: Batch, ctx: Context) -> None:  # type: ignore[override]
        pass


class AsyncYields(Operator):
    async def process(self, record: Any, ctx: Context) -> AsyncIterator[Any]:  # type: ignore[override]
        yield record


class AwaitsStart(Operator):
    def process(self, record: Any, ctx: Context) -> None: ...

    async def on_start(self, ctx: Context) -> None:  # type: ignore[override]
        pass


def test_an_operator_must_process_something() -> None:
    assert problem(lambda p, s: s.process(Nothing(), name="idle").sink(sink())) == (
        "idle",
        "class Nothing defines neither process nor process_batch",
        "Define one of them.",
    )
    with pytest.raises(TypeError, match="Nothing must define process or process_batch"):
        Nothing().process(1, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operator", "method"),
    [
        (Yields(), "process"),
        (Awaits(), "process_batch"),
        (AsyncYields(), "process"),
        (AwaitsStart(), "on_start"),
    ],
)
def test_process_must_be_a_plain_method(operator: Operator, method: str) -> None:
    assert problem(lambda p, s: s.process(operator, name="odd").sink(sink())) == (
        "odd",
        f"{method} must be a plain method",
        "Use ctx.emit(...) instead of yield or async.",
    )


def test_an_ordered_sink_has_one_shard() -> None:
    assert problem(lambda p, s: s.sink(sink(), name="out", ordered=True, shards=2)) == (
        "out",
        "an ordered sink has one shard",
        "Use shards=1.",
    )


def test_order_needs_one_stream() -> None:
    assert problem(
        lambda p, s: (
            s.map(abs)
            .union(s.map(abs))
            .map(abs, name="meet")
            .sink(sink(), name="out", ordered=True)
        )
    ) == (
        "out",
        "cannot keep order: several streams meet at 'meet'",
        "Let one source feed it, or drop ordered=True.",
    )


def test_order_needs_a_source_with_one_shard() -> None:
    assert problem(lambda p, s: s.sink(sink(), name="out", ordered=True), shards=2) == (
        "out",
        "cannot keep order: source 'numbers' has 2 shards",
        "Give 'numbers' shards=1, or drop ordered=True.",
    )


@pytest.mark.parametrize("how", ["key_by", "broadcast"])
def test_order_does_not_survive_a_split(how: str) -> None:
    def build(pipeline: Pipeline, stream: Stream) -> None:
        split = stream.key_by(abs) if how == "key_by" else stream.broadcast()
        split.map(abs, name="work", shards=2).sink(sink(), name="out", ordered=True)

    assert problem(build) == (
        "out",
        f"cannot keep order: {how} before 'work' splits the stream",
        f"Drop ordered=True, or the {how}.",
    )


class Unreadable(Source):
    def open(self, shard: int, shards: int) -> Reader:
        raise NotImplementedError

    def check(self) -> None:
        raise UserError("no such file")


def test_sources_and_sinks_are_asked_whether_they_can_work() -> None:
    pipeline = Pipeline("test").source(Unreadable()).sink(sink())
    with pytest.raises(UserError, match="no such file"):
        validate(planned_shards(pipeline.graph))


def test_a_right_graph_passes() -> None:
    stream = Pipeline("test").source(FromList([1]), shards=2)
    pipeline = stream.key_by(abs).reduce(max, shards=3).sink(sink())
    validate(planned_shards(pipeline.graph))
    assert isinstance(END, EndOfStream)


def test_upstream_comes_first_whatever_leads_back() -> None:
    pipeline = Pipeline("test")
    stream = pipeline.source(FromList([1]), name="a").map(abs, name="b").map(abs, name="c")
    stream.sink(sink(), name="d")
    assert [node.name for node in pipeline.graph.upstream_first()] == ["a", "b", "c", "d"]
    stream.feedback(to="b")
    assert pipeline.graph.edges[-1] == Edge("c", "b", feedback=True)
    assert [node.name for node in pipeline.graph.upstream_first()] == ["a", "b", "c", "d"]


def test_feedback_leads_to_an_operator_upstream() -> None:
    pipeline = Pipeline("test")
    start = pipeline.source(FromList([1]), name="a")
    left, right = start.map(abs, name="left"), start.map(abs, name="right")
    with pytest.raises(GraphError, match="'right', which is not upstream"):
        left.feedback(to=right)
    with pytest.raises(UserError, match="Give an operator of this pipeline, one of left"):
        left.feedback(to="a")
    with pytest.raises(UserError, match="cannot lead to 'nowhere'"):
        left.feedback(to="nowhere")
    with pytest.raises(UserError, match="leads to one operator"):
        left.feedback(to=left.union(right))


def test_feedback_takes_the_key_of_what_comes_anyway() -> None:
    pipeline = Pipeline("test")
    keyed = pipeline.source(FromList([1]), name="a").key_by(abs)
    stream = keyed.reduce(max, name="b", shards=2)
    stream.feedback(to=stream)
    stream.sink(sink())
    first, back = pipeline.graph.inputs("b")
    assert back.feedback and back.routing is first.routing
    validate(planned_shards(pipeline.graph))


class Named(Range):
    """Knows the names of its columns before the run, and not their types, as a topic may."""

    def column_types(self) -> None:
        return None

    def column_names(self) -> list[str]:
        return ["price"]


@pytest.mark.parametrize(
    "build",
    [
        lambda rows: rows.filter(pl.col("pirce") > 1, name="wrong"),
        lambda rows: rows.with_columns(twice=pl.col("pirce") * 2, name="wrong"),
        lambda rows: rows.select("price").select("pirce", name="wrong"),
        lambda rows: rows.with_columns(pl.col("price").alias("p")).filter(
            (pl.col("p") > pl.col("pirce")), name="wrong"
        ),
    ],
)
def test_a_column_that_is_not_there_is_found_where_the_columns_are_known(
    build: Callable[[Any], Any],
) -> None:
    pipeline = Pipeline("columns")
    build(pipeline.source(Named(3, column="price"))).collect()
    with pytest.raises(GraphError, match=r"no column 'pirce'; the columns here are") as caught:
        validate(planned_shards(pipeline.graph))
    assert caught.value.operator == "wrong"


@pytest.mark.parametrize(
    "build",
    [
        lambda rows: rows.filter(pl.col("price") > 1).select(
            pl.all(), pl.col("^p.*$").name.suffix("_")
        ),
        lambda rows: rows.select(pl.all()).filter(pl.col("anything") > 1),
        lambda rows: rows.map(lambda row: {"other": row["price"]}).filter(pl.col("other") > 1),
        lambda rows: rows.with_columns(cs.numeric().sum().name.suffix("_sum"), n=5),
        lambda rows: rows.union(rows.map(lambda row: row)).filter(pl.col("anything") > 1),
        lambda rows: rows.with_columns(xs=pl.concat_list("price")).select(
            pl.col("xs").list.eval(pl.element() * 2)
        ),
    ],
)
def test_columns_of_which_nobody_can_tell_are_let_through(build: Callable[[Any], Any]) -> None:
    pipeline = Pipeline("columns")
    build(pipeline.source(Named(3, column="price"))).collect()
    validate(planned_shards(pipeline.graph))


def test_order_over_two_farms_is_refused_unless_it_is_made_again_between_them() -> None:
    class Same(Operator):
        def process(self, record: object, ctx: Context) -> None:
            ctx.emit(record)

    def farms(between: bool, second: int) -> Pipeline:
        stream = Pipeline("farms").source(Range(9)).map(abs, shards=2, name="first")
        if between:
            stream = stream.process(Same(), ordered=True, name="between")
        return stream.map(abs, shards=second, name="second").collect(ordered=True)

    validate(planned_shards(farms(False, 2).graph))
    validate(planned_shards(farms(True, 3).graph))
    with pytest.raises(GraphError, match="'first' has 2 shards, which meet in 'second'"):
        validate(planned_shards(farms(False, 3).graph))
