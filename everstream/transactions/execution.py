"""Runs kernels on threads: in order on one, or along the graph on several.

Work that is cheaper than its hand-over is run in order whatever the parallelism; the measured cost
of a transaction decides, epoch by epoch.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from everstream.transactions.compiled import cycles_per_second
from everstream.transactions.errors import ExecutionError
from everstream.transactions.graph import PrecedenceGraph
from everstream.transactions.kernels import drivers

PARALLEL_FROM_S = 1e-6

_cycle_rate: list[float] = []


def cycle_rate() -> float:
    """Cycles per second of this machine, measured once per process."""
    if not _cycle_rate:
        _cycle_rate.append(cycles_per_second())
    return _cycle_rate[0]


@dataclass
class Breakdown:
    """Where the time went, in seconds of one thread (the mean over threads)."""

    reload_s: float = 0.0
    construct_s: float = 0.0
    execute_s: float = 0.0
    abort_s: float = 0.0
    explore_s: float = 0.0
    wait_s: float = 0.0

    def add(self, totals: npt.NDArray[np.int64], wall_s: float) -> None:
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

    def together(self, control: npt.NDArray[np.int64], work: Callable[[int], None]) -> None:
        """Run `work(thread)` on every thread; if one raises, the others stop."""

        def guarded(thread: int) -> None:
            try:
                work(thread)
            except BaseException:
                control[drivers.STOP] = 1
                raise

        pool = self.pool
        if pool is None:
            futures: list[Future[None]] = []
            guarded(0)
        else:
            futures = [pool.submit(guarded, thread) for thread in range(1, self.count)]
            guarded(0)
        for future in futures:
            future.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def control_block() -> npt.NDArray[np.int64]:
    return np.zeros(drivers.CONTROL, np.int64)


def totals_block(threads: int) -> npt.NDArray[np.int64]:
    return np.zeros((threads, drivers.TOTALS), np.int64)


def run_along_graph(
    kernel: Callable[..., None],
    threads: Threads,
    graph: PrecedenceGraph,
    included: npt.NDArray[np.uint8],
    data: Any,
    executed_by: npt.NDArray[np.uint8],
) -> npt.NDArray[np.int64]:
    """Run a batch on all threads, each transaction as soon as those it waits for are done."""
    rows = int(np.count_nonzero(included))
    pending = graph.incoming.copy()
    queue = np.full(rows, -1, np.int32)
    ready = np.flatnonzero((pending == 0) & (included != 0)).astype(np.int32)
    queue[: len(ready)] = ready
    control = control_block()
    control[drivers.TAIL] = len(ready)
    totals = totals_block(threads.count)

    def work(thread: int) -> None:
        kernel(
            thread,
            rows,
            pending,
            graph.start,
            graph.successors,
            queue,
            control,
            data,
            executed_by,
            totals,
        )

    guard(lambda: threads.together(control, work))
    return totals


def guard(run: Callable[[], None]) -> None:
    """Turn what a user's function raises into an error that reports the incomplete state."""
    try:
        run()
    except ArithmeticError as error:
        raise _broken(error) from error
    except (ValueError, IndexError, AssertionError, TypeError) as error:
        raise _broken(error) from error


def _broken(error: Exception) -> ExecutionError:
    return ExecutionError(
        f"a transaction raised {type(error).__name__}: {error}. The batch is incomplete: "
        "restore a snapshot or recover from the log, and return ABORT for such events."
    )
