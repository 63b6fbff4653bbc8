"""Which records are late follows from the records before them, however batches are cut."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everstream as es
from everstream.connectors.generate.sources import FromList
from everstream.core.orders import Outcome
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.stream import Pipeline, Stream
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape
from tests.engine.microbatch.world import LocalWorld
from tests.pipeline.sim import Sink, rows_source, simulate

QUICK = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
SIZE, LATENESS = 100, 50


class Twice(Operator):
    """Gives each record twice; where a batch begins and ends shows nowhere."""

    def process(self, record: dict[str, Any], ctx: Context) -> None:
        ctx.emit(record)
        ctx.emit(record)


def odd(row: dict[str, Any]) -> bool:
    if row["n"] % 5 == 0:
        raise ValueError("a record that cannot be read")
    return bool(row["n"] % 2)


def nothing(timed: Stream) -> Stream:
    return timed


def whole(timed: Stream) -> Stream:
    return timed.with_columns(v=pl.col("n") * 2).map(lambda row: row)


def filtered(timed: Stream) -> Stream:
    return timed.filter(pl.col("n") % 3 > 0).filter(lambda row: row["n"] % 2 > 0)


def branched(timed: Stream) -> Stream:
    _, rest = timed.branch(pl.col("n") % 3 == 0)
    return rest.branch(lambda row: row["n"] % 2 == 0)[1]


def skipping(timed: Stream) -> Stream:
    return timed.filter(odd, on_error="skip")


def doubled(timed: Stream) -> Stream:
    return timed.process(Twice())


def flattened(timed: Stream) -> Stream:
    return timed.flat_map(lambda row: [row] * (row["n"] % 3))


BETWEEN: dict[Callable[[Stream], Stream], Callable[[int], int]] = {
    nothing: lambda n: 1,
    whole: lambda n: 1,
    filtered: lambda n: int(n % 3 > 0 and n % 2 > 0),
    branched: lambda n: int(n % 3 > 0 and n % 2 > 0),
    skipping: lambda n: int(n % 2 > 0 and n % 5 > 0),
    doubled: lambda n: 2,
    flattened: lambda n: n % 3,
}
"""What stands between event_time and the window, and how often record n comes through it."""


def judged(times: list[int], sources: int, length: int) -> tuple[list[int], list[int]]:
    """By hand: the numbers of the records that are in time, and of those that are late.

    Shard s of the source has the records of every block whose number leaves s.
    """
    greatest: dict[int, int] = {}
    in_time, late = [], []
    for n, time in enumerate(times):
        shard = n // length % sources
        watermark = greatest.get(shard, -(10**9)) - LATENESS
        window_end = time - time % SIZE + SIZE
        (late if window_end <= watermark else in_time).append(n)
        greatest[shard] = max(greatest.get(shard, time), time)
    return in_time, late


disorder = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 400)), min_size=1, max_size=60
).map(
    lambda steps: [
        sum(step for step, _ in steps[: i + 1]) - back for i, (_, back) in enumerate(steps)
    ]
)


def build_in(
    times: list[int], batch: int, between: Callable[[Stream], Stream], sources: int = 1
) -> Callable[[Pipeline, Sink], None]:
    frame = pl.DataFrame(
        {"n": range(len(times)), "t": times}, schema={"n": pl.Int64, "t": pl.Int64}
    )

    def build(pipeline: Pipeline, sink: Sink) -> None:
        source = pipeline.source(rows_source(frame, batch), name="rows", shards=sources)
        timed = source.event_time("t", unit="us", lateness=LATENESS / 1e6)
        windows = between(timed).window(es.Tumbling(SIZE / 1e6)).aggregate(n=es.count())
        sink(windows, "out")
        sink(windows.side_output("late").map(lambda row: (row["n"],)), "late")

    return build


def expected_of(
    times: list[int], often: Callable[[int], int], sources: int = 1, length: int = 1
) -> dict[str, list[Any]]:
    in_time, late = judged(times, sources, length)
    windows: dict[int, int] = {}
    for n in in_time:
        if often(n):
            start = times[n] - times[n] % SIZE
            windows[start] = windows.get(start, 0) + often(n)
    return {
        "out": [(start, start + SIZE, count) for start, count in windows.items()],
        "late": [(n,) for n in late for _ in range(often(n))],
    }


@pytest.mark.parametrize("between", BETWEEN, ids=lambda between: between.__name__)
@QUICK
@given(disorder, st.integers(1, 70), st.integers(0, 1000))
def test_the_late_records_are_the_same_however_batches_are_cut_and_whatever_is_killed(
    between: Callable[[Stream], Stream], times: list[int], batch: int, seed: int
) -> None:
    simulate(build_in(times, batch, between), expected_of(times, BETWEEN[between]), seed)


@QUICK
@given(disorder, st.integers(1, 20), st.integers(1, 3), st.integers(0, 1000))
def test_each_source_shard_is_judged_by_its_own_records(
    times: list[int], batch: int, sources: int, seed: int
) -> None:
    expected = expected_of(times, BETWEEN[nothing], sources, batch)
    simulate(build_in(times, batch, nothing, sources), expected, seed)


@QUICK
@given(disorder, st.integers(1, 70), st.integers(0, 1000))
def test_the_late_records_are_the_same_in_micro_batches(
    times: list[int], batch: int, seed: int
) -> None:
    def build(pipeline: Pipeline, world: int) -> None:
        build_in(times, batch, filtered)(
            pipeline, lambda stream, name: stream.map(tuple_of).sink(OutsideSink(world), name=name)
        )

    shape = Shape("late", 2, build, lambda: expected_of(times, BETWEEN[filtered]))
    world = LocalWorld(seed, shape)
    assert world.run() is Outcome.FINISHED and not world.safety.violations, f"seed {seed}"


def tuple_of(row: Any) -> tuple[Any, ...]:
    return tuple(row.values()) if isinstance(row, dict) else row


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 7])
def test_the_worked_example_of_the_documentation_holds(batch: int) -> None:
    times = [2, 11, 9, 16, 8, 27, 14]
    rows = [{"at": time} for time in times]

    def build(pipeline: Pipeline, sink: Sink) -> None:
        timed = pipeline.source(FromList(rows, batch=batch)).event_time(
            "at", unit="s", lateness="5s"
        )
        windows = timed.window(es.Tumbling("10s")).aggregate(n=es.count())
        sink(windows, "out")
        sink(windows.side_output("late"), "late")

    simulate(build, {"out": [(0, 10, 2), (10, 20, 2), (20, 30, 1)], "late": [(8,), (14,)]})
