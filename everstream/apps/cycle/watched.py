"""The monitoring table of a run, in SPBench's columns."""

import numpy as np
import polars as pl

from everstream.apps.interfaces.job import Done, Stamps

COLUMNS = {
    "timestamp": "timestamp",
    "elapsed_s": "elapsed_s",
    "cpu_percent": "process_cpu_percent",
    "memory_kb": "process_memory_kb",
    "machine_cpu_percent": "cpu_percent",
    "machine_memory_kb": "memory_used_kb",
    "throughput_average": "throughput_average",
    "throughput_instant": "throughput_instant",
    "latency_average_ms": "latency_average_ms",
    "latency_instant_ms": "latency_instant_ms",
    "target_frequency": "target_frequency",
    "batch_size": "batch_size",
}
"""Our name of a column -> the monitor's."""


def watched_table(run: int, done: Done) -> pl.DataFrame:
    """What the monitor saw, as floats, with items counted where all of them come by.

    A pipeline's sink may get one record for all items, a sum of them; then the times that were
    taken of the items themselves say how many there were, and how long each was on its way.
    """
    table = while_running(done).select(
        pl.lit(run, pl.Int32).alias("run"),
        *(pl.col(theirs).cast(pl.Float64).alias(ours) for ours, theirs in COLUMNS.items()),
    )
    if done.stamps is None or done.monitored["records"][-1] >= done.items:
        return table
    return table.with_columns(_from_stamps(table, done.stamps))


def while_running(done: Done) -> pl.DataFrame:
    """What the monitor saw from when the workers stood ready: Spark's start is not in it."""
    last_s = float(done.monitored["elapsed_s"].to_list()[-1])
    began_s = last_s - done.wall_s if done.began_s is None else done.began_s
    seen = done.monitored.filter(pl.col("elapsed_s") >= began_s)
    return seen.with_columns((pl.col("elapsed_s") - max(began_s, 0.0)).round(6))


def _from_stamps(table: pl.DataFrame, stamps: Stamps) -> list[pl.Series]:
    order = np.argsort(stamps.ended, kind="stable")
    ended_s = stamps.ended[order] / 1e9
    waited_ms = np.concatenate([[0.0], np.cumsum(stamps.latency[order] / 1e6)])
    # The last sample is taken when all is done: there the two clocks meet.
    elapsed_s = table["elapsed_s"].to_numpy()
    at_s = elapsed_s - elapsed_s[-1] + ended_s[-1]
    done = np.searchsorted(ended_s, at_s, side="right")
    before = np.searchsorted(ended_s, at_s - np.diff(at_s, prepend=at_s[0] - 1), side="right")
    passed_s = np.diff(at_s, prepend=at_s[0] - 1)
    began_s = float(stamps.began.min()) / 1e9

    def series(name: str, over: object, under: object) -> pl.Series:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.asarray(over, float) / np.asarray(under, float)
        return pl.Series(name, values).replace([np.inf, -np.inf], None).fill_nan(None)

    return [
        series("throughput_average", done, np.maximum(at_s - began_s, 0.0)),
        series("throughput_instant", done - before, passed_s),
        series("latency_average_ms", waited_ms[done], done),
        series("latency_instant_ms", waited_ms[done] - waited_ms[before], done - before),
    ]
