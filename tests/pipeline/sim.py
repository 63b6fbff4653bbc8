"""Runs small pipelines in the simulator, with or without faults, and compares their output."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import polars as pl

from everstream.connectors.generate.sources import FromFunction
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.stream import Pipeline, Stream
from everstream.simulation.faults import NO_FAULTS, Faults
from everstream.simulation.happenings import History
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape
from everstream.simulation.world import World

Sink = Callable[[Stream, str], None]


def as_tuple(value: Any) -> Any:
    """A row, or what is in it, as something that can be counted; floats to nine digits."""
    if isinstance(value, dict):
        return tuple(as_tuple(part) for part in value.values())
    if isinstance(value, list | tuple):
        return tuple(map(as_tuple, value))
    return round(value, 9) if isinstance(value, float) else value


def rows(frame: pl.DataFrame) -> list[Any]:
    return [as_tuple(row) for row in frame.rows(named=True)]


def simulate(
    build: Callable[[Pipeline, Sink], None],
    expected: dict[str, list[Any]],
    seed: int = 0,
    faults: bool | Faults = True,
    workers: int = 3,
) -> History:
    """Run in virtual time; what each named sink shows must be exactly what is expected of it."""

    def build_in(pipeline: Pipeline, world: int) -> None:
        def sink(stream: Stream, name: str) -> None:
            stream.map(as_tuple, name=f"{name}-rows").sink(OutsideSink(world), name=name)

        build(pipeline, sink)

    shape = Shape("test", workers, build_in, lambda: expected)
    chosen = faults if isinstance(faults, Faults) else Faults() if faults else NO_FAULTS
    world = World(seed, shape, chosen)
    history = world.run()
    if not history.right:
        for name, records in expected.items():
            shown, wanted = world.outside.counts(name), Counter(records)
            print(name, "has too much:", [*(shown - wanted)][:9], "lacks:", [*(wanted - shown)][:9])
    assert history.right, (
        f"seed {seed}: {history.outcome} {history.violations[:2]} {history.notes[:3]}"
    )
    return history


def rows_source(frame: pl.DataFrame, batch: int) -> FromFunction:
    """The rows of a frame, as a source of DataFrames."""

    def make(start: int, stop: int) -> pl.DataFrame:
        return frame[start:stop]

    return FromFunction(make, len(frame), batch)


class Total(Operator):
    """Sums `n` by `k` over all that comes, and gives the sums at the end."""

    def process(self, record: Any, ctx: Context) -> None:
        ctx.state.put(record["k"], ctx.state.get(record["k"], 0) + record["n"])

    def on_end(self, ctx: Context) -> None:
        for key, total in ctx.state.items():
            ctx.emit((key, total))
