"""`stream.batch(...)`: by count, by time, or whichever is first; nothing is lost while it waits."""

from typing import Any

import pytest

import everstream as es
from everstream.pipeline.operator import Context
from everstream.pipeline.operators.batching import Batches
from everstream.pipeline.stream import Pipeline
from everstream.state.backends.memory import MemoryBackend
from everstream.state.backends.protocol import StateBackend
from tests.pipeline.sim import Sink, simulate


class Clock:
    """A batch operator under a clock that stands where it is put."""

    def __init__(
        self,
        count: int | None,
        within_s: float | None,
        state: StateBackend[Any, Any] | None = None,
        now_s: float = 100.0,
    ) -> None:
        self.now_s = now_s
        self.state: StateBackend[Any, Any] = state if state is not None else MemoryBackend()
        self.ctx = Context("b", 0, 1, self.state, clock_s=lambda: self.now_s)
        self.batches = Batches(count, within_s)
        self.batches.on_start(self.ctx)

    def feed(self, at_s: float, *records: int) -> list[Any]:
        """What comes out by then, if these come in then."""
        self.now_s = at_s
        if self.ctx.wanted_at_s <= at_s:
            self.ctx.wanted_at_s = float("inf")
            self.batches.on_wake(at_s, self.ctx)
        if records:
            self.batches.process_batch(list(records), self.ctx)
        return self.out()

    def out(self) -> list[Any]:
        return [record for _, batch in self.ctx.take_emitted() for record in batch]


def test_by_count_batches_are_full_and_the_last_may_be_smaller() -> None:
    it = Clock(3, None)
    assert it.feed(100, 0, 1) == []
    assert it.feed(100, 2, 3, 4, 5, 6) == [[0, 1, 2], [3, 4, 5]]
    assert it.ctx.wanted_at_s == float("inf"), "no clock without within="
    it.batches.on_end(it.ctx)
    assert it.out() == [[6]]


def test_by_time_what_came_within_it_leaves_together_and_nothing_leaves_if_nothing_came() -> None:
    it = Clock(None, 1.0)
    assert it.feed(100.0, 1, 2) == []
    assert it.feed(100.9, 3) == []
    assert it.feed(101.0) == [[1, 2, 3]]
    assert it.ctx.wanted_at_s == float("inf"), "an empty batch is not waited for"
    assert it.feed(105.0) == []
    assert it.feed(106.0, 4) == []
    assert it.ctx.wanted_at_s == 107.0, "from when the first record came"
    assert it.feed(107.5) == [[4]]


def test_whichever_comes_first() -> None:
    it = Clock(3, 1.0)
    assert it.feed(100.0, 1) == []
    assert it.feed(100.5, 2, 3, 4) == [[1, 2, 3]]
    assert it.feed(101.0) == [], "the one that is left has come half a second ago"
    assert it.feed(101.5) == [[4]]


def test_what_waits_and_since_when_is_saved() -> None:
    it = Clock(10, 1.0)
    it.feed(100.0, 1, 2)
    it.batches.before_checkpoint(it.ctx)
    again = Clock(10, 1.0, it.state, now_s=100.7)
    assert again.ctx.wanted_at_s == 101.0
    assert again.feed(101.0) == [[1, 2]]
    again.batches.before_checkpoint(again.ctx)
    assert Clock(10, 1.0, it.state, now_s=102.0).feed(110.0) == [], "nothing twice"


def test_a_clock_that_was_set_back_makes_nobody_wait_longer() -> None:
    it = Clock(10, 1.0)
    it.feed(5000.0, 1)
    it.batches.before_checkpoint(it.ctx)
    assert Clock(10, 1.0, it.state, now_s=100.0).ctx.wanted_at_s == 101.0


def test_tuning_lets_go_of_what_has_waited_enough() -> None:
    it = Clock(10, None)
    it.feed(100.0, *range(7))
    it.batches.on_tune({"batch": "3"}, it.ctx)
    assert it.out() == [[0, 1, 2], [3, 4, 5]]
    it.batches.on_tune({"batch": "off", "interval": "500ms"}, it.ctx)
    assert it.ctx.wanted_at_s == pytest.approx(100.5)
    assert it.feed(101.0) == [[6]]
    it.feed(102.0, 8, 9)
    it.batches.on_tune({"batch": "off", "interval": "off"}, it.ctx)
    assert it.out() == [[8], [9]], "with nothing to wait for, one by one"
    it.batches.on_tune({"batch": "written", "interval": "written"}, it.ctx)
    assert it.feed(103.0, *range(10)) == [list(range(10))]


def test_a_batch_is_as_old_as_what_is_in_it() -> None:
    it = Clock(4, None)
    it.ctx.moment.born_s = 10.0
    it.feed(100.0, 1, 2)
    it.ctx.moment.born_s = 30.0
    it.feed(101.0, 3, 4, 5)
    assert it.ctx.moment.born_s == pytest.approx(20.0)
    it.batches.on_end(it.ctx)
    assert it.ctx.moment.born_s == pytest.approx(30.0)


@pytest.mark.parametrize(
    "wrong", [{}, {"count": 0}, {"within": 0}, {"within": -1}, {"count": -3, "within": 1}]
)
def test_batches_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(es.UserError, match="batch"):
        es.Pipeline("wrong").source(es.Range(3)).batch(**wrong)


@pytest.mark.parametrize("count, within", [(3, None), (None, 0.02), (5, 0.01)])
@pytest.mark.parametrize("seed", range(6))
def test_no_record_is_lost_or_doubled_whatever_fails(
    seed: int, count: int | None, within: float | None
) -> None:
    def build(pipeline: Pipeline, sink: Sink) -> None:
        numbers = pipeline.source(es.Range(80, batch=4), name="numbers", shards=2)
        batches = numbers.on_demand().batch(count=count, within=within, name="batch", shards=2)
        sizes = batches.filter(lambda batch: 0 < len(batch) <= (count or 80), name="sizes")
        sink(sizes.flat_map(list, name="singly"), "out")

    simulate(build, {"out": list(range(80))}, seed)
