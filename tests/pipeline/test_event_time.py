"""Event time on its way through whole pipelines, with faults."""

import math
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream.connectors.generate.sources import FromList
from everstream.pipeline.stream import Pipeline
from everstream.simulation.faults import Faults
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape
from everstream.simulation.world import World
from tests.pipeline.sim import Sink, rows_source, simulate
from tests.runtime.workbench import bench


class Watch(es.Operator):
    """Passes records on, and fails if its time ever stands still or goes back."""

    def process_batch(self, batch: Any, ctx: es.Context) -> None:
        ctx.emit_batch(batch)

    def on_watermark(self, watermark: int, ctx: es.Context) -> None:
        assert watermark > ctx.state.get("last", es.NO_WATERMARK), "time has gone back"
        ctx.state.put("last", watermark)
        ctx.state.put("heard", ctx.state.get("heard", 0) + 1)

    def on_end(self, ctx: es.Context) -> None:
        assert ctx.watermark == es.END_OF_TIME
        assert ctx.state.get("heard", 0) > 1, "no time has come this way"


@pytest.mark.parametrize("seed", range(10))
def test_time_never_goes_back_on_any_edge_whatever_fails(seed: int) -> None:
    frame = pl.DataFrame({"t": [n * 10 - n * 7 % 50 for n in range(100)]})

    def build(pipeline: Pipeline, sink: Sink) -> None:
        timed = pipeline.source(rows_source(frame, 5), shards=2).event_time("t", unit="us")
        farm = timed.on_demand().process(Watch(), name="farm", shards=3)
        keyed = farm.key_by("t").process(Watch(), name="keyed", shards=2)
        sink(keyed.broadcast().process(Watch(), name="all", shards=2), "out")

    simulate(build, {"out": [(t,) for t in frame["t"] for _ in range(2)]}, seed)


@pytest.mark.parametrize("seed", range(10))
def test_an_ordered_sink_keeps_the_order_of_a_stream_with_event_time(seed: int) -> None:
    def build(pipeline: Pipeline, world: int) -> None:
        timed = pipeline.source(FromList(list(range(60)), batch=2)).event_time(
            lambda n: n, unit="us"
        )
        farm = timed.on_demand().filter(lambda n: n % 5 != 0, name="work", shards=3)
        farm.on_demand().sink(OutsideSink(world), name="out", ordered=True)

    expected = {"out": [n for n in range(60) if n % 5]}
    shape = Shape("ordered", 3, build, lambda: expected, ordered=True)
    history = World(seed, shape, Faults()).run()
    assert history.right, history.violations


def test_a_record_without_a_time_is_left_out_alone_if_errors_are_skipped() -> None:
    frame = pl.DataFrame({"k": ["a", "a", "b"], "t": [1, None, 3]})

    def build(pipeline: Pipeline, sink: Sink) -> None:
        timed = pipeline.source(rows_source(frame, 3)).event_time("t", unit="us")
        windows = timed.key_by("k").window(es.Tumbling("1s"))
        sink(windows.aggregate(n=es.count(), on_error="skip"), "out")

    simulate(build, {"out": [("a", 0, 1_000_000, 1), ("b", 0, 1_000_000, 1)]})


class Reminder(es.Operator):
    """Asks for a timer that is due long after the input has ended, and keeps what came."""

    def on_start(self, ctx: es.Context) -> None:
        ctx.wake_at(ctx.now_s + 1e6)

    def process(self, record: Any, ctx: es.Context) -> None:
        ctx.state.put("held", [*ctx.state.get("held", []), record])
        ctx.wake_at(ctx.now_s + 1e6)

    def on_wake(self, now_s: float, ctx: es.Context) -> None:
        ctx.emit("timer")

    def on_watermark(self, watermark: int, ctx: es.Context) -> None:
        if watermark == es.END_OF_TIME:
            ctx.emit("end of time")

    def on_end(self, ctx: es.Context) -> None:
        for record in ctx.state.get("held", []):
            ctx.emit(record)
        ctx.wake_at(ctx.now_s)


@pytest.mark.parametrize("seed", range(5))
def test_the_end_of_the_input_fires_event_time_and_drops_timers_of_processing_time(
    seed: int,
) -> None:
    def build(pipeline: Pipeline, sink: Sink) -> None:
        numbers = pipeline.source(FromList(list(range(20)), batch=2))
        timed = numbers.event_time(lambda n: n, unit="s")
        sink(timed.process(Reminder()), "out")

    history = simulate(build, {"out": ["end of time", *range(20)]}, seed)
    assert history.virtual_s < 1e5, "the run waited for a timer"


def test_a_timer_that_is_due_when_the_input_has_ended_is_not_called() -> None:
    called: list[float] = []

    class Counting(Reminder):
        def on_wake(self, now_s: float, ctx: es.Context) -> None:
            called.append(now_s)

    it = bench(lambda stream: stream.process(Counting()), items=[1, 2])
    chain = it.runner.chain
    chain.finish()
    assert chain.timer_at_s == math.inf
    chain.call_timers(math.inf)
    assert not called
