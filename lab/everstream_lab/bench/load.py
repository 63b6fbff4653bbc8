"""How near a paced source comes to its load, live, and what the two ways of waiting show of a stall.

Each pattern runs through a pipeline on Spark. What arrived at the sink in each period is held
against the integral of the rate: a source that gives too much, too little or too late is off in
some period, even if it is right on average.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from everstream.connectors.generate.load import PATTERNS, Floats, Load
from everstream.connectors.generate.paced import Paced
from everstream.connectors.generate.sources import Range
from everstream.connectors.live import Callback
from everstream.engine.result import RunResult
from everstream.engine.run import run
from everstream.pipeline.batch import Batch
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.latency import Arrivals, Timed, read_arrivals
from everstream_lab.bench.report import Figure, Progress, Report, at_most

DUE = "due_us"
LOWEST = 0.1
"""Of the highest rate: where patterns begin, as a calibrated load does."""
ONE_ITEM = 1.0
"""Items are whole: a period may end just before one."""
HELD_UP_S = 1.0
TARGET = 0.01
"""The share by which a period may be off."""
NAP_S = 0.002


@dataclass(frozen=True)
class Kept:
    """How near one run came to its load."""

    load: str
    most_per_s: float
    period_s: float
    items: list[float]
    """Due in each period."""
    given: list[float]
    """Arrived in each period."""
    latency_ms: float
    longest_stall_ms: float
    """How long a thread that did nothing had to wait for the machine, at worst."""

    @property
    def error(self) -> float:
        """The largest share by which a period was off, beyond one item."""
        off = np.abs(np.array(self.given) - np.array(self.items))
        return float(np.max(np.maximum(off - ONE_ITEM, 0.0) / np.array(self.items)))


@dataclass(frozen=True)
class HeldUp:
    """What a run shows of an operator that stood still once."""

    catch_up: bool
    stood_still_s: float
    latency_average_ms: float
    latency_largest_ms: float
    forfeited: float


def measure(
    rates: Sequence[float],
    period_s: float,
    periods: int,
    progress: Progress,
    master: str = "local[2,1000]",
) -> list[Kept]:
    """Every pattern at every highest rate."""
    measured = []
    for most in rates:
        for name in PATTERNS:
            load = Load(name, period=period_s, min=LOWEST * most, max=most)
            progress(f"{name} up to {most:,.0f} items/s")
            measured.append(_kept(load, most, period_s, periods, master))
    return measured


def _kept(load: Load, most: float, period_s: float, periods: int, master: str) -> Kept:
    ends_s: Floats = np.arange(1.0, periods + 1.0) * period_s
    total = int(load.items(float(ends_s[-1])))
    pipeline = Pipeline("load")
    with tempfile.TemporaryDirectory(prefix="everstream-load-") as folder:
        source = Paced(Range(total, column="n"), load, due=DUE)
        numbers = pipeline.source(source, name="numbers").on_demand()
        numbers.sink(Timed(Callback(_drop, batches=True), folder), name="out")
        with Stalls() as stalls:
            run(pipeline, master=master)
        arrivals = read_arrivals(folder)
    return Kept(
        load.text or "",
        most,
        period_s,
        np.diff(np.minimum(load.items(ends_s), float(total)), prepend=0.0).tolist(),
        _given_in(arrivals, load, ends_s),
        1e3 * arrivals.latency().mean_s,
        1e3 * stalls.longest_s,
    )


class Stalls:
    """Notes how long the machine makes a thread wait that wants hardly anything."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        before_s = time.monotonic()
        while not self._stop.wait(NAP_S):
            now_s = time.monotonic()
            self.longest_s = max(self.longest_s, now_s - before_s - NAP_S)
            before_s = now_s


def _given_in(arrivals: Arrivals, load: Load, ends_s: Any) -> list[float]:
    """What arrived in each period. The pattern began where the first record's due time says."""
    # Small frames are noted record by record, and the first frame is small.
    start_s = float(arrivals.due_s[0]) - load.due_s(1.0)
    # The last items of the last period are due at its very end, and arrive a moment later.
    arrived = np.cumsum(arrivals.records)
    ends = np.searchsorted(arrivals.at_s, start_s + ends_s, "right")
    so_far = np.where(ends > 0, arrived[np.maximum(ends - 1, 0)], 0.0)
    given: list[float] = np.diff(so_far, prepend=0.0).tolist()
    return given


def _drop(batch: Batch) -> None:
    """Discard the batch."""


def compare_waiting(rate: float, progress: Progress, master: str = "local[2,1000]") -> list[HeldUp]:
    """The same stall, with and without catching up."""
    compared = []
    for catch_up in (True, False):
        progress(f"held up for {HELD_UP_S:g} s, {'with' if catch_up else 'without'} catching up")
        pipeline = Pipeline("held-up")
        source = Paced(Range(int(4 * rate)), rate, catch_up=catch_up)
        numbers = pipeline.source(source, name="numbers")
        numbers.map_batches(_stand_still_at(int(rate)), name="stands-still").sink(
            Callback(_drop, batches=True), name="out"
        )
        result: RunResult = run(pipeline, master=master, monitor="50ms")
        seen = result.monitored
        largest: Any = seen["latency_instant_ms"].max()
        compared.append(
            HeldUp(
                catch_up,
                HELD_UP_S,
                float(seen["latency_average_ms"][-1]),
                float(largest),
                result.forfeited,
            )
        )
    return compared


def _stand_still_at(number: int) -> Callable[[Any], list[Any]]:
    def work(batch: Any) -> list[Any]:
        if number in batch:
            time.sleep(HELD_UP_S)
        return list(batch)

    return work


def measure_report(
    rates: Sequence[float], period_s: float, periods: int, progress: Progress
) -> Report:
    """Every pattern against its closed form, then a pipeline that pauses for a second."""
    kept = measure(rates, period_s, periods, progress)
    held_up = compare_waiting(1_000.0, progress)
    figures = []
    for one in kept:
        figures += [
            Figure(f"{one.load}, off by", one.error, "of a period", at_most(TARGET)),
            Figure(f"{one.load}, latency", one.latency_ms, "ms"),
            Figure(f"{one.load}, machine stall", one.longest_stall_ms, "ms"),
        ]
    for case in held_up:
        name = "held up, catches up" if case.catch_up else "held up, does not catch up"
        figures += [
            Figure(f"{name}, mean latency", case.latency_average_ms, "ms"),
            Figure(f"{name}, largest latency", case.latency_largest_ms, "ms"),
            Figure(f"{name}, forfeited", case.forfeited, "records"),
        ]
    details = {"runs": [asdict(one) for one in kept], "held_up": [asdict(one) for one in held_up]}
    return Report("load", figures, {"period_s": period_s, "periods": periods}, details)
