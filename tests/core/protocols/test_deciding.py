"""Shards on their own decide when to checkpoint: by time, by records, and as their operators say."""

from typing import Any, ClassVar

import pytest

import everstream as es
from everstream.core.ids import ShardId
from everstream.core.plan import make_plan
from everstream.core.protocols.base import ShardPosition, TakeCheckpoint
from everstream.core.protocols.uncoordinated import UncoordinatedProtocol
from everstream.core.scheme import scheme_of
from everstream.errors import GraphError
from everstream.pipeline.checkpointing import in_words
from everstream.simulation.faults import Faults
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape
from everstream.simulation.world import World

CHOICES: dict[str, Any] = {
    "uncoordinated": es.Uncoordinated(every_records=7),
    "hmnr": es.CommunicationInduced(every_records=7),
    "bcs": es.CommunicationInduced(every_records=7, rule="bcs"),
}


def protocol(every_s: float | None, every_records: int | None = None) -> UncoordinatedProtocol:
    place = ShardPosition(ShardId("a", 0), (), ())
    return UncoordinatedProtocol(place, every_s, 0.0, every_records)


def taken(it: UncoordinatedProtocol, *ticks: tuple[float, int, bool | None]) -> list[float]:
    """When it took a checkpoint."""
    return [
        now_s
        for now_s, records, wish in ticks
        if any(isinstance(ask, TakeCheckpoint) for ask in it.on_tick(now_s, records, wish))
    ]


def test_a_checkpoint_is_due_after_so_many_records_and_counting_begins_again() -> None:
    it = protocol(None, 10)
    assert taken(it, (0, 0, None), (1, 9, None), (2, 10, None)) == [2]
    assert taken(it, (3, 12, None), (4, 21, None), (5, 22, None), (1e9, 22, None)) == [5]


def test_the_time_or_the_records_whichever_comes_first() -> None:
    it = protocol(5.0, 10)
    assert taken(it, (0, 0, None), (1, 10, None), (2, 10, None), (7, 11, None)) == [1, 7]


def test_an_operator_can_have_one_early_but_not_without_new_records() -> None:
    it = protocol(5.0)
    assert taken(it, (0, 3, True), (1, 4, True), (2, 4, True), (3, 4, True)) == [1]


def test_an_operator_can_postpone_one_until_the_interval_has_passed_twice() -> None:
    it = protocol(5.0)
    assert taken(it, (0, 0, False), (6, 1, False), (9, 2, False), (10, 3, False)) == [10]
    counted = protocol(None, 10)
    assert taken(counted, (0, 0, False), (1, 15, False), (2, 20, False)) == [2]
    relents = protocol(5.0)
    assert taken(relents, (0, 0, False), (6, 1, False), (7, 1, None)) == [7]


def test_the_choices_of_a_user() -> None:
    assert es.Uncoordinated().every_s == 30.0
    assert es.Uncoordinated(every_records=5).every_s is None
    assert es.Uncoordinated(every="2s", every_records=5).every_s == 2.0
    assert in_words("hmnr", None, 100) == es.CommunicationInduced(every_records=100)
    with pytest.raises(es.UserError, match="every_records=0 must be at least 1"):
        es.Uncoordinated(every_records=0)


class WhenSmall(es.Operator):
    """Collects five records and passes them on together: its state is small in between."""

    asked: ClassVar[list[int]] = []
    spread = "split"

    def process(self, record: int, ctx: es.Context) -> None:
        held = [*ctx.state.get("held", []), record]
        if len(held) == 5:
            ctx.emit_batch(held)
            held = []
        ctx.state.put("held", held)

    def on_end(self, ctx: es.Context) -> None:
        ctx.emit_batch(ctx.state.get("held", []))

    def should_checkpoint(self, ctx: es.Context) -> bool:
        size = len(ctx.state.get("held", []))
        WhenSmall.asked.append(size)
        return size == 0


def _small(pipeline: es.Pipeline, world: int) -> None:
    numbers = pipeline.source(es.Range(80), name="numbers", shards=2)
    held = numbers.key_by(lambda n: n).process(WhenSmall(), name="small", shards=2)
    held.sink(OutsideSink(world), name="out")


SMALL = Shape("small", 3, _small, lambda: {"out": list(range(80))})


def check(choice: Any, seeds: range) -> int:
    recoveries = 0
    for seed in seeds:
        history = World(seed, SMALL, Faults(), scheme_of(choice)).run()
        assert history.right, f"{choice}, seed {seed}: {history.violations}"
        recoveries += history.recoveries
    return recoveries


@pytest.mark.parametrize("name", CHOICES)
def test_what_shards_decide_is_exact_after_any_faults(name: str) -> None:
    WhenSmall.asked.clear()
    assert check(CHOICES[name], range(10))
    assert 0 in WhenSmall.asked and max(WhenSmall.asked) > 0


@pytest.mark.long
@pytest.mark.parametrize("name", CHOICES)
def test_what_shards_decide_is_exact_over_many_seeds(name: str) -> None:
    assert check(CHOICES[name], range(100, 434))


@pytest.mark.parametrize("mode", ["aligned", "unaligned", "at-least-once"])
def test_coordinated_checkpoints_refuse_an_operator_that_decides(mode: Any) -> None:
    plan = make_plan(SMALL.pipeline(0), 1)
    with pytest.raises(GraphError, match=r"'small'.*defines should_checkpoint.*the coordinator"):
        scheme_of(es.Coordinated(mode=mode)).check(plan)
    scheme_of(es.Uncoordinated()).check(plan)
    scheme_of(None).check(plan)
