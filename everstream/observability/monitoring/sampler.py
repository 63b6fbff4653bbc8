"""`Monitor`: throughput, latency, CPU and memory, sampled at regular intervals in a separate thread.

Workers only add to sums and the thread takes differences, so sampling costs the same however much
work is done. A run reports its shards' sums to the monitor automatically; any other program calls
`monitor.done(...)` for its work.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Self

import polars as pl

from everstream.core.measuring import Histogram, Meter, merged
from everstream.errors import UserError
from everstream.observability.monitoring.machine import Cells, Machine
from everstream.observability.monitoring.sheet import Sheet
from everstream.pipeline.checkpointing import seconds

DEFAULT_PERIOD = "100ms"
SHORTEST_S = 0.05
SHORTEST_WINDOW_S = 0.25
QUANTILES = (50, 95, 99)
KEPT_ROWS = 100_000
"""The newest rows stay in memory; a file has all of them."""


@dataclass(frozen=True, slots=True)
class _Sums:
    at_s: float
    batches: int
    records: int
    timed: int
    waited_s: float
    latency: Histogram


class Monitor:
    """Samples a run, or any program, at a fixed interval of at least 50 ms.

    Each row has the time; CPU and memory of the machine, and of this process with all processes it
    has started; and the work: records per second and latency, on average since the first record
    and currently (over the last `window`, at least 250 ms), the current median, 95th and 99th
    percentile of the latencies, the target rate of paced sources, how many records they are
    behind, and the mean batch size at the sinks.
    `file` is a `.csv`, written row by row, or a `.parquet`.

    Pass it to a run, `pipeline.run(monitor=es.Monitor("100ms", file="run.csv"))`, and read it from
    `result.monitored`; or use it around a program of your own:

    >>> with es.Monitor("50ms") as monitor:
    ...     for number in range(3):
    ...         monitor.done(latency_s=0.002)
    >>> monitor.table()["records"][-1]
    3
    """

    def __init__(
        self,
        every: str | float = DEFAULT_PERIOD,
        file: str | os.PathLike[str] | None = None,
        *,
        window: str | float | None = None,
        append: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.every_s = seconds(every)
        if not self.every_s >= SHORTEST_S:
            raise UserError(f"monitor every {every!r}: the shortest period is 50ms.")
        self.window_s = max(self.every_s, SHORTEST_WINDOW_S) if window is None else seconds(window)
        if not self.window_s >= self.every_s:
            raise UserError(f"window={window!r} must not be shorter than every={every!r}.")
        self._clock = clock
        self._sheet = Sheet(file, append) if file is not None else None
        self._machine = Machine()
        self._baseline = self._machine.memory("memory_baseline")
        self._own = Meter()
        self._parts: dict[Hashable, Meter] = {}
        self._gone = Meter()
        """The counts of parts that have restarted."""
        self._lock = threading.Lock()
        self._window: deque[_Sums] = deque()
        self._rows: deque[Cells] = deque(maxlen=KEPT_ROWS)
        self._began_s = 0.0
        self._first_s: float | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # Input.

    def done(self, records: int = 1, latency_s: float | None = None) -> None:
        """This many records came out, each this long after it came in. Safe from any thread."""
        with self._lock:
            self._own.batches += 1
            self._own.records += records
            if latency_s is not None:
                self._own.timed += records
                self._own.waited_s += records * latency_s
                self._own.latency.setdefault("", Histogram()).add(latency_s, records)

    def aim(self, frequency: float, behind: float = 0.0) -> None:
        """The program's current target rate per second, and how many records it is behind."""
        with self._lock:
            self._own.target_per_s = frequency
            self._own.behind = behind

    def heard(self, part: Hashable, sums: Meter) -> None:
        """The sums of a part of a run so far. For engines."""
        with self._lock:
            before = self._parts.get(part)
            if before is not None and sums.records < before.records:  # a new process starts at 0
                for name in ("batches", "records", "timed", "waited_s"):
                    setattr(self._gone, name, getattr(self._gone, name) + getattr(before, name))
                for sink, histogram in before.latency.items():
                    self._gone.latency.setdefault(sink, Histogram()).merge(histogram)
            self._parts[part] = replace(sums)

    # The thread.

    def start(self) -> None:
        """Start sampling."""
        if self._thread is not None:
            raise UserError("this monitor was already used; make a new one for each run.")
        self._baseline = self._machine.memory("memory_baseline")
        self._began_s = self._clock()
        self._window.append(_Sums(self._began_s, 0, 0, 0, 0.0, Histogram()))
        self._thread = threading.Thread(target=self._run, name="everstream-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample and close the file."""
        if self._thread is None or self._stop.is_set():
            return
        self._stop.set()
        self._thread.join()
        self.sample()
        if self._sheet is not None:
            self._sheet.close()

    @property
    def began_s(self) -> float:
        """When it started, on its clock (that of time.monotonic)."""
        return self._began_s

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _run(self) -> None:
        due_s = self._began_s
        while True:
            due_s += self.every_s
            now_s = self._clock()
            if due_s < now_s:  # missed samples are skipped, not made up for
                due_s += self.every_s * -(-(now_s - due_s) // self.every_s)
            if self._stop.wait(max(0.0, due_s - now_s)):
                return
            self.sample()

    def sample(self) -> None:
        """Take a row now. For engines and tests with their own clock."""
        now_s = self._clock()
        used = self._machine.read(now_s)
        row = {**self._moment(now_s), **used, **self._baseline, **self._work(now_s)}
        self._rows.append(row)
        if self._sheet is not None:
            self._sheet.write(row)

    # Output.

    def table(self) -> pl.DataFrame:
        """The rows so far; the newest 100,000 of them."""
        return pl.DataFrame(list(self._rows), infer_schema_length=None)

    def summary(self) -> pl.DataFrame:
        """One row: the machine, the process, when sampling started and ended, and for how long.

        >>> with es.Monitor("50ms") as monitor:
        ...     monitor.done()
        >>> monitor.summary().columns
        ['machine', 'process', 'began_ms', 'ended_ms', 'elapsed_ms']
        """
        last = self._rows[-1] if self._rows else self._moment(self._clock())
        ended_ms, elapsed_ms = (1e3 * float(last[name] or 0) for name in ("timestamp", "elapsed_s"))
        row = {
            "machine": last["machine"],
            "process": last["process"],
            "began_ms": round(ended_ms - elapsed_ms),
            "ended_ms": round(ended_ms),
            "elapsed_ms": round(elapsed_ms),
        }
        return pl.DataFrame([row])

    def _moment(self, now_s: float) -> Cells:
        return {
            "timestamp": round(time.time(), 6),
            "elapsed_s": round(now_s - self._began_s, 6),
            "machine": self._machine.name,
            "process": os.getpid(),
        }

    def _work(self, now_s: float) -> Cells:
        with self._lock:
            meters = [self._own, self._gone, *self._parts.values()]
            sums = _Sums(
                now_s,
                sum(meter.batches for meter in meters),
                sum(meter.records for meter in meters),
                sum(meter.timed for meter in meters),
                sum(meter.waited_s for meter in meters),
                merged(one for meter in meters for one in meter.latency.values()),
            )
            target = sum(meter.target_per_s for meter in meters)
            behind = sum(meter.behind for meter in meters)
            forfeited = sum(meter.forfeited for meter in meters)
        if self._first_s is None and sums.records:
            self._first_s = self._window[-1].at_s if self._window else self._began_s
        # The newest one that is at least a window old, so that a window is never too short.
        while len(self._window) > 1 and self._window[1].at_s <= now_s - self.window_s:
            self._window.popleft()
        before = self._window[0] if self._window else sums
        self._window.append(sums)
        latest = sums.latency.since(before.latency)
        running_s = now_s - self._first_s if self._first_s is not None else 0.0
        return {
            "records": sums.records,
            "throughput_average": _ratio(sums.records, running_s, 3),
            "throughput_instant": _ratio(sums.records - before.records, now_s - before.at_s, 3),
            "latency_average_ms": _ratio(1e3 * sums.waited_s, sums.timed, 4),
            "latency_instant_ms": _ratio(
                1e3 * (sums.waited_s - before.waited_s), sums.timed - before.timed, 4
            ),
            **{
                f"latency_p{percent}_ms": _ms(latest.quantile(percent / 100))
                for percent in QUANTILES
            },
            "target_frequency": round(target, 6) if target else None,
            "behind": round(behind, 1),
            "forfeited": round(forfeited, 1),
            "batch_size": _ratio(sums.records - before.records, sums.batches - before.batches, 2),
        }


def _ms(taken_s: float | None) -> float | None:
    return None if taken_s is None else round(1e3 * taken_s, 4)


def _ratio(part: float, whole: float, digits: int) -> float | None:
    return round(part / whole, digits) if whole > 0 else None
