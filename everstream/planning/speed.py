"""Measures the kernel against SimPy on the same model, in one process and one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from everstream.planning import paper
from everstream.planning.queueing import simulate
from everstream.planning.reference import simulate_with_simpy


@dataclass(frozen=True)
class Speed:
    """Wall and CPU seconds of both; the ratio is of tuples per wall second."""

    rate_per_s: int
    kernel_tuples: int
    kernel_cpu_s: float
    kernel_wall_s: float
    simpy_tuples: int
    simpy_cpu_s: float
    simpy_wall_s: float

    @property
    def kernel_tuples_per_s(self) -> float:
        return self.kernel_tuples / self.kernel_wall_s

    @property
    def simpy_tuples_per_s(self) -> float:
        return self.simpy_tuples / self.simpy_wall_s

    @property
    def ratio(self) -> float:
        return self.kernel_tuples_per_s / self.simpy_tuples_per_s


def measure(
    kernel_tuples: int = paper.WINDOW_TUPLES,
    simpy_tuples: int = 50_000,
    rate_per_s: int = 5000,
    case_number: int = 3,
    progress: Callable[[str], None] | None = None,
) -> Speed:
    """Run one case of the study both ways. Compilation is not counted; nothing else is left out."""
    case = paper.CASES[case_number - 1]
    say = progress or (lambda text: None)
    say("loading the compiled kernel")
    simulate(paper.case_model(case, rate_per_s, 1000))
    say(f"SimPy, {simpy_tuples:,} tuples")
    simpy_wall_s, simpy_cpu_s = _timed(
        lambda: simulate_with_simpy(paper.case_model(case, rate_per_s, simpy_tuples))
    )
    say(f"kernel, {kernel_tuples:,} tuples")
    kernel_wall_s, kernel_cpu_s = _timed(
        lambda: simulate(paper.case_model(case, rate_per_s, kernel_tuples))
    )
    return Speed(
        rate_per_s=rate_per_s,
        kernel_tuples=kernel_tuples,
        kernel_cpu_s=kernel_cpu_s,
        kernel_wall_s=kernel_wall_s,
        simpy_tuples=simpy_tuples,
        simpy_cpu_s=simpy_cpu_s,
        simpy_wall_s=simpy_wall_s,
    )


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall_s, time.process_time() - cpu_s
