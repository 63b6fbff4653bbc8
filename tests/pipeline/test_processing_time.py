"""Windows of processing time: by the clock that is passed in, with nothing lost in a failure."""

from typing import Any

import polars as pl

import everstream as es
from everstream.pipeline.aggregation.aggregates import Aggregates
from everstream.pipeline.aggregation.local_parts import LocalParts
from everstream.pipeline.event_time.window_aggregates import ProcessingTimeAggregates
from everstream.pipeline.event_time.windows import Sliding
from everstream.pipeline.keys import Keying
from everstream.pipeline.operator import Context
from everstream.pipeline.stream import Pipeline
from everstream.state.backends.memory import MemoryBackend
from everstream.state.backends.protocol import StateBackend
from tests.pipeline.sim import Sink, Total, rows_source, simulate


class Clock:
    """Windows under a clock that stands where it is put."""

    def __init__(
        self,
        window: Sliding,
        state: StateBackend[Any, Any] | None = None,
        before: dict[str, Any] | None = None,
    ) -> None:
        self.now_s = 1000.0
        aggregates = Aggregates({"n": es.count()})
        self.local = LocalParts(Keying("k"), aggregates, window)
        self.windows = ProcessingTimeAggregates(aggregates, window)
        self.ctx = Context("w", 0, 1, state or MemoryBackend(), clock_s=lambda: self.now_s)
        self.windows.goes_on_from(before)
        self.windows.on_start(self.ctx)

    def feed(self, at_s: float, *keys: str) -> list[Any]:
        """What comes out when these come in, after the timer has been called if it was due."""
        self.now_s = at_s
        out = []
        if self.ctx.wanted_at_s <= at_s:
            self.ctx.wanted_at_s = float("inf")
            self.windows.on_wake(at_s, self.ctx)
            out += self._emitted()
        if keys:
            self.local.process_batch(pl.DataFrame({"k": keys}), self.ctx)
            for _, parts in self.ctx.take_emitted():
                self.windows.process_batch(parts, self.ctx)
            out += self._emitted()
        return out

    def end(self) -> list[Any]:
        self.windows.on_watermark(es.END_OF_TIME, self.ctx)
        return self._emitted()

    def _emitted(self) -> list[Any]:
        return [
            (row["k"], row["window_start"].timestamp(), row["window_end"].timestamp(), row["n"])
            for _, batch in self.ctx.take_emitted()
            for row in pl.DataFrame(batch).rows(named=True)
        ]


def test_a_window_is_emitted_when_the_clock_passes_its_end() -> None:
    it = Clock(es.Tumbling("10s"))
    assert it.feed(1001, "a", "b", "a") == []
    assert it.ctx.wanted_at_s == 1010
    assert it.feed(1009.9, "a") == []
    assert sorted(it.feed(1010.5, "b")) == [("a", 1000, 1010, 3), ("b", 1000, 1010, 1)]
    assert it.ctx.wanted_at_s == 1020
    assert it.feed(1500) == [("b", 1010, 1020, 1)]


def test_sliding_windows_and_what_is_left_at_the_end() -> None:
    it = Clock(es.Sliding("10s", every="5s"))
    it.feed(1001, "a")
    assert it.feed(1006, "a") == [("a", 995, 1005, 1)]
    assert it.end() == [("a", 1000, 1010, 2), ("a", 1005, 1015, 1)]


def test_after_a_restart_timers_are_asked_for_again_and_windows_are_emitted_once() -> None:
    it = Clock(es.Tumbling("10s"))
    it.feed(1001, "a")
    it.feed(1011, "a")
    again = Clock(es.Tumbling("10s"), it.ctx.state)
    assert again.ctx.wanted_at_s == 1020
    assert again.feed(1000, "b") == [], "this machine's clock is behind"
    assert sorted(again.feed(1021)) == [("a", 1010, 1020, 1), ("b", 1010, 1020, 1)]


def test_every_record_is_in_exactly_one_tumbling_window_whatever_fails() -> None:
    frame = pl.DataFrame({"k": [f"k{n % 3}" for n in range(150)]})

    def build(pipeline: Pipeline, sink: Sink) -> None:
        keyed = pipeline.source(rows_source(frame, 3), shards=2).key_by("k")
        windows = keyed.window(es.Tumbling("20ms"), time="processing")
        counts = windows.aggregate(n=es.count(), shards=2)
        sink(counts.on_demand().process(Total(), shards=1), "out")

    for seed in range(20):
        simulate(build, {"out": [("k0", 50), ("k1", 50), ("k2", 50)]}, seed)


def test_windows_that_are_open_when_the_rule_changes_are_finished_under_the_old_one() -> None:
    old = Clock(es.Tumbling("10s"))
    assert old.feed(1001, "a", "b") == []
    before = {"operator": "window", "aggregates": ["n=count"], "window": "10 s every 10 s"}
    new = Clock(es.Tumbling("4s"), old.ctx.state, before)
    assert new.ctx.wanted_at_s == 1010
    assert new.feed(1002, "a") == []
    assert new.ctx.wanted_at_s == 1004
    assert new.feed(1005, "b") == [("a", 1000, 1004, 1)]
    # Again after a failure: what was moved is not moved once more.
    new = Clock(es.Tumbling("4s"), new.ctx.state, before)
    assert sorted(new.feed(1011)) == [
        *(("a", 1000, 1010, 1), ("b", 1000, 1010, 1), ("b", 1004, 1008, 1))
    ]
    assert new.end() == []


def test_rows_of_many_batches_in_one_window_are_joined() -> None:
    it = Clock(es.Tumbling("10s"))
    for _ in range(70):
        it.feed(1001, "a", "b")
    assert sorted(it.feed(1010)) == [("a", 1000, 1010, 70), ("b", 1000, 1010, 70)]
