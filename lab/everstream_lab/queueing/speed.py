"""Measures the kernel against SimPy on the same model, in one process and one run."""

from __future__ import annotations

import time
from collections.abc import Callable

from everstream_lab.bench.report import Figure, Progress, Report
from everstream_lab.queueing import paper
from everstream_lab.queueing.reference import simulate_with_simpy
from everstream_lab.queueing.simulation import simulate


def measure(
    kernel_tuples: int = paper.WINDOW_TUPLES,
    simpy_tuples: int = 50_000,
    rate_per_s: int = 5000,
    case_number: int = 3,
    progress: Progress = lambda text: None,
) -> Report:
    """Run one case of the study both ways. Compilation is not counted; nothing else is left out."""
    case = paper.CASES[case_number - 1]
    progress("loading the compiled kernel")
    simulate(paper.case_model(case, rate_per_s, 1000))
    progress(f"SimPy, {simpy_tuples:,} tuples")
    simpy_wall_s, simpy_cpu_s = _timed(
        lambda: simulate_with_simpy(paper.case_model(case, rate_per_s, simpy_tuples))
    )
    progress(f"kernel, {kernel_tuples:,} tuples")
    kernel_wall_s, kernel_cpu_s = _timed(
        lambda: simulate(paper.case_model(case, rate_per_s, kernel_tuples))
    )
    kernel_per_s, simpy_per_s = kernel_tuples / kernel_wall_s, simpy_tuples / simpy_wall_s
    figures = [
        Figure("kernel", kernel_per_s, "tuples/s", ratio=kernel_per_s / simpy_per_s),
        Figure("SimPy", simpy_per_s, "tuples/s"),
        Figure("kernel, processor time", kernel_cpu_s, "s"),
        Figure("SimPy, processor time", simpy_cpu_s, "s"),
    ]
    tuples = {"kernel_tuples": kernel_tuples, "simpy_tuples": simpy_tuples}
    return Report("model", figures, {"rate_per_s": rate_per_s, **tuples})


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall_s, time.process_time() - cpu_s
