"""The promises, each with what was measured beside it: reached or not."""

from collections.abc import Sequence
from dataclasses import dataclass

from everstream_lab.bench.transactions.makespan import Makespan
from everstream_lab.bench.transactions.measure import Facts

PAPER_WORKERS = 24
PAPER_GAIN = {"grep-sum": 3.1, "toll": 1.7, "ledger": 1.8}
CONTENDED = ("ledger", "toll")


@dataclass(frozen=True)
class Figure:
    """One promise. `measured` is a ratio unless the name says otherwise."""

    name: str
    wanted: float
    measured: float

    @property
    def reached(self) -> bool:
        return self.measured >= self.wanted


def figures(
    rows: Sequence[Facts], models: dict[str, list[Makespan]], operation_cost_s: float
) -> list[Figure]:
    figures = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        of = {row["scheme"]: row for row in rows if row["workload"] == workload}
        figures.extend(_of_workload(workload, of, operation_cost_s))
        for makespan in models.get(workload, []):
            if makespan.workers == PAPER_WORKERS and operation_cost_s > 0:
                name = f"{workload}: model, fast over the next best on {PAPER_WORKERS} workers"
                figures.append(Figure(name, PAPER_GAIN[workload], makespan.gain))
    return figures


def _of_workload(workload: str, of: dict[str, Facts], cost_s: float) -> list[Figure]:
    figures = []

    def ratio(name: str, wanted: float, above: float | None, below: float | None) -> None:
        if above and below:
            figures.append(Figure(f"{workload}: {name}", wanted, above / below))

    fast, delta, none = of.get("fast"), of.get("delta"), of.get("none")
    others = [of[name] for name in ("checkpoint", "wal", "dependency", "lsn-vector") if name in of]
    work = _work_s
    if cost_s > 0:
        wanted = 1.3 if workload in CONTENDED else 1.0
        for other in others:
            name = f"recovery of {other['scheme']} over fast"
            ratio(name, wanted, work(other), work(fast))
        paper = [one for one in [*others, fast] if one]
        if paper and delta:
            best = min(paper, key=lambda one: float(one["recovery_s"]))
            ratio(f"recovery of {best['scheme']} over delta", 10, work(best), work(delta))
            ratio(
                f"recovery of {best['scheme']} over delta, process start included",
                10,
                best["recovery_s"],
                delta["recovery_s"],
            )
    elif "checkpoint" in of:
        ratio("recovery of checkpoint over fast", 1.0, work(of["checkpoint"]), work(fast))
    if none:
        for one, wanted in ((fast, 0.88), (delta, 0.95)):
            if one:
                ratio(
                    f"throughput of {one['scheme']} over none",
                    wanted,
                    one["throughput_per_s"],
                    none["throughput_per_s"],
                )
        if workload == "ledger" and cost_s == 0:
            name = f"{workload}: million transactions per second with none"
            figures.append(Figure(name, 3.0, none["throughput_per_s"] / 1e6))
    for name in ("wal", "dependency", "lsn-vector"):
        if fast and name in of:
            ratio(
                f"throughput of fast over {name}",
                1.0,
                fast["throughput_per_s"],
                of[name]["throughput_per_s"],
            )
    return figures


def _work_s(row: Facts | None) -> float | None:
    """Recovery without the start of the interpreter, which is the same for every scheme."""
    if row is None or "recovery" not in row:
        return None
    return float(row["detection_s"] + row["recovery"]["work_s"])
