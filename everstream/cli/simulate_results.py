"""What `everstream simulate run` shows: every figure, as a mean over the replications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from everstream.planning.model import Model, Result


def results_table(model: Model, found: dict[str, list[Result]]) -> Table:
    from everstream.planning.queueing import estimate

    table = Table(
        title=f"{model.rate_per_s:,.0f} tuples/s arriving, {model.capacity_per_s:,.0f}/s possible"
    )
    table.add_column("mean of the replications, +- 95 %")
    for name in found:
        table.add_column(name, justify="right")

    def add(label: str, take: Any, unit: str = "", scale: float = 1.0) -> None:
        cells = []
        for runs in found.values():
            values = [take(result) for result in runs]
            if not values or any(value is None for value in values):
                cells.append("-")
                continue
            middle = estimate([value * scale for value in values])
            width = "" if len(values) == 1 else f" +- {middle.half_width:,.4g}"
            cells.append(f"{middle.mean:,.6g}{width} {unit}".rstrip())
        table.add_row(label, *cells)

    def recoveries(result: Result, field: str) -> float | None:
        values = [
            getattr(pause, field)
            for pause in result.pauses
            if pause.kind == "recovery" and getattr(pause, field) is not None
        ]
        return sum(values) / len(values) if values else None

    add("latency of the window", lambda r: r.window_s, "s")
    add("throughput", lambda r: r.throughput_per_s, "/s")
    add("tuples lost", lambda r: r.lost)
    add("tuples unprocessed", lambda r: r.unprocessed)
    add("tuples replayed", lambda r: r.replayed)
    add("checkpoints", lambda r: r.checkpoints)
    add("recoveries", lambda r: r.recoveries)
    add("catch-up after a recovery", lambda r: recoveries(r, "catch_up_s"), "s")
    add("latency of a tuple, mean", lambda r: r.mean_latency_s, "ms", 1e3)
    for quantile in ("p50", "p99", "p999"):
        add(
            f"latency of a tuple, {quantile}",
            lambda r, quantile=quantile: r.latency_quantiles_s[quantile],
            "ms",
            1e3,
        )
    add("tuples later than the target", lambda r: r.above_target_fraction, "%", 100)
    for i, operator in enumerate(model.operators):
        add(f"mean wait, {operator.name}", lambda r, i=i: r.mean_wait_s[i], "us", 1e6)
    return table
