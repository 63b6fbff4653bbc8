"""Runs kernels on threads: in order on one, or along the graph on several.

Work that is cheaper than its hand-over is run in order whatever the parallelism; the measured cost
of a transaction decides, epoch by epoch.
"""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from everstream.transactions.compiled import cycles_per_second
from everstream.transactions.errors import ExecutionError
from everstream.transactions.graph import PrecedenceGraph
from everstream.transactions.kernels import drivers

PARALLEL_FROM_S = 1e-6

Counters = npt.NDArray[np.int64]
cycle_rate = cache(cycles_per_second)
"""Cycles per second of this machine, measured once per process."""


@dataclass
class Breakdown:
    """Where the time went, in seconds of one thread (the mean over threads)."""

    reload_s: float = 0.0
    construct_s: float = 0.0
    execute_s: float = 0.0
    abort_s: float = 0.0
    explore_s: float = 0.0
    wait_s: float = 0.0

    def add(self, totals: Counters, wall_s: float) -> None:
        """Add a kernel's cycle totals; time that the threads' clocks do not cover is waiting."""
        threads = len(totals)
        seconds = totals.sum(axis=0) / cycle_rate() / threads
        self.execute_s += float(seconds[drivers.EXECUTE])
        self.abort_s += float(seconds[drivers.ABORT_TIME])
        self.explore_s += float(seconds[drivers.EXPLORE])
        self.wait_s += float(seconds[drivers.WAIT]) + max(0.0, wall_s - float(seconds.sum()))

    @property
    def total_s(self) -> float:
        return float(sum(vars(self).values()))


@dataclass
class Threads:
    """A fixed number of threads that run one kernel together."""

    count: int
    _pool: ThreadPoolExecutor | None = field(default=None, repr=False)

    @property
    def pool(self) -> Executor | None:
        if self.count > 1 and self._pool is None:
            self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="transactions")
        return self._pool

    def together(self, work: Callable[[int, Counters, Counters], None], ready: int = 0) -> Counters:
        """Run `work(thread, control, totals)` on every thread, and return the totals.

        If one raises, the others stop. `ready` places of the queue are filled.
        """
        control, totals = np.zeros(drivers.CONTROL, np.int64), totals_block(self.count)
        control[drivers.TAIL] = ready

        def stopping(thread: int) -> None:
            try:
                work(thread, control, totals)
            except BaseException:
                control[drivers.STOP] = 1
                raise

        def run() -> None:
            pool = self.pool
            others = [pool.submit(stopping, n) for n in range(1, self.count)] if pool else []
            stopping(0)
            for other in others:
                other.result()

        guard(run)
        return totals

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def totals_block(threads: int) -> Counters:
    return np.zeros((threads, drivers.TOTALS), np.int64)


def run_along_graph(
    kernel: Callable[..., None],
    threads: Threads,
    graph: PrecedenceGraph,
    included: npt.NDArray[np.uint8],
    data: Any,
    executed_by: npt.NDArray[np.uint8],
) -> Counters:
    """Run a batch on all threads, each transaction as soon as those it waits for are done."""
    rows = int(np.count_nonzero(included))
    pending = graph.incoming.copy()
    queue = np.full(rows, -1, np.int32)
    ready = np.flatnonzero((pending == 0) & (included != 0)).astype(np.int32)
    queue[: len(ready)] = ready

    def work(thread: int, control: Counters, totals: Counters) -> None:
        edges = (pending, graph.start, graph.successors)
        kernel(thread, rows, *edges, queue, control, data, executed_by, totals)

    return threads.together(work, len(ready))


def guard(run: Callable[..., None], *args: Any) -> None:
    """Turn what a user's function raises into an error that reports the incomplete state."""
    try:
        run(*args)
    except (ArithmeticError, ValueError, IndexError, AssertionError, TypeError) as error:
        raise ExecutionError(
            f"a transaction raised {type(error).__name__}: {error}. The batch is incomplete: "
            "restore a snapshot or recover from the log, and return ABORT for such events."
        ) from error
