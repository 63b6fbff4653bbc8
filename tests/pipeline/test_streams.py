"""What a user writes: every method of a stream does what it says, in a whole (simulated) run."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import polars as pl
import pytest

from everstream.connectors.generate.sources import FromFunction, FromList
from everstream.core.plan import make_plan
from everstream.errors import GraphError, UserError
from everstream.pipeline.batch import Batch
from everstream.pipeline.graph import Broadcast, ByKey, Kind, OnDemand
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.stream import Pipeline, Stream
from everstream.simulation.faults import NO_FAULTS
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape
from everstream.simulation.world import World

worlds = itertools.count(10_000)


def gives(
    build: Callable[[Stream], Stream | None],
    expected: Iterable[Any],
    records: Sequence[Any] = range(10),
    shards: int = 1,
    **others: list[Any],
) -> None:
    """Assert that what `build` makes of these records ends in exactly the expected output.

    A stream that `build` returns goes to the sink 'out'; others it ends itself, with `to`.
    """

    def make(pipeline: Pipeline, world: int) -> None:
        source = pipeline.source(FromList(records, batch=3), name="numbers", shards=shards)
        stream = build(source)
        if stream is not None:
            stream.sink(OutsideSink(world), name="out")

    _check(make, {"out": list(expected), **others})


def _check(make: Callable[[Pipeline, int], None], expected: dict[str, list[Any]]) -> None:
    shape = Shape("test", workers=2, build=make, expected=lambda: expected)
    history = World(next(worlds), shape, NO_FAULTS).run()
    assert history.right, (history.violations, history.notes)


def table(n: int = 10) -> FromFunction:
    def make(start: int, stop: int) -> pl.DataFrame:
        return pl.DataFrame(
            {"n": range(start, stop), "even": [x % 2 == 0 for x in range(start, stop)]}
        )

    return FromFunction(make, n, batch=4)


def gives_rows(build: Callable[[Stream], Stream], expected: Iterable[Any]) -> None:
    """As `gives`, for a source of rows; the output is compared as tuples."""

    def make(pipeline: Pipeline, world: int) -> None:
        stream = build(pipeline.source(table(), name="table"))
        stream.map(lambda row: tuple(row.values())).sink(OutsideSink(world), name="out")

    _check(make, {"out": list(expected)})


# Record by record.


def test_map_makes_one_record_of_one() -> None:
    gives(lambda s: s.map(lambda x: x * 2), [x * 2 for x in range(10)])


def test_flat_map_makes_any_number() -> None:
    gives(
        lambda s: s.flat_map(lambda x: [x] * (x % 3)), [x for x in range(10) for _ in range(x % 3)]
    )


def test_filter_keeps_what_the_function_says() -> None:
    gives(lambda s: s.filter(lambda x: x > 6), [7, 8, 9])


def test_map_batches_sees_whole_batches() -> None:
    gives(lambda s: s.map_batches(lambda batch: [sum(batch)]), [3, 12, 21, 9])


def test_map_batches_may_change_the_kind_of_batch() -> None:
    gives(
        lambda s: s.map_batches(lambda batch: pl.DataFrame({"n": batch})).map(lambda row: row["n"]),
        range(10),
    )


def test_rows_are_dicts_to_a_python_function() -> None:
    gives_rows(lambda s: s.map(lambda row: {"twice": row["n"] * 2}), [(2 * n,) for n in range(10)])
    gives_rows(lambda s: s.filter(lambda row: row["even"]), [(n, True) for n in range(0, 10, 2)])


# Columns.


def test_filter_takes_an_expression() -> None:
    gives_rows(lambda s: s.filter(pl.col("n") > 7), [(8, True), (9, False)])


def test_with_columns_adds_and_replaces() -> None:
    gives_rows(
        lambda s: s.with_columns(pl.col("n") * 2, m=pl.col("n") + 1),
        [(2 * n, n % 2 == 0, n + 1) for n in range(10)],
    )


def test_select_keeps_and_computes() -> None:
    gives_rows(lambda s: s.select("n", m=-pl.col("n")), [(n, -n) for n in range(10)])


def test_dicts_become_columns_where_columns_are_asked_for() -> None:
    gives(
        lambda s: s.map(lambda x: {"n": x}).filter(pl.col("n") < 3).map(lambda row: row["n"]),
        [0, 1, 2],
    )


def test_an_expression_that_gives_null_is_not_true() -> None:
    def build(s: Stream) -> Stream:
        rows = s.map(lambda x: {"n": x if x % 2 else None, "x": x})
        small, rest = rows.branch(pl.col("n") < 5)
        kept = rest.map(lambda row: row["x"]).union(small.map(lambda row: -row["x"]))
        return kept

    gives(build, [-1, -3, 0, 2, 4, 5, 6, 7, 8, 9])


# Keys.


def counts(n: int, key: Callable[[int], Any]) -> list[tuple[Any, int]]:
    seen: dict[Any, int] = {}
    out = []
    for x in range(n):
        seen[key(x)] = seen.get(key(x), 0) + 1
        out.append((key(x), seen[key(x)]))
    return out


def test_aggregate_keeps_one_value_per_key() -> None:
    gives(
        lambda s: s.key_by(lambda x: x % 3).fold(
            init=int, update=lambda count, _: count + 1, shards=2
        ),
        counts(10, lambda x: x % 3),
    )


def test_reduce_starts_from_the_first_record() -> None:
    gives(
        lambda s: s.key_by(lambda x: x % 2).reduce(lambda a, b: a + b),
        [(0, 0), (1, 1), (0, 2), (1, 4), (0, 6), (1, 9), (0, 12), (1, 16), (0, 20), (1, 25)],
    )


def test_keys_may_be_columns_expressions_or_several_columns() -> None:
    keys: list[tuple[tuple[Any, ...], Callable[[int], Any]]] = [
        (("even",), lambda n: n % 2 == 0),
        ((pl.col("n") % 4,), lambda n: n % 4),
        (("even", pl.col("n") % 3), lambda n: (n % 2 == 0, n % 3)),
    ]
    for arguments, key in keys:

        def make(pipeline: Pipeline, world: int, arguments: Any = arguments) -> None:
            keyed = pipeline.source(table(), name="table").key_by(*arguments)
            counted = keyed.fold(init=int, update=lambda c, _: c + 1, shards=3)
            counted.sink(OutsideSink(world), name="out")

        _check(make, {"out": counts(10, key)})


def test_one_keyed_stream_may_feed_operators_of_different_widths() -> None:
    def build(s: Stream) -> Stream:
        keyed = s.key_by(lambda x: x % 5)
        wide = keyed.fold(init=int, update=lambda c, _: c + 1, name="wide", shards=5)
        narrow = keyed.fold(init=int, update=lambda c, _: c + 1, name="narrow", shards=2)
        return wide.union(narrow)

    gives(build, counts(10, lambda x: x % 5) * 2)


# Ways.


def test_branch_sends_each_record_to_the_first_that_holds() -> None:
    def build(s: Stream) -> Stream:
        small, even, rest = s.branch(lambda x: x < 3, lambda x: x % 2 == 0)
        tagged = [small.map(lambda x: ("small", x)), even.map(lambda x: ("even", x))]
        return rest.map(lambda x: ("rest", x)).union(*tagged)

    small = [("small", x) for x in range(3)]
    gives(build, [*small, *(("even", x) for x in (4, 6, 8)), *(("rest", x) for x in (3, 5, 7, 9))])


def test_branches_may_be_expressions() -> None:
    def build(s: Stream) -> Stream:
        low, high = s.branch(pl.col("n") < 8)
        return low.filter(pl.col("n") < 1).union(high)

    gives_rows(build, [(0, True), (8, True), (9, False)])


def test_broadcast_gives_every_shard_every_record() -> None:
    gives(
        lambda s: s.broadcast().map(lambda x: x, shards=3), [x for x in range(10) for _ in range(3)]
    )


def test_on_demand_gives_each_record_to_one_shard() -> None:
    gives(lambda s: s.on_demand().map(lambda x: x, shards=3), range(10))


def test_a_stream_used_twice_goes_both_ways() -> None:
    gives(
        lambda s: s.map(lambda x: x).union(s.map(lambda x: -x)),
        [*range(10), *(-x for x in range(10))],
    )


class OddsAside(Operator):
    def process(self, record: Any, ctx: Context) -> None:
        ctx.emit(record, output="odd" if record % 2 else "out")


def test_a_port_has_what_was_emitted_to_it() -> None:
    def build(s: Stream) -> Stream:
        audit_copy = s.process(OddsAside())
        return audit_copy.map(lambda x: x).union(audit_copy.side_output("odd").map(lambda x: -x))

    gives(build, [0, 2, 4, 6, 8, -1, -3, -5, -7, -9])


def test_a_port_nobody_listens_to_is_dropped() -> None:
    gives(lambda s: s.process(OddsAside()), [0, 2, 4, 6, 8])


def test_an_ordered_sink_shows_records_in_the_order_of_the_source() -> None:
    def make(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(FromList(range(50), batch=2), name="numbers")
        work = numbers.on_demand().map(lambda x: -x, shards=3)
        work.on_demand().sink(OutsideSink(world), name="out", ordered=True)

    expected = {"out": [-x for x in range(50)]}
    shape = Shape("test", 3, make, lambda: expected, ordered=True)
    assert World(next(worlds), shape, NO_FAULTS).run().right


# Operators.


class Totals(Operator):
    """Declared state, per key, with and without a default."""

    total = Keyed[int](init=int)
    last = Keyed[int]()

    def process(self, record: Any, ctx: Context) -> None:
        self.total[ctx.key] += record
        before = self.last.get(ctx.key, -1)
        self.last[ctx.key] = record
        ctx.emit((ctx.key, self.total[ctx.key], before))


class MoreTotals(Totals):
    """Inherits declared state."""


@pytest.mark.parametrize("operator", [Totals(), MoreTotals()])
def test_declared_state_is_kept_per_key(operator: Operator) -> None:
    gives(
        lambda s: s.key_by(lambda x: x % 2).process(operator, shards=2),
        [(0, 0, -1), (1, 1, -1), (0, 2, 0), (1, 4, 1)],
        records=range(4),
    )


def test_a_declaration_is_found_on_the_class() -> None:
    assert isinstance(Totals.total, Keyed) and Totals.total.name == "total"


class Summing(Operator):
    """Works on batches and says the rest at the end."""

    def on_start(self, ctx: Context) -> None:
        ctx.emit(("start", ctx.shard, ctx.shards))

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        ctx.state.put("sum", ctx.state.get("sum", 0) + sum(batch))

    def on_end(self, ctx: Context) -> None:
        ctx.emit(("sum", ctx.state.get("sum", 0)))


def test_hooks_may_emit_first_and_last_records() -> None:
    gives(lambda s: s.process(Summing()), [("start", 0, 1), ("sum", 45)])


class SkipsFives(Operator):
    def process(self, record: Any, ctx: Context) -> None:
        if record == 5:
            raise ValueError("five")
        ctx.emit(record)

    def on_error(self, error: Exception, record: Any, ctx: Context) -> None:
        assert str(error) == "five" and record == 5
        ctx.emit("skipped", output="errors")

    def on_end(self, ctx: Context) -> None:
        ctx.emit(("skipped in all", ctx.skipped))


def test_an_operator_may_skip_records_that_fail() -> None:
    def build(s: Stream) -> Stream:
        kept = s.process(SkipsFives())
        return kept.union(kept.side_output("errors"))

    gives(build, [0, 1, 2, 3, 4, 6, 7, 8, 9, "skipped", ("skipped in all", 1)])


# Names.


def names(build: Callable[[Stream], Any]) -> list[str]:
    pipeline = Pipeline("test")
    build(pipeline.source(FromList([1])))
    return list(pipeline.graph.nodes)


def test_operators_are_named_after_what_they_do_and_numbered() -> None:
    assert names(lambda s: s.map(abs).map(abs).map(abs).process(Totals()).sink(OutsideSink(0))) == [
        "from_list",
        "map",
        "map-2",
        "map-3",
        "totals",
        "outside_sink",
    ]


def test_numbers_go_around_names_a_user_has_given() -> None:
    assert names(lambda s: s.map(abs, name="map-2").map(abs).map(abs)) == [
        "from_list",
        "map-2",
        "map",
        "map-3",
    ]


def test_a_name_must_be_usable_and_used_once() -> None:
    stream = Pipeline("test").source(FromList([1]), name="numbers")
    with pytest.raises(GraphError) as twice:
        stream.map(abs, name="numbers")
    assert str(twice.value) == (
        "operator 'numbers': this name is used twice. State is found by the operator's name: "
        "give each its own with name=..."
    )
    with pytest.raises(GraphError) as odd:
        stream.map(abs, name="a/b")
    assert str(odd.value) == (
        "operator 'a/b': is not a usable name. Use letters, digits, '-', '_', '.'."
    )
    with pytest.raises(UserError, match="pipeline name 'a b': use letters, digits"):
        Pipeline("a b")


@pytest.mark.parametrize("shards", [0, -1, 1.5, "2"])
def test_a_number_of_shards_must_make_sense(shards: Any) -> None:
    with pytest.raises(GraphError) as caught:
        Pipeline("test").source(FromList([1]), name="numbers", shards=shards)
    assert caught.value.fix == "Give a number from 1 up."
    assert caught.value.problem == f"shards={shards!r} is not valid"


def test_methods_refuse_what_they_cannot_use() -> None:
    pipeline = Pipeline("test")
    stream: Any = pipeline.source(FromList([1]))
    keyed = stream.key_by(abs)
    refusals: list[tuple[Callable[[], Any], str]] = [
        (lambda: pipeline.source([1, 2]), "source() takes a Source such as es.TextLines(...)"),
        (lambda: stream.map(3), "map takes a function, not 3."),
        (lambda: stream.flat_map(None), "flat_map takes a function, not None."),
        (lambda: stream.map_batches("x"), "map_batches takes a function, not 'x'."),
        (lambda: keyed.fold(0, max), "init takes a function, not 0."),
        (lambda: keyed.fold(int, 0), "update takes a function, not 0."),
        (lambda: keyed.reduce(0), "reduce takes a function, not 0."),
        (lambda: stream.filter(0), "filter takes a function or a Polars expression, not 0."),
        (lambda: stream.branch(0), "branch takes a function or a Polars expression, not 0."),
        (lambda: stream.branch(), "branch() needs at least one predicate."),
        (lambda: stream.process(Totals), "process() takes an instance of a subclass"),
        (lambda: stream.process(abs), "For a plain function use map, flat_map or map_batches."),
        (lambda: stream.sink(abs), "sink() takes a Sink such as es.JsonLines(...)"),
        (lambda: stream.map(abs, on_error="wait"), "map(): on_error='wait' is not one of 'fail'"),
        (lambda: stream.key_by(7), "key_by takes a function, a column name or a Polars expression"),
        (
            lambda: stream.union(Pipeline("other").source(FromList([1]))),
            "union() needs streams of the same pipeline; these are from two.",
        ),
    ]
    for attempt, words in refusals:
        with pytest.raises(UserError) as caught:
            attempt()
        assert words in str(caught.value)


def test_options_that_do_not_exist_are_refused_where_they_are_written() -> None:
    stream: Any = Pipeline("test").source(FromList([1]))
    for method in ("map", "filter", "process", "transact", "branch", "window_join", "sink"):
        with pytest.raises(TypeError, match=rf"\b{method}\(\) got an unexpected keyword .*'shard'"):
            getattr(stream, method)(abs, shard=2)


def test_the_graph_holds_what_was_said() -> None:
    pipeline = Pipeline("test")
    stream = pipeline.source(FromList([1]), name="numbers", shards=2)
    stream.key_by(abs).fold(init=int, update=max, name="top", shards=3).collect(ordered=False)
    stream.broadcast().map(abs, name="all").sink(OutsideSink(0), name="copies")
    graph = pipeline.graph
    kinds = {node.name: node.kind for node in graph.nodes.values()}
    assert kinds["numbers"] is Kind.SOURCE and kinds["collect"] is Kind.SINK
    assert [type(edge.routing) for edge in graph.edges] == [ByKey, OnDemand, Broadcast, OnDemand]
    assert str(graph.edges[0]) == "numbers -> top"
    plan = make_plan(pipeline, 1)
    shards = {name: plan.chains[chain].shards for name, chain in plan.chain_of.items()}
    assert shards == {"numbers": 2, "top": 3, "collect": 3, "all": 2, "copies": 2}
    assert graph.nodes["all"].shards is None, "planning leaves the user's graph alone"
