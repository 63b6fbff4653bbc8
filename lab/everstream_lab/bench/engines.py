"""All engines on the same work in the same run: start-up, recovery, latency, idling, throughput.

Start-up is the time from `run()` to the first record (`engine_starts`). Recovery is the time from a
SIGKILL of a worker until its shards are restored. Latency is that of `bench latency` at 1,000 records
per second (`delays`), and an idle pipeline has nothing to do at all (`idle`).

The floor of micro-batches is the median time of epochs that have next to nothing to read, once
for a pipeline without state and once for a keyed one. Throughput is that of `bench throughput`,
with every output checked; the engines take turns, and the best round of each counts, because noise
only ever makes a run slower. In the same run native Structured Streaming does the stateful ones with
Python (`everstream_lab.bench.native`), and epochs lose caches and workers (`engine_losses`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import get_args

from everstream.connectors.generate.sources import Range
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.engine.faults.kills import Kill
from everstream.engine.result import RunResult
from everstream.engine.run import run
from everstream.errors import UserError
from everstream.pipeline.checkpointing import Coordinated, EngineName
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench import delays, engine_losses, engine_starts, idle, native
from everstream_lab.bench.report import Figure, Progress, Report, at_least, at_most
from everstream_lab.bench.throughput import Load, Selection, WindowedCount, WordCount

ENGINES: tuple[EngineName, ...] = get_args(EngineName)
PARTS = (
    *("starts", "recovery", "latency", "idle", "floors"),
    *("nexmark_2", "word_count", "windowed_count", "losses"),
)
"""The parts that can be measured separately."""
GOALS: dict[EngineName, float] = {"microbatch": 0.6, "local": 1.0}
"""The throughput of an engine against tasks, at least."""
RATE = 1000.0
"""Records per second, to measure latency."""
IDLE_AT_MOST = 0.02
"""Of a core, for all Python processes of a local run."""
RESTORED_AT_MOST_S = 0.1
EPOCHS = 40
WARM_EPOCHS = 10


def _stateless() -> Pipeline:
    pipeline = Pipeline("floor-stateless")
    numbers = pipeline.source(Range(EPOCHS, batch=1), name="numbers")
    return numbers.filter(lambda n: n >= 0, name="keep").collect()


def _keyed() -> Pipeline:
    pipeline = Pipeline("floor-keyed")
    numbers = pipeline.source(Range(2 * EPOCHS, batch=1), name="numbers", shards=2)
    keyed = numbers.key_by(lambda n: n % 10)
    return keyed.fold(init=int, update=lambda had, n: had + n, name="sum", shards=2).collect()


FLOORS = (("stateless", _stateless, 120), ("keyed", _keyed, 200))
"""What has to be done, how, and the most that an epoch may take, in milliseconds."""


@dataclass
class Compared:
    """One load on all engines."""

    load: Load
    asked: tuple[native.Query, ...] = ()
    """How native Structured Streaming is asked the same."""
    rounds_s: dict[EngineName, list[float]] = field(default_factory=dict)
    native_per_s: dict[str, float] = field(default_factory=dict)
    """By the way it was asked."""

    def per_s(self, engine: EngineName) -> float:
        return self.load.records / min(self.rounds_s[engine])

    def ratio(self, engine: EngineName) -> float:
        """Against tasks."""
        return self.per_s(engine) / self.per_s("tasks")

    @property
    def times_native(self) -> float | None:
        """Micro-batches against the faster way of native Structured Streaming."""
        fastest = max(self.native_per_s.values(), default=None)
        return None if fastest is None else self.per_s("microbatch") / fastest

    def figures(self) -> list[Figure]:
        name = self.load.name
        figures = []
        for engine, rounds_s in self.rounds_s.items():
            per_s = tuple(round(self.load.records / took_s) for took_s in rounds_s)
            least = GOALS.get(engine)
            figures.append(
                Figure(
                    f"{name}, {engine}",
                    max(per_s),
                    "records/s",
                    target=None if least is None else at_least(least, of="ratio"),
                    ratio=None if least is None else round(self.ratio(engine), 3),
                    repetitions=per_s,
                )
            )
        for way, way_per_s in self.native_per_s.items():
            figures.append(Figure(f"{name}, native {way}", round(way_per_s), "records/s"))
        if self.times_native is not None:
            times = round(self.times_native, 1)
            figures.append(Figure(f"{name}, against native", times, "times", at_least(5)))
        return figures


def measure(
    *,
    parts: Collection[str] = PARTS,
    bids: int = 100_000_000,
    words: int = 10_000_000,
    windowed_bids: int = 30_000_000,
    native_words: int = 100_000,
    native_bids: int = 250_000,
    state_bytes: int = 100 << 20,
    seconds: float = 10.0,
    every_s: float = 1.0,
    rounds: int = 2,
    master: str = "local[2]",
    progress: Progress = lambda text: None,
) -> Report:
    """Starts, latency and floors first, then every load on all engines in turn; losses last.

    parts: of `PARTS`. seconds: how long latency and idling are measured on each engine. native_words, native_bids: how many native Structured Streaming gets in each of its triggers.
    """
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        raise UserError(f"there is no part {', '.join(unknown)}: say one of {', '.join(PARTS)}.")
    figures = []
    for engine in ENGINES if "starts" in parts else ():
        progress(f"starting {engine}")
        figures += engine_starts.measure(engine, master)
    for engine in ENGINES if "recovery" in parts else ():
        progress(f"killing a worker on {engine}")
        figures.append(_recovery(engine, master))
    for engine in ENGINES if "latency" in parts else ():
        progress(f"{RATE:,.0f} records/s on {engine}")
        figures += _latency(engine, seconds, master)
    for engine in ENGINES if "idle" in parts else ():
        figures += _idle(engine, seconds, progress)
    for name, make, target_ms in FLOORS if "floors" in parts else ():
        progress(f"the least an epoch costs, {name}")
        floor_ms = _floor_ms(make(), 1 if name == "stateless" else 2, master)
        figures.append(Figure(f"epoch floor, {name}", round(floor_ms, 1), "ms", at_most(target_ms)))
    fewer_words = max(1, native_words // 4)  # it is slow, and tells as much of itself
    compared = [
        Compared(Selection(bids)),
        Compared(
            WordCount(words),
            (native.NativeWordCount(native_words), native.TransformedWordCount(fewer_words)),
        ),
        Compared(WindowedCount(windowed_bids), (native.NativeWindowedCount(native_bids),)),
    ]
    compared = [one for one in compared if one.load.name in parts]
    for one in compared:
        for engine in ENGINES:
            progress(f"{one.load.name} on {engine}, warming up")
            _run(one.load.smaller(max(1, one.load.records // 20)), engine, every_s, master)
        for number in range(rounds):
            for engine in ENGINES:
                progress(f"{one.load.name} on {engine}, round {number + 1} of {rounds}")
                result = _run(one.load, engine, every_s, master)
                one.rounds_s.setdefault(engine, []).append(round(result.wall_s, 4))
        for query in one.asked:
            progress(f"{one.load.name} on native Structured Streaming, {query.way}")
            one.native_per_s[query.way] = native.measure(query, master)
    figures += [figure for one in compared for figure in one.figures()]
    if "losses" in parts:
        figures += engine_losses.measure(state_bytes=state_bytes, master=master, progress=progress)
    return Report("engines", figures, {"every_s": every_s, "state_bytes": state_bytes})


def _run(load: Load, engine: EngineName, every_s: float, master: str) -> RunResult:
    result = run(
        load.pipeline(),
        engine=engine,
        checkpoint=Coordinated(every=every_s),
        master=master,
        workers=None if engine == "microbatch" else 2,
        progress=False,
    )
    load.check(result)
    return result


def by_engine(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Quantity -> engine -> value, of the figures that are named "quantity, engine"."""
    rows: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        quantity, _, engine = name.rpartition(", ")
        if engine in ENGINES:
            rows.setdefault(quantity, {})[engine] = value
    return rows


def _latency(engine: EngineName, seconds: float, master: str) -> list[Figure]:
    measured = delays.measure_at(RATE, seconds, master, engine)
    at = f"at {RATE:,.0f}/s, {engine}"
    return [
        Figure(f"latency p50 {at}", measured.p50_ms, "ms"),
        Figure(f"latency p99 {at}", measured.p99_ms, "ms"),
        Figure(f"latency p99.9 {at}", measured.p999_ms, "ms"),
        Figure(f"machine stall {at}", measured.machine_stall_ms, "ms"),
    ]


def _idle(engine: EngineName, seconds: float, progress: Progress) -> list[Figure]:
    measured = idle.measure(seconds, progress, engine)
    local = engine == "local"
    return [
        Figure(
            f"idle, all Python, {engine}",
            measured.python_share,
            "of a core",
            at_most(IDLE_AT_MOST) if local else None,
        ),
        Figure(f"idle, Java, {engine}", measured.java_share, "of a core"),
    ]


def _recovery(engine: EngineName, master: str) -> Figure:
    kill = Kill("sum", 0, after_records=20_000)
    killed = run(
        _killed(),
        engine=engine,
        checkpoint=Coordinated(every=0.2),
        master=master,
        kill=[kill],
        progress=False,
    )
    (report,) = killed.recoveries
    assert report.restored_s is not None
    # Spark reports a dead process of a micro-batch only when it tries again.
    failed_s = report.detected_s if report.failed_s is None else report.failed_s
    recovery_s = report.restored_s - failed_s
    target = at_most(RESTORED_AT_MOST_S) if engine == "local" else None
    return Figure(f"worker killed until restored, {engine}", round(recovery_s, 3), "s", target)


def _killed() -> Pipeline:
    pipeline = Pipeline("killed")
    numbers = pipeline.source(Range(400_000, batch=1000), name="numbers")
    keyed = numbers.key_by(lambda n: n % 10)
    return keyed.fold(init=int, update=lambda had, n: had + n, name="sum").collect()


def _floor_ms(pipeline: Pipeline, per_epoch: int, master: str) -> float:
    """One record per source shard and epoch."""
    result = run(
        pipeline,
        engine="microbatch",
        checkpoint=Coordinated(every_records=per_epoch),
        master=master,
        progress=False,
    )
    warm: list[EpochManifest] = list(result.checkpoints)[WARM_EPOCHS:]
    return 1000 * median(manifest.duration_s for manifest in warm)
