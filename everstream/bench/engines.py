"""Both engines on the same work in the same run: what an epoch costs at least, and throughput.

The floor of micro-batches is the median time of epochs that have next to nothing to read, once
for a pipeline without state and once for a keyed one. Throughput is that of `bench throughput`,
with every output checked; the engines take turns, and the best round of each counts, because noise
only ever makes a run slower. In the same run native Structured Streaming does the stateful ones with
Python (`everstream.bench.native`), and epochs lose caches and workers (`engine_losses`).
"""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from statistics import median
from typing import Any, get_args

from everstream.bench import engine_losses, native
from everstream.bench.throughput import Load, Selection, WindowedCount, WordCount
from everstream.connectors.generate import Range
from everstream.core.manifest import EpochManifest
from everstream.errors import UserError
from everstream.pipeline.checkpointing import Coordinated, Engine
from everstream.pipeline.stream import Pipeline
from everstream.spark.result import RunResult
from everstream.spark.run import run

ENGINES: tuple[Engine, ...] = get_args(Engine)
PARTS = ("floors", "nexmark_2", "word_count", "windowed_count", "losses")
"""What can be measured by itself."""
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


@dataclass
class Compared:
    """One load on both engines."""

    load: Load
    asked: tuple[native.Query, ...] = ()
    """How native Structured Streaming is asked the same."""
    rounds_s: dict[Engine, list[float]] = field(default_factory=dict)
    native_per_s: dict[str, float] = field(default_factory=dict)
    """By the way it was asked."""

    def per_s(self, engine: Engine) -> float:
        return self.load.records / min(self.rounds_s[engine])

    @property
    def ratio(self) -> float:
        """Micro-batches against tasks."""
        return self.per_s("microbatch") / self.per_s("tasks")

    @property
    def times_native(self) -> float | None:
        """Micro-batches against the faster way of native Structured Streaming."""
        fastest = max(self.native_per_s.values(), default=None)
        return None if fastest is None else self.per_s("microbatch") / fastest

    def to_json(self) -> dict[str, Any]:
        times = self.times_native
        return {
            "records": self.load.records,
            "ratio": round(self.ratio, 3),
            "native_per_s": {way: round(rate) for way, rate in self.native_per_s.items()},
            "times_native": times and round(times, 1),
            **{f"{engine}_per_s": round(self.per_s(engine)) for engine in self.rounds_s},
            "rounds_s": {engine: list(took_s) for engine, took_s in self.rounds_s.items()},
        }


@dataclass
class Engines:
    """The figures of `everstream bench engines`."""

    floors_ms: dict[str, float]
    compared: list[Compared]
    losses: engine_losses.Losses | None
    every_s: float
    cores: int

    def to_json(self) -> dict[str, Any]:
        found = {
            "floor_ms": {name: round(floor, 1) for name, floor in self.floors_ms.items()},
            "ratio": {one.load.name: round(one.ratio, 3) for one in self.compared},
            "times_native": {
                one.load.name: round(one.times_native, 1)
                for one in self.compared
                if one.times_native is not None
            },
            "losses": self.losses.to_json() if self.losses is not None else {},
            "every_s": self.every_s,
            "cores": self.cores,
            "details": {one.load.name: one.to_json() for one in self.compared},
        }
        return {name: value for name, value in found.items() if value != {}}


def together(earlier: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Figures with those of parts that were measured before."""
    both = {**earlier, **found}
    for name, value in found.items():
        if isinstance(value, dict):
            both[name] = {**earlier.get(name, {}), **value}
    return both


def measure(
    *,
    parts: Collection[str] = PARTS,
    bids: int = 100_000_000,
    words: int = 10_000_000,
    windowed_bids: int = 30_000_000,
    native_words: int = 100_000,
    native_bids: int = 250_000,
    state_bytes: int = 100 << 20,
    every_s: float = 1.0,
    rounds: int = 2,
    master: str = "local[2]",
    progress: Callable[[str], None] = lambda text: None,
) -> Engines:
    """Floors first, then every load on both engines in turn; losses last.

    parts: of `PARTS`. native_words, native_bids: how many native Structured Streaming gets in each of its triggers.
    """
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        raise UserError(f"there is no part {', '.join(unknown)}: say one of {', '.join(PARTS)}.")
    floors_ms = {}
    for name, make in (("stateless", _stateless), ("keyed", _keyed)) if "floors" in parts else ():
        progress(f"the least an epoch costs, {name}")
        floors_ms[name] = _floor_ms(make(), 1 if name == "stateless" else 2, master)
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
    losses = None
    if "losses" in parts:
        losses = engine_losses.measure(state_bytes=state_bytes, master=master, progress=progress)
    return Engines(floors_ms, compared, losses, every_s, os.cpu_count() or 1)


def _run(load: Load, engine: Engine, every_s: float, master: str) -> RunResult:
    result = run(
        load.pipeline(),
        engine=engine,
        checkpoint=Coordinated(every=every_s),
        master=master,
        workers=2 if engine == "tasks" else None,
        progress=False,
    )
    load.check(result)
    return result


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
