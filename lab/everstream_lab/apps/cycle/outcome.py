"""What one run came to: the numbers of the general log, the tables behind them, and lines for a screen."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import polars as pl

from everstream_lab.apps.cycle.benchmarks import Planned
from everstream_lab.apps.interfaces.job import Done, Stamps

COLUMNS = {
    "timestamp": "timestamp",
    "elapsed_s": "elapsed_s",
    "cpu_percent": "process_cpu_percent",
    "memory_kb": "process_memory_kb",
    "machine_cpu_percent": "cpu_percent",
    "machine_memory_kb": "memory_used_kb",
    "machine_memory_before_kb": "memory_baseline_used_kb",
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
        *(pl.col(column).cast(pl.Float64).alias(name) for name, column in COLUMNS.items()),
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


@dataclass
class Outcome:
    """One run in numbers. Latency is None where it was not measured."""

    planned: Planned
    items: int
    wall_s: float
    items_per_s: float
    exact: bool | None
    """Whether the result is the sequential program's; None: not checked."""
    latency_ms: float | None = None
    latency_min_ms: float | None = None
    latency_max_ms: float | None = None
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    operators_ms: dict[str, float] = field(default_factory=dict)
    """Operator -> how long it works on an item, on average."""
    cpu_percent: float | None = None
    """Of this process and all it started, on average; 100 is one core."""
    memory_kb: int | None = None
    """The most it had."""
    overtaken: float | None = None
    """How many items behind it came out before an item, on average: how cluttered items are."""
    reorder_buffer: int | None = None
    """The most items that wait at a time for one in front of them, to come out in order."""
    checkpoints: int = 0
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    startup_s: float = 0.0
    """Until the workers stood ready; `wall_s` begins there."""

    @property
    def items_per_s_with_start(self) -> float:
        return self.items / (self.startup_s + self.wall_s)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "planned": self.planned.to_json()}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> "Outcome":
        return cls(**{**body, "planned": Planned.from_json(body["planned"])})


def outcome_of(planned: Planned, done: Done, exact: bool | None) -> Outcome:
    outcome = Outcome(
        planned,
        done.items,
        done.wall_s,
        done.items_per_s,
        exact,
        checkpoints=done.checkpoints,
        recoveries=done.recoveries,
        notes=done.notes,
        startup_s=done.startup_s,
    )
    if done.stamps is not None:
        _tell_latency(outcome, done.stamps)
    if done.monitored.height:
        seen = while_running(done)
        used = seen["process_cpu_percent"].cast(pl.Float64).mean()
        most = seen["process_memory_kb"].max()
        outcome.cpu_percent = float(used) if isinstance(used, int | float) else None
        outcome.memory_kb = int(most) if isinstance(most, int | float) else None
    return outcome


def _tell_latency(outcome: Outcome, stamps: Stamps) -> None:
    latency = pl.Series(stamps.latency / 1e6)
    for name, value in {
        "latency_ms": latency.mean(),
        "latency_min_ms": latency.min(),
        "latency_max_ms": latency.max(),
        "latency_p50_ms": latency.quantile(0.5),
        "latency_p99_ms": latency.quantile(0.99),
    }.items():
        assert isinstance(value, float)
        setattr(outcome, name, round(value, 6))
    outcome.overtaken = round(float(stamps.overtaken.mean()), 6)
    outcome.reorder_buffer = stamps.held_back
    means = stamps.took.mean(axis=0) / 1e6
    outcome.operators_ms = {
        name: round(float(mean), 6) for name, mean in zip(stamps.operators, means, strict=True)
    }


def latency_table(run: int, stamps: Stamps, first_ns: int) -> pl.DataFrame:
    """One row per item: when it came in and out, how long each operator worked on it, and how many
    items behind it came out before it."""
    return pl.DataFrame(
        {
            "run": pl.repeat(run, len(stamps.began), dtype=pl.Int32, eager=True),
            "item": stamps.numbers,
            "began_s": (stamps.began - first_ns) / 1e9,
            "ended_s": (stamps.ended - first_ns) / 1e9,
            **{
                f"{name}_ms": stamps.took[:, number] / 1e6
                for number, name in enumerate(stamps.operators)
            },
            "latency_ms": stamps.latency / 1e6,
            "overtaken": stamps.overtaken,
        }
    )


def line_of(event: dict[str, Any], runs: list[Planned]) -> str | None:
    """The progress of a run, for a line that the next one replaces; None if there is none."""
    if event["event"] != "progress":
        return None
    planned = _run_of(event, runs)
    step = event["step"]
    share = f" {event['done']:,} of {event['total']:,}" if step != "the sequential result" else ""
    return f"{_place(planned, runs)}, {planned.workers} worker(s): {step}{share}"


def last_line_of(event: dict[str, Any], runs: list[Planned]) -> tuple[str, bool] | None:
    """What a run came to, for a line that stays, and whether that is good."""
    place = _place(_run_of(event, runs), runs)
    if event["event"] == "failed":
        first = str(event["text"]).strip().splitlines()
        return f"{place}: failed: {first[-1] if first else 'no reason given'}", False
    if event["event"] != "outcome":
        return None
    outcome = Outcome.from_json(event["body"])
    parts = [f"{outcome.items:,} items in {outcome.wall_s:.2f} s"]
    if outcome.recoveries:
        parts.append(f"{len(outcome.recoveries)} failure(s) survived")
    if outcome.exact is not None:
        parts.append("exact" if outcome.exact else "NOT the sequential program's result")
    return f"{place}: {', '.join(parts)}", outcome.exact is not False


def _run_of(event: dict[str, Any], runs: list[Planned]) -> Planned:
    return next(run for run in runs if run.number == event["run"])


def _place(planned: Planned, runs: list[Planned]) -> str:
    return f"{runs.index(planned) + 1}/{len(runs)} {planned.benchmark}"
