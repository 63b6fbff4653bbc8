"""Records go to the shard that the user's route chooses; anything else is an error or is refused."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream import testing
from everstream.core.plan import make_plan
from everstream.errors import GraphError, UserError
from everstream.pipeline.keyed_state.spreading import Place
from everstream.pipeline.routes import Router
from everstream.simulation.faults import Faults
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape
from everstream.simulation.storm import scheme_for
from everstream.simulation.world import World
from tests.hearing import Heard
from tests.protocol_choices import CHOICES


class Where(es.Operator):
    def process(self, record: Any, ctx: es.Context) -> None:
        ctx.emit((record, ctx.shard))


class Totals(es.Operator):
    total = es.Keyed[int](init=int)

    def process(self, record: int, ctx: es.Context) -> None:
        self.total[record % 10] += 1
        ctx.emit((record, self.total[record % 10]))


def places(batch: Any, route: Any, shards: int) -> dict[Any, int]:
    parts = Router(route).split(batch, shards)
    return {
        (record["n"] if isinstance(record, dict) else record): shard
        for shard, part in parts
        for record in (part.to_dicts() if isinstance(part, pl.DataFrame) else part)
    }


FRAME = pl.DataFrame({"n": range(7)})


@pytest.mark.parametrize(
    "route",
    [
        lambda record, shards: record["n"] % shards,
        pl.col("n") % 3,
        lambda shards: pl.col("n") % shards,
        lambda record, shards: (pl.Series([record["n"]]).to_numpy() % shards)[0],
    ],
)
def test_a_route_by_record_or_by_columns_chooses_the_shard(route: Any) -> None:
    assert places(FRAME, route, 3) == {n: n % 3 for n in range(7)}
    assert places(FRAME.to_dicts(), route, 3) == {n: n % 3 for n in range(7)}


def test_records_keep_their_order_and_a_column_of_booleans_is_two_shards() -> None:
    parts = Router(lambda n, shards: n % 2).split([5, 4, 3, 2, 1], 2)
    assert parts == [(0, [4, 2]), (1, [5, 3, 1])]
    assert places(FRAME, pl.col("n") > 4, 2) == {n: int(n > 4) for n in range(7)}
    assert places(FRAME, pl.lit(1), 2) == dict.fromkeys(range(7), 1)


@pytest.mark.parametrize(
    ("route", "problem"),
    [
        (lambda record, shards: shards, "chose shard 2, and there are 2 shard"),
        (lambda record, shards: -1, "chose shard -1"),
        (lambda record, shards: 0.5, "raised TypeError"),
        (lambda record, shards: record["m"], "raised KeyError: 'm'"),
        (pl.col("n") - 1, "chose shard -1"),
        (pl.lit(None, pl.Int64), "chose shard None"),
        (pl.col("n") / 2, "type Float64"),
    ],
)
def test_a_shard_that_does_not_exist_is_a_clear_error(route: Any, problem: str) -> None:
    for batch in (FRAME, FRAME.to_dicts()):
        with pytest.raises(UserError, match=problem):
            Router(route, "totals").split(batch, 2)
    with pytest.raises(UserError, match=r"route to 'totals'|column 'n'"):
        Router(route, "totals").split(FRAME, 2)


@pytest.mark.parametrize("route", [3, None, lambda: 0, lambda a, b, c: 0, lambda shards: 0])
def test_what_is_no_route_is_refused_when_it_is_written(route: Any) -> None:
    stream = es.Pipeline("none").source(es.Range(3))
    with pytest.raises(UserError, match="route"):
        stream.route(route)


def routed(route: Any, shards: int = 3) -> es.Pipeline:
    pipeline = es.Pipeline("routed")
    numbers = pipeline.source(es.FromList([]), name="numbers")
    return numbers.route(route).process(Where(), name="where", shards=shards).collect(name="out")


@pytest.mark.parametrize("name", CHOICES)
def test_records_reach_the_chosen_shard_also_after_a_failure(name: str) -> None:
    with testing.harness(routed(lambda n, s: n // 10), checkpoint=CHOICES[name], workers=4) as h:
        h.push("numbers", range(30))
        h.checkpoint()
        h.push("numbers", range(30))
        h.crash("where:1")
        h.checkpoint()
        assert sorted(h.output("out")) == sorted([(n, n // 10) for n in range(30)] * 2)


def test_an_error_of_a_route_names_the_operator_the_record_and_the_range() -> None:
    pipeline = es.Pipeline("wrong")
    numbers = pipeline.source(es.Range(5), name="numbers")
    numbers.route(lambda n, shards: n).process(Where(), name="where", shards=3).collect()
    with pytest.raises(es.RunFailed, match=r"route to 'where' chose shard 3.*Record: 3"):
        pipeline.run(store=None)


def test_one_shard_is_checked_like_several() -> None:
    pipeline = es.Pipeline("one")
    numbers = pipeline.source(es.Range(5), name="numbers")
    numbers.route(lambda n, shards: 1).process(Where(), name="where", shards=1).collect()
    with pytest.raises(es.RunFailed, match=r"chose shard 1, and there are 1 shard\(s\): only 0"):
        pipeline.run(store=None)


def test_an_ordered_sink_behind_a_route_is_refused() -> None:
    pipeline = es.Pipeline("ordered")
    numbers = pipeline.source(es.Range(5), name="numbers")
    routed = numbers.route(lambda n, shards: 0).process(Where(), name="where", shards=2)
    routed.sink(es.Collect(), ordered=True)
    with pytest.raises(GraphError, match="route before 'where' splits the stream"):
        pipeline.run(store=None)


# Rescaling.


def counting(operator: es.Operator, shards: int, route: Any = lambda n, s: n % s) -> es.Pipeline:
    pipeline = es.Pipeline("counting")
    numbers = pipeline.source(es.Range(40), name="numbers")
    numbers.route(route).process(operator, name="totals", shards=shards).collect(name="out")
    return pipeline


def test_state_by_key_behind_a_route_is_refused_when_the_shards_change(tmp_path: Path) -> None:
    store = str(tmp_path / "store")

    def run(operator: es.Operator, shards: int) -> es.RunResult:
        pipeline = es.Pipeline("counting")
        source = es.Paced(es.Range(1_000_000), rate=500)
        numbers = pipeline.source(source, name="numbers").route(lambda n, s: n % s)
        numbers.process(operator, name="totals", shards=shards).collect(name="out")
        heard = Heard()
        options: dict[str, Any] = {"store": store, "listener": heard}
        handle = pipeline.start(checkpoint=es.Coordinated(every="0.05s"), **options)
        heard.wait_for(20)
        handle.stop()
        return handle.wait()

    run(Totals(), 2)
    with pytest.raises(es.UserError, match=r"'totals' cannot go from 2 .* route\(\.\.\.\)"):
        run(Totals(), 3)


class Anywhere(Totals):
    total = es.Keyed[int](init=int, spread="split")


def test_state_behind_a_route_is_found_again_where_it_says_how() -> None:
    parts = {0: {"total": {1: 5, 3: 2}}, 1: {"total": {2: 4}}}
    shares = [Anywhere().redistribute(parts, Place("t", n, 3, 2, {}, {})) for n in range(3)]
    assert [share["total"] for share in shares] == [{1: 5}, {3: 2}, {2: 4}]


def test_a_route_by_columns_that_changes_is_noticed(tmp_path: Path) -> None:
    def counts(route: Any) -> Any:
        return make_plan(counting(Totals(), 2, route), 1).described["totals"]

    assert counts(pl.col("n") % 2) != counts(pl.col("n") % 3)
    assert counts(pl.col("n") % 2) == counts(pl.col("n") % 2)


# Against faults, over seeds.


def _routed(pipeline: es.Pipeline, world: int) -> None:
    numbers = pipeline.source(es.Range(80), name="numbers", shards=2)
    first = numbers.route(lambda n, shards: n * shards // 80).process(Where(), name="w", shards=3)
    first.route(lambda pair, shards: pair[1] % shards).map(
        lambda pair: pair, name="again", shards=2
    ).sink(OutsideSink(world), name="out")


ROUTED = Shape("routed", 3, _routed, lambda: {"out": [(n, n * 3 // 80) for n in range(80)]})
PROTOCOLS = ["aligned", "unaligned", "uncoordinated", "hmnr", "bcs"]


def check(protocol: str, seeds: range) -> None:
    recoveries = 0
    for seed in seeds:
        history = World(seed, ROUTED, Faults(), scheme_for(protocol, seed)).run()
        assert history.right, f"{protocol}, seed {seed}: {history.violations}"
        recoveries += history.recoveries
    assert recoveries


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_output_is_right_after_any_faults(protocol: str) -> None:
    check(protocol, range(6))


@pytest.mark.long
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_output_is_right_over_many_seeds(protocol: str) -> None:
    check(protocol, range(100, 300))


# The plan, inside an operator.


class Planned(es.Operator):
    def process(self, record: Any, ctx: es.Context) -> None:
        plan = ctx.plan
        ctx.emit((plan.operator, plan.shard, plan.worker, plan.workers, dict(plan.shards)))


def test_an_operator_sees_the_plan_and_its_place_and_cannot_change_it() -> None:
    pipeline = es.Pipeline("planned")
    numbers = pipeline.source(es.Range(12), name="numbers").route(lambda n, shards: n % shards)
    numbers.process(Planned(), name="planned", shards=3).collect(name="out")
    seen: defaultdict[int, set[Any]] = defaultdict(set)
    for operator, shard, worker, workers, shards in pipeline.run(workers=2).collected("out"):
        assert (operator, workers) == ("planned", 2)
        assert shards == {"numbers": 1, "planned": 3, "out": 3}
        seen[shard].add(worker)
    assert {shard: len(workers) for shard, workers in seen.items()} == {0: 1, 1: 1, 2: 1}
    view = testing.operator(Planned())
    with view as h:
        h.push([1])
        assert h.output()[0][0]
