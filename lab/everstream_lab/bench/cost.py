"""What records cost at everyday rates: processor time, and the latency that it buys.

Most streams carry hundreds of records per second. At such rates almost all of the cost is fixed: for a
frame, a query on columns, a wake-up. A source of Python records is paced at a rate, checkpoints are taken
every second, and the processor time of all processes of the run is read while it is steady. Beside it is
a bare loop in Python that does the same work on the same records, and sleeps until more are due.
"""

import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import psutil

from everstream.connectors.generate.paced import Paced
from everstream.connectors.generate.sources import FromFunction
from everstream.connectors.live import Callback
from everstream.errors import RunFailed, UserError
from everstream.observability.monitoring.sampler import Monitor
from everstream.pipeline.aggregation.aggregates import count
from everstream.pipeline.checkpointing import Coordinated, EngineName
from everstream.pipeline.event_time.windows import Tumbling
from everstream.pipeline.stream import Pipeline, Stream
from everstream_lab.bench.report import Figure, Progress, Report, Target, at_most

KEYS = 100
SETTLE_S = 4.0
"""After the first records, until everything is loaded and learned."""
PATIENCE_S = 120.0
LOOK_EVERY_S = 0.1
BATCH = 1_024
GOALS: Mapping[tuple[str, float], float] = {
    ("window", 500.0): 0.08,
    ("window", 4_000.0): 0.20,
    ("window", 40_000.0): 0.50,
    ("map", 4_000.0): 0.15,
}
"""Of a core, at most."""
P99_AT_MOST_MS = 10.0

Record: TypeAlias = dict[str, Any]
Build: TypeAlias = Callable[["Stream[Record]", int], "Stream[Any]"]


def records(start: int, stop: int) -> list[Record]:
    """Record n has key n modulo the number of keys, and is numbered."""
    return [{"key": n % KEYS, "n": n, "price": n % 7} for n in range(start, stop)]


def _timed(stream: "Stream[Record]", apart_us: int) -> "Stream[Record]":
    """With the event times that records have at this rate."""
    dated = stream.map(lambda record: {**record, "at": record["n"] * apart_us})
    return dated.event_time("at", unit="us")


def _map(stream: "Stream[Record]", apart_us: int) -> "Stream[Any]":
    return stream.map(lambda record: {**record, "double": 2 * record["price"]})


def _fold(stream: "Stream[Record]", apart_us: int) -> "Stream[Any]":
    keyed = stream.key_by(lambda record: record["key"])
    return keyed.fold(int, lambda seen, record: seen + 1, shards=2)


def _window(stream: "Stream[Record]", apart_us: int) -> "Stream[Any]":
    windows = _timed(stream, apart_us).key_by("key").window(Tumbling("1s"))
    return windows.aggregate(n=count(), shards=2)


def _join(stream: "Stream[Record]", apart_us: int) -> "Stream[Any]":
    left, right = stream.branch(_is_left)
    other = right.map(lambda record: {"key": record["key"], "n": record["n"], "other": 1})
    return _timed(left, apart_us).window_join(
        _timed(other, apart_us), on="key", window=Tumbling("1s"), shards=2
    )


def _is_left(record: Record) -> bool:
    """Every second round of the keys."""
    return bool(record["n"] // KEYS % 2 == 0)


class Bare:
    """The same work as a loop in Python."""

    def __init__(self, shape: str, apart_us: int) -> None:
        self.work: Callable[[Record], Any] = getattr(self, shape)
        self.apart_us = apart_us
        self.counts = Counter[int]()
        self.window_s = 0
        self.emitted: Any = None
        self.sides: tuple[list[Record], defaultdict[int, list[Record]]] = [], defaultdict(list)

    def map(self, record: Record) -> None:
        self.emitted = {**record, "double": 2 * record["price"]}

    def fold(self, record: Record) -> None:
        self.counts[record["key"]] += 1
        self.emitted = (record["key"], self.counts[record["key"]])

    def window(self, record: Record) -> None:
        now_s = record["n"] * self.apart_us // 1_000_000
        if now_s != self.window_s:
            self.emitted = [*self.counts.items()]
            self.counts.clear()
            self.window_s = now_s
        self.counts[record["key"]] += 1

    def join(self, record: Record) -> None:
        left, right = self.sides
        now_s = record["n"] * self.apart_us // 1_000_000
        if now_s != self.window_s:
            self.emitted = [{**other, **one} for one in left for other in right[one["key"]]]
            left.clear()
            right.clear()
            self.window_s = now_s
        if _is_left(record):
            left.append(record)
        else:
            right[record["key"]].append({**record, "other": 1})


SHAPES: Mapping[str, Build] = {"map": _map, "fold": _fold, "window": _window, "join": _join}


@dataclass(frozen=True)
class Cost:
    """Of one shape at one rate."""

    shape: str
    rate: float
    cores: float
    """Processor seconds per second, all processes of the run."""
    bare_cores: float
    p50_ms: float | None
    p99_ms: float | None

    def figures(self) -> list[Figure]:
        at = f"{self.shape} at {self.rate:,.0f}/s"
        goal = GOALS.get((self.shape, self.rate))
        bound = Target("at most", goal) if goal is not None else None
        per_million = self.cores / self.rate * 1e6
        beside = f"bare loop {self.bare_cores / self.rate * 1e6:.1f}"
        figures = [
            Figure(f"{at}, cores", round(self.cores, 4), "", bound),
            Figure(f"{at}, CPU s per million", round(per_million, 2), "s", beside=beside),
        ]
        for name, value, most in (
            ("p50", self.p50_ms, None),
            ("p99", self.p99_ms, at_most(P99_AT_MOST_MS)),
        ):
            if value is not None:
                figures.append(Figure(f"{at}, {name}", round(value, 3), "ms", most))
        return figures


def measure(
    rates: Sequence[float],
    shapes: Collection[str] = tuple(SHAPES),
    *,
    seconds: float = 10.0,
    engine: EngineName = "local",
    latency: str = "5ms",
    progress: Progress = lambda text: None,
) -> Report:
    """Every shape at every rate, one after the other."""
    if unknown := set(shapes) - set(SHAPES):
        raise UserError(f"there is no shape '{min(unknown)}': use {', '.join(SHAPES)}.")
    costs: list[Cost] = []
    for shape in shapes:
        for rate in rates:
            progress(f"{shape} at {rate:,.0f} records/s")
            costs.append(_measured(shape, rate, seconds, engine, latency))
    settings = {"seconds": seconds, "engine": engine, "latency": latency}
    return Report("cost", [one for cost in costs for one in cost.figures()], settings)


def _measured(shape: str, rate: float, seconds: float, engine: EngineName, latency: str) -> Cost:
    apart_us = max(1, int(1e6 / rate))
    pipeline = Pipeline("cost")
    source = Paced(FromFunction(records, total=2**62, batch=BATCH), rate)
    stream: Stream[Record] = pipeline.source(source, name="records")
    SHAPES[shape](stream, apart_us).sink(Callback(_drop, batches=True), name="out")
    monitor = Monitor("1s", window=seconds)
    with tempfile.TemporaryDirectory(prefix="everstream-cost-") as folder:
        handle = pipeline.start(
            engine=engine,
            workers=2,
            store=f"{folder}/store",
            checkpoint=Coordinated(every="1s"),
            latency=latency,
            monitor=monitor,
            progress=False,
        )
        try:
            until_s = time.monotonic() + PATIENCE_S
            while not handle.status().records_read:
                if time.monotonic() > until_s:
                    raise RunFailed(f"'{shape}' had no records after {PATIENCE_S:g} s")
                time.sleep(LOOK_EVERY_S)
            time.sleep(SETTLE_S)
            cores = _cores(seconds)
        finally:
            handle.stop()
            handle.wait()
    rows = [row for row in monitor.table().rows(named=True) if row["latency_p99_ms"] is not None]
    last = rows[-1] if rows else {}
    bare_cores = _bare_cores(shape, rate, apart_us, min(seconds, 3.0))
    return Cost(
        shape, rate, cores, bare_cores, last.get("latency_p50_ms"), last.get("latency_p99_ms")
    )


def _cores(seconds: float) -> float:
    """Processor seconds per second of this process and all it has started."""
    root = psutil.Process()
    family = [root, *root.children(recursive=True)]
    before = {process.pid: _cpu_s(process) for process in family}
    began_s = time.monotonic()
    time.sleep(seconds)
    used_s = sum(max(0.0, _cpu_s(process) - before[process.pid]) for process in family)
    return used_s / (time.monotonic() - began_s)


def _cpu_s(process: Any) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _bare_cores(shape: str, rate: float, apart_us: int, seconds: float) -> float:
    """The same work on the same records in this process, without a run."""
    work, given = Bare(shape, apart_us).work, 0
    used_s, began_s = time.process_time(), time.monotonic()
    while (passed_s := time.monotonic() - began_s) < seconds:
        due = int(passed_s * rate)
        for record in records(given, due):
            work(record)
        given = due
        time.sleep(max(0.005, (given + 1) / rate - passed_s))
    return (time.process_time() - used_s) / (time.monotonic() - began_s)


def _drop(batch: Any) -> None:
    """Discard the batch."""
