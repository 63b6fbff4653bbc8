"""What one run came to: the numbers of the general log, and the tables behind them."""

from dataclasses import asdict, dataclass, field
from typing import Any

import polars as pl

from everstream.apps.cycle.plan import Planned
from everstream.apps.cycle.watched import while_running
from everstream.apps.interfaces.job import Done, Stamps


@dataclass
class Outcome:
    """One run in numbers. Latency is None where it was not measured."""

    planned: Planned
    items: int
    wall_s: float
    items_per_s: float
    exact: bool | None
    """Whether the result is the sequential program's; None: nobody looked."""
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
    found = Outcome(
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
        _tell_latency(found, done.stamps)
    if done.monitored.height:
        seen = while_running(done)
        used = seen["process_cpu_percent"].cast(pl.Float64).mean()
        most = seen["process_memory_kb"].max()
        found.cpu_percent = float(used) if isinstance(used, int | float) else None
        found.memory_kb = int(most) if isinstance(most, int | float) else None
    return found


def _tell_latency(found: Outcome, stamps: Stamps) -> None:
    latency = pl.Series(stamps.latency / 1e6)
    for name, value in {
        "latency_ms": latency.mean(),
        "latency_min_ms": latency.min(),
        "latency_max_ms": latency.max(),
        "latency_p50_ms": latency.quantile(0.5),
        "latency_p99_ms": latency.quantile(0.99),
    }.items():
        assert isinstance(value, float)
        setattr(found, name, round(value, 6))
    means = stamps.took.mean(axis=0) / 1e6
    found.operators_ms = {
        name: round(float(mean), 6) for name, mean in zip(stamps.operators, means, strict=True)
    }


def latency_table(run: int, stamps: Stamps, first_ns: int) -> pl.DataFrame:
    """One row per item: when it came in and out, how long each operator worked on it."""
    return pl.DataFrame(
        {
            "run": pl.repeat(run, len(stamps.began), dtype=pl.Int32, eager=True),
            "item": range(len(stamps.began)),
            "began_s": (stamps.began - first_ns) / 1e9,
            "ended_s": (stamps.ended - first_ns) / 1e9,
            **{
                f"{name}_ms": stamps.took[:, number] / 1e6
                for number, name in enumerate(stamps.operators)
            },
            "latency_ms": stamps.latency / 1e6,
        }
    )
