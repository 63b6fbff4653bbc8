"""Records per second of built-in operators on one core, beside Polars on all records at once.

An operator gets batches and watermarks as a shard gives them, without a run around it. Polars is the closest
built-in: it has all records in memory and keeps no state, so it shows what of the time is the work itself.
What comes out is compared. Times are those of the processor, of all threads together.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median_high
from typing import Any, TypeAlias

import polars as pl

from everstream.errors import RunFailed
from everstream.pipeline.aggregation.aggregates import Aggregates, count, max, sum
from everstream.pipeline.aggregation.local_parts import LocalParts, keyed_by_columns
from everstream.pipeline.aggregation.running_functions import RunningFunctions
from everstream.pipeline.aggregation.window_functions import cumulative, lag
from everstream.pipeline.event_time.as_of_join import AsOfJoin
from everstream.pipeline.event_time.outer import LEFT, RIGHT
from everstream.pipeline.event_time.window_aggregates import PaneAggregates
from everstream.pipeline.event_time.window_rows import WindowTop
from everstream.pipeline.event_time.windows import ONCE, Tumbling
from everstream.pipeline.keys import Keying
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.operators.deduplicate import Deduplicate
from everstream.pipeline.times import END_OF_TIME, TimeOf
from everstream.state.backends.memory import MemoryBackend
from everstream_lab.bench.report import Figure, Progress, at_least

RECORDS, BATCH, KEYS = 1_000_000, 16_384, 10_000
WINDOW_US = 200_000
"""Of about twelve batches: a record is a microsecond after the one before it."""
TIME = TimeOf("t", "us")
WINDOW = Tumbling(WINDOW_US / 1e6)
VERSIONS = 50_000
Rows: TypeAlias = Sequence[pl.DataFrame]


def numbers(total: int = RECORDS) -> pl.DataFrame:
    rows = pl.select(t=pl.int_range(total, dtype=pl.Int64))
    return rows.with_columns(k=pl.col("t") * 7919 % KEYS, x=pl.col("t") * 104_729 % 1_000_003)


def batches(frame: pl.DataFrame) -> list[pl.DataFrame]:
    return [frame[start : start + BATCH] for start in range(0, len(frame), BATCH)]


def _context(keying: Keying | None = None) -> Context:
    return Context("measured", 0, 1, MemoryBackend(), keying)


def _emitted(ctx: Context) -> list[pl.DataFrame]:
    return [batch for _, batch in ctx.take_emitted() if isinstance(batch, pl.DataFrame)]


def _watermark(operator: Operator, ctx: Context, watermark: int) -> list[pl.DataFrame]:
    ctx.watermark = watermark
    operator.on_watermark(watermark, ctx)
    return _emitted(ctx)


def driven(operator: Operator, rows: Iterable[pl.DataFrame], ctx: Context) -> list[pl.DataFrame]:
    """What an operator emits for these batches, with a watermark after each."""
    operator.on_start(ctx)
    out: list[pl.DataFrame] = []
    for batch in rows:
        operator.process_batch(batch, ctx)
        out += _emitted(ctx)
        out += _watermark(operator, ctx, batch["t"][-1])
    out += _watermark(operator, ctx, END_OF_TIME)
    operator.on_end(ctx)
    return [*out, *_emitted(ctx)]


def _deduplicated(rows: Rows) -> list[pl.DataFrame]:
    return driven(Deduplicate(["k"], WINDOW_US, TIME), rows, _context())


def _best(rows: Rows) -> list[pl.DataFrame]:
    top = WindowTop([pl.col("k")], TIME, WINDOW, 3, ["x"], [False])
    return driven(top, rows, _context())


def _counted(rows: Rows) -> list[pl.DataFrame]:
    aggregates, keying = Aggregates({"n": count(), "high": max("x")}), Keying("k")
    local = LocalParts(keying, aggregates, WINDOW, TIME, 0)
    panes = PaneAggregates(aggregates, TIME.unit, WINDOW, ONCE)
    here = _context(keying)
    there = _context(keyed_by_columns([]))
    local.on_start(here)
    panes.on_start(there)
    out: list[pl.DataFrame] = []
    for batch in rows:
        local.process_batch(batch, here)
        for parts in _emitted(here):
            panes.process_batch(parts, there)
        here.watermark = batch["t"][-1]
        out += _watermark(panes, there, batch["t"][-1])
    return [*out, *_watermark(panes, there, END_OF_TIME)]


def _running(rows: Rows) -> list[pl.DataFrame]:
    functions = {"before": lag("x"), "total": cumulative(sum("x"))}
    return driven(RunningFunctions(pl.col("k"), functions), rows, _context(Keying("k")))


def _versions() -> pl.DataFrame:
    rows = pl.select(t=pl.int_range(VERSIONS, dtype=pl.Int64) * (RECORDS // VERSIONS))
    return rows.with_columns(k=pl.col("t") * 31 % KEYS, price=pl.col("t") % 997)


def _joined(rows: Rows) -> list[pl.DataFrame]:
    versions = _versions()
    join = AsOfJoin({LEFT: ["k"], RIGHT: ["k"]}, {LEFT: TIME, RIGHT: TIME})
    ctx, out = _context(), []
    join.on_start(ctx)
    for batch in rows:
        first, last = batch["t"][0], batch["t"][-1]
        for side, some in (
            (RIGHT, versions.filter(pl.col("t").is_between(first, last))),
            (LEFT, batch),
        ):
            ctx.input = side
            if len(some):
                join.process_batch(some, ctx)
        out += _watermark(join, ctx, last + 1)
    return out


def _builtin_first(frame: pl.DataFrame) -> pl.DataFrame:
    # Keys come in turn, so each passes once in the time that it takes to come round to the window.
    return frame.with_columns(pl.col("t").diff().over("k").alias("gap")).filter(
        pl.int_range(pl.len()).over("k") % -(-WINDOW_US // KEYS) == 0
    )


def _builtin_best(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter(
        pl.col("x").rank("ordinal", descending=True).over("k", pl.col("t") // WINDOW_US) <= 3
    )


def _builtin_counts(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.group_by("k", pl.col("t") // WINDOW_US).agg(n=pl.len(), high=pl.col("x").max())


def _builtin_running(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        before=pl.col("x").shift().over("k"), total=pl.col("x").cum_sum().over("k")
    )


def _builtin_joined(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.join_asof(_versions(), on="t", by="k", check_sortedness=False).filter(
        pl.col("price").is_not_null()
    )


PARTS: dict[
    str, tuple[Callable[[Rows], list[pl.DataFrame]], Callable[[Any], Any], float | None]
] = {
    "deduplicate": (_deduplicated, _builtin_first, 5_000_000),
    "windows": (_counted, _builtin_counts, None),
    "top_k": (_best, _builtin_best, None),
    "running": (_running, _builtin_running, None),
    "join_as_of": (_joined, _builtin_joined, None),
}
NAMES = {
    "deduplicate": "deduplicate(within=)",
    "windows": "window(...).aggregate: count and max per key",
    "top_k": "window(...).top_k(3)",
    "running": "key_by(...).with_columns: lag and cumulative sum",
    "join_as_of": "join_as_of",
}


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began_s = time.process_time()
    found = work()
    return time.process_time() - began_s, found


def measured(name: str, frame: pl.DataFrame, rows: Rows) -> tuple[float, float]:
    """Records per second of the operator, and of Polars."""
    operator, builtin, _ = PARTS[name]
    took_s, out = _timed(lambda: operator(rows))
    its_s, expected = _timed(lambda: builtin(frame))
    rows_out = len(pl.concat(out, how="diagonal"))
    if rows_out != len(expected):
        raise RunFailed(f"{name}: {rows_out} rows instead of {len(expected)}")
    return len(frame) / took_s, len(frame) / its_s


def figures_of(name: str, rounds: int, progress: Progress) -> list[Figure]:
    """One operator and its built-in, in turn."""
    frame = numbers()
    rows, found = batches(frame), []
    for number in range(rounds):
        progress(f"{name}, round {number + 1} of {rounds}")
        found.append(measured(name, frame, rows))
    goal = PARTS[name][2]
    ratio = median_high(mine / its for mine, its in found)
    mine = tuple(mine for mine, _ in found)
    target = None if goal is None else at_least(goal)
    return [
        Figure.median(f"Polars at once: {NAMES[name]}", [its for _, its in found], "records/s"),
        Figure(NAMES[name], median_high(mine), "records/s", target, ratio, mine),
    ]
