"""A pipeline of the user under faults: the right ones pass, and of the wrong ones it is said why."""

import random
import re
from typing import Any

import pytest

import everstream as es
from everstream import testing
from everstream.errors import RunFailed, UserError
from everstream.pipeline.checkpointing import Checkpointing
from everstream.pipeline.keyed_state.spreading import Spread

ORDERS = {"orders": range(100)}
KILLS = testing.Faults(3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
"""Nothing but three killed workers at most."""


class Counting(es.Operator):
    """Counts per key, correctly."""

    seen = es.Keyed[Any](init=int)

    def process(self, record: int, ctx: es.Context) -> None:
        self.seen[ctx.key] += 1
        ctx.emit((ctx.key, self.seen[ctx.key]))


class Forgetful(es.Operator):
    """Counts per key in a plain attribute, which is lost in a failure."""

    spread: Spread = "key"

    def __init__(self) -> None:
        self.seen: dict[Any, int] = {}

    def process(self, record: int, ctx: es.Context) -> None:
        self.seen[ctx.key] = self.seen.get(ctx.key, 0) + 1
        ctx.emit((ctx.key, self.seen[ctx.key]))


def counts(operator: es.Operator) -> es.Pipeline:
    pipeline = es.Pipeline("counts")
    keyed = pipeline.source(es.FromList([]), name="orders").key_by(lambda order: order % 5)
    counted = keyed.process(operator, name="count", shards=2)
    return counted.map(lambda pair: pair, name="after").sink(es.Collect(), name="out")


def failure(pipeline: es.Pipeline, **options: Any) -> str:
    """Why it does not pass."""
    with pytest.raises(testing.CheckFailed) as failed:
        testing.check(pipeline, ORDERS, **options)
    return str(failed.value)


# What passes.


@pytest.mark.parametrize(
    "checkpoint",
    [None, es.Coordinated(mode="unaligned"), es.Uncoordinated(), es.CommunicationInduced()],
    ids=str,
)
def test_a_correct_operator_passes_under_every_exact_protocol(checkpoint: Checkpointing) -> None:
    report = testing.check(counts(Counting()), ORDERS, seeds=15, checkpoint=checkpoint)
    assert report.seeds == 15
    assert report.faults > 15 and report.recoveries > 5


def test_windows_late_records_and_joins_pass() -> None:
    pipeline = es.Pipeline("windows")
    timed = pipeline.source(es.FromList([]), name="orders", shards=2).event_time(
        lambda n: n - n % 7, unit="s", lateness="2s"
    )
    window = timed.key_by(lambda n: n % 3).window(es.Tumbling("10s"))
    counted = window.aggregate(n=es.count(), name="count", shards=2)
    counted.side_output("late").sink(es.Collect(), name="late")
    counted.sink(es.Collect(), name="counts")
    assert testing.check(pipeline, ORDERS, seeds=8).recoveries > 0

    joined = es.Pipeline("joined")
    sides = [
        joined.source(es.FromList([]), name=name).event_time("t", unit="s", name=f"{name}-time")
        for name in ("left", "right")
    ]
    pairs = sides[0].interval_join(sides[1], on="k", between=("-2s", "2s"), name="join", shards=2)
    pairs.sink(es.Collect(), name="pairs")
    rows = [{"k": n % 2, "t": n} for n in range(40)]
    assert testing.check(joined, {"left": rows, "right": rows}, seeds=8).recoveries > 0


def test_state_on_disk_passes() -> None:
    pipeline = es.Pipeline("on-disk")
    keyed = pipeline.source(es.FromList([]), name="orders").key_by(lambda order: order % 5)
    summed = keyed.fold(init=int, update=lambda total, n: total + n, state="disk", name="sum")
    summed.sink(es.Collect(), name="out")
    assert testing.check(pipeline, ORDERS, seeds=4).recoveries > 0


# What does not.


def test_a_forgetful_operator_is_named_and_its_schedule_is_shrunk_to_one_fault() -> None:
    pipeline = counts(Forgetful())
    told = failure(pipeline, seeds=20)
    assert "the first operator whose output differs: 'count'" in told
    assert re.search(r"shortest schedule that fails \(1 of \d+ faults\)", told), told
    schedule = told.partition("virtual seconds:\n")[2].partition("\nreplay")[0]
    assert len(schedule.splitlines()) == 1 and ("kill" in schedule or "dead" in schedule), told
    assert re.search(r"sink 'out': \d+ record\(s\) missing, \d+ too many", told)
    found = re.search(r"testing\.check\(pipeline, inputs, seeds=\[(\d+)\], only=\[(\d+)\]\)", told)
    assert found is not None, told
    seed, number = map(int, found.groups())
    again = failure(pipeline, seeds=[seed], only=[number])
    assert schedule in again and found[0] in again
    assert testing.check(pipeline, ORDERS, seeds=[seed], only=[]).faults == 0


def test_the_replay_has_the_options_that_were_given() -> None:
    told = failure(
        counts(Forgetful()),
        seeds=30,
        faults=KILLS,
        checkpoint=es.Coordinated(mode="unaligned"),
        compare=lambda outputs: sorted(outputs["out"]),
    )
    assert "faults=testing.Faults(ambushes=0, zombies=0, driver_kills=0" in told
    assert "mode='unaligned'" in told and "compare=compare" in told


def test_a_type_that_changes_after_a_failure_is_a_difference() -> None:
    class Typed(es.Operator):
        spread: Spread = "key"

        def on_start(self, ctx: es.Context) -> None:
            self.kind: type = float if len(ctx.state) else int

        def process(self, record: int, ctx: es.Context) -> None:
            ctx.state.put(ctx.key, True)
            ctx.emit(self.kind(record))

    told = failure(counts(Typed()), seeds=30, faults=KILLS)
    assert "first operator whose output differs: 'count'" in told
    assert re.search(r"missing:  \d+\n", told) and re.search(r"too many: \d+\.0\n", told)


class FirstBatchReversed(es.Operator):
    """The first batch of each generation comes out backwards."""

    repeatable = True

    def on_start(self, ctx: es.Context) -> None:
        self.first = True

    def process_batch(self, batch: Any, ctx: es.Context) -> None:
        ctx.emit_batch(list(batch)[::-1] if self.first else batch)
        self.first = False


@pytest.mark.parametrize("ordered", [True, False])
def test_the_order_counts_for_a_sink_that_promises_it(ordered: bool) -> None:
    pipeline = es.Pipeline("order")
    orders = pipeline.source(es.FromList([]), name="orders")
    turned = orders.process(FirstBatchReversed(), name="turn")
    turned.on_demand().sink(es.Collect(), name="out", ordered=ordered)
    inputs = {"orders": range(240)}
    if ordered:
        with pytest.raises(testing.CheckFailed, match="the same records in another order"):
            testing.check(pipeline, inputs, seeds=30, faults=KILLS)
    else:
        assert testing.check(pipeline, inputs, seeds=10, faults=KILLS).recoveries > 0


# What is not deterministic.


def test_an_operator_that_throws_dice_is_named() -> None:
    pipeline = es.Pipeline("dice")
    orders = pipeline.source(es.FromList([]), name="orders").map(lambda n: n, name="before")
    thrown = orders.map(lambda n: (n, random.random()), name="dice")
    thrown.map(lambda pair: pair, name="after").sink(es.Collect(), name="out")
    told = failure(pipeline, seeds=1)
    assert told.startswith("operator 'dice' is not deterministic: two runs without faults and with")


class SeededDice(es.Operator):
    """The same numbers in every run, and other ones after a failure."""

    repeatable = True

    def on_start(self, ctx: es.Context) -> None:
        self.dice = random.Random(7)

    def process(self, record: Any, ctx: es.Context) -> None:
        ctx.emit((record, self.dice.random()))


def test_an_operator_that_emits_something_else_when_it_is_replayed_is_named() -> None:
    pipeline = es.Pipeline("dice")
    orders = pipeline.source(es.FromList([]), name="orders")
    orders.process(SeededDice(), name="dice").sink(es.Collect(), name="out")
    told = failure(pipeline, seeds=30, faults=KILLS)
    assert "the first operator whose output differs: 'dice'" in told


def two_sources() -> es.Pipeline:
    pipeline = es.Pipeline("two-sources")
    both = pipeline.source(es.FromList([]), name="paid").union(
        pipeline.source(es.FromList([]), name="spent")
    )
    summed = both.key_by(lambda n: 0).fold(init=int, update=lambda sum, n: sum + n, name="sum")
    return summed.sink(es.Collect(), name="out")


def test_output_that_depends_on_the_order_of_arrival_is_found_and_can_be_compared_in_part() -> None:
    inputs = {"paid": [n * n for n in range(50)], "spent": [-3 * n for n in range(50)]}
    with pytest.raises(testing.CheckFailed, match=r"'sum' is not deterministic.*order in which"):
        testing.check(two_sources(), inputs, seeds=1)

    def last(outputs: dict[str, list[Any]]) -> Any:
        return len(outputs["out"]), outputs["out"][-1]

    assert testing.check(two_sources(), inputs, seeds=10, compare=last).seeds == 10


# Upgrades.


def upgraded(migrate: Any) -> es.Pipeline:
    class Counting(es.Operator):
        seen = es.Keyed[Any](init=lambda: [0], version=2, migrate=migrate)

        def process(self, record: int, ctx: es.Context) -> None:
            self.seen[ctx.key][0] += 1
            ctx.emit((ctx.key, self.seen[ctx.key][0]))

    return counts(Counting())


def test_an_upgrade_in_the_middle_keeps_the_output() -> None:
    changed = upgraded(lambda had, version: [had])
    assert testing.check(counts(Counting()), ORDERS, seeds=10, upgrade=changed).recoveries > 0


def test_an_upgrade_with_a_wrong_migration_is_found() -> None:
    told = failure(counts(Counting()), seeds=10, upgrade=upgraded(lambda had, version: [0]))
    assert "the first operator whose output differs: 'count'" in told
    assert "upgrade=upgrade" in told
    assert re.search(r"\(0 of \d+ faults\).*\n  none: the upgrade is enough\n", told), told


# Mistakes.


@pytest.mark.parametrize("seeds", [0, []])
def test_a_check_without_seeds_is_refused(seeds: Any) -> None:
    with pytest.raises(UserError, match="give a number from 1 up"):
        testing.check(counts(Counting()), ORDERS, seeds=seeds)


def test_inputs_name_exactly_the_sources() -> None:
    with pytest.raises(UserError, match="inputs has no 'orders': give the records of each source"):
        testing.check(counts(Counting()), {})
    with pytest.raises(UserError, match="the pipeline has no source 'order'"):
        testing.check(counts(Counting()), {**ORDERS, "order": []})


def test_a_pipeline_that_fails_without_faults_raises_its_own_error() -> None:
    pipeline = es.Pipeline("division")
    orders = pipeline.source(es.FromList([]), name="orders")
    orders.map(lambda n: 1 // n, name="divide").sink(es.Collect(), name="out")
    with pytest.raises(RunFailed, match=r"divide.*ZeroDivisionError"):
        testing.check(pipeline, ORDERS)
