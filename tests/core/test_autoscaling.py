"""A run that scales itself follows its load, and stays calm."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

import everstream as es
from everstream.core.autoscaling import Scaler, changeable
from everstream.core.ids import ShardId
from everstream.core.measuring import Meter
from everstream.core.plan import Plan, make_plan, rescaled, shard_counts

STEP_S = 0.5
PAUSE_S = 0.5
"""So long everything stands still when shards are changed."""


def counting(shards: int = 1) -> Plan:
    pipeline = es.Pipeline("waves")
    numbers = pipeline.source(es.Range(10), name="numbers")
    counted = numbers.key_by(lambda n: n).fold(int, lambda c, _: c + 1, name="count", shards=shards)
    counted.sink(es.Collect(), name="out")
    return make_plan(pipeline, 4)


@dataclass
class Modelled:
    """A queue in front of shards that each work off so much a second."""

    settings: es.AutoScale
    per_s: float = 1_000.0
    plan: Plan = field(default_factory=counting)
    backlog: float = 0.0
    worst_backlog: float = 0.0
    changes: list[tuple[float, int]] = field(default_factory=list)

    @property
    def shards(self) -> int:
        return shard_counts(self.plan)["count"]

    def run(self, load: Callable[[float], float], until_s: float) -> None:
        scaler, busy_s, now_s = Scaler(self.settings), 0.0, 0.0
        while now_s < until_s:
            now_s += STEP_S
            arrived = self.backlog + load(now_s) * STEP_S
            done = min(arrived, self.shards * self.per_s * STEP_S)
            self.backlog = arrived - done
            self.worst_backlog = max(self.worst_backlog, self.backlog)
            busy_s += done / self.per_s / self.shards
            chain = self.plan.chain_of["count"]
            meters = {ShardId(chain, n): Meter(busy_s=busy_s) for n in range(self.shards)}
            wanted = scaler.look(self.plan, meters, now_s)
            if wanted:
                self.plan = rescaled(self.plan, {**shard_counts(self.plan), **wanted}, 128)
                self.changes.append((now_s, self.shards))
                self.backlog += load(now_s) * PAUSE_S
                now_s, busy_s = now_s + PAUSE_S, 0.0
                scaler.changed(now_s)


def test_a_steady_load_gets_the_shards_it_needs_and_then_nothing_changes() -> None:
    model = Modelled(es.AutoScale(max=8))
    model.run(lambda _: 3_300, 1_800)
    assert model.shards == math.ceil(3.3 / 0.7 - 0.1)
    assert len(model.changes) <= 5
    assert model.backlog < 100


def test_a_wave_is_followed_up_and_down_without_a_flutter() -> None:
    model = Modelled(es.AutoScale(max=8))
    model.run(lambda s: 2_000 + 1_800 * math.sin(2 * math.pi * s / 1_200), 6_000)
    sizes = [shards for _, shards in model.changes]
    turns = sum((b > a) != (c > b) for a, b, c in zip(sizes, sizes[1:], sizes[2:], strict=False))
    assert max(sizes) >= 5
    assert min(sizes) <= 2
    assert turns <= 12, f"ten half waves have ten turns: {model.changes}"


def test_a_spike_that_is_shorter_than_the_patience_changes_nothing() -> None:
    model = Modelled(es.AutoScale(max=8), plan=counting(2))
    model.run(lambda s: 2_500 if 100 <= s < 103 else 1_200, 600)
    assert model.changes == []


def test_the_bounds_hold_whatever_the_load_is() -> None:
    model = Modelled(es.AutoScale(min=2, max=3), plan=counting(2))
    model.run(lambda s: 3_500 if s < 300 else 0, 900)
    assert {shards for _, shards in model.changes} == {2, 3}


def test_changes_are_apart_as_long_as_asked_for() -> None:
    model = Modelled(es.AutoScale(max=8, calm="2m"))
    model.run(lambda _: 5_000, 1_800)
    times = [at_s for at_s, _ in model.changes]
    assert all(b - a >= 120 for a, b in pairwise(times))


def test_a_process_that_counts_anew_is_not_taken_for_one_that_rests() -> None:
    scaler, plan = Scaler(es.AutoScale(down_after="1s", up_after="1s")), counting(4)
    shards = [ShardId("count", n) for n in range(4)]
    for now_s, busy_s in enumerate((50.0, 51.0, 52.0, 0.0)):
        meters = {shard: Meter(busy_s=busy_s) for shard in shards}
        assert scaler.look(plan, meters, float(now_s)) in ({}, {"count": 6, "out": 6})


def test_sources_ordered_sinks_and_receivers_of_everything_keep_their_shards() -> None:
    pipeline = es.Pipeline("fixed")
    numbers = pipeline.source(es.Range(10), name="numbers")
    numbers.broadcast().map(lambda n: n, name="copy", shards=2).sink(es.Collect(), name="copies")
    farm = numbers.on_demand().map(lambda n: n, name="work", shards=2)
    farm.on_demand().sink(es.Collect(), name="ordered", ordered=True)
    plan = make_plan(pipeline, 2)
    assert changeable(plan) == [("work",)]


def test_an_operator_that_shares_the_only_shard_of_its_source_gets_its_own() -> None:
    assert changeable(counting()) == [("count", "out")]


@pytest.mark.parametrize("text", ["8", "0-3", "4-2", "1-8@2", "a-b"])
def test_what_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(es.UserError):
        es.AutoScale.parse(text)
    assert es.AutoScale.parse("2-6@0.5") == es.AutoScale(2, 6, 0.5)
