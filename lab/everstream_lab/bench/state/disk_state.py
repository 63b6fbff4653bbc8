"""State on disk: more keys than memory would hold, what checkpoints cost there, and a recovery.

One worker counts how often it has seen each of many keys, chosen at random. It is filled once; from a
savepoint of that, runs without and with checkpoints take turns, and one is killed.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from everstream.connectors.generate.sources import FromFunction
from everstream.engine.result import RunResult
from everstream.engine.run import run
from everstream.errors import InternalError
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.stream import Pipeline
from everstream.state.savepoints import take_savepoint
from everstream.state.store import CheckpointStore
from everstream_lab.bench.durations import Durations, busy
from everstream_lab.bench.report import Figure, Progress, Report, at_most

BATCH = 8192
HOLD_S = 0.5
"""Per batch, once it is filled."""
NEVER = Coordinated(every="10h")
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Counts(Operator):
    """Counts its records by key. The last record says how long that took, and in what memory."""

    counts = Keyed[int](init=int, state="disk")

    def __init__(self, filled: int | None = None) -> None:
        """`filled`: from this many records on it slows down, until the run is stopped."""
        self.filled = filled

    def on_start(self, ctx: Context) -> None:
        self.records = 0
        self.memory_bytes = 0
        self.began = Durations.by_now()

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        if not self.records:
            self.began = Durations.by_now()
        keys = records_of(batch)
        counts = self.counts.changing(keys)
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
        self.records += len(keys)
        if self.filled is not None and self.records >= self.filled:
            time.sleep(HOLD_S)
        self.memory_bytes = max(self.memory_bytes, _own_memory_bytes())

    def on_end(self, ctx: Context) -> None:
        took = Durations.by_now().since(self.began)
        ctx.emit(CountReport(self.records, took, self.memory_bytes, len(self.counts)))


@dataclass(frozen=True)
class CountReport:
    """What the operator says at the end of a run."""

    records: int
    took: Durations
    memory_bytes: int
    keys: int

    @property
    def per_s(self) -> float:
        return self.records / self.took.wall_s

    @property
    def unqueued_per_s(self) -> float:
        return self.records / self.took.unqueued_s


def measure(
    *,
    keys: int = 20_000_000,
    updates: int = 3_000_000,
    interval_s: float = 10.0,
    rounds: int = 3,
    master: str = "local[2]",
    folder: str | None = None,
    progress: Progress = lambda text: None,
) -> Report:
    """Fill, then `updates` of random keys per run, without and with checkpoints in turn."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return _measure(Path(place), keys, updates, interval_s, rounds, master, progress)


def _measure(
    place: Path,
    keys: int,
    updates: int,
    interval_s: float,
    rounds: int,
    master: str,
    progress: Progress,
) -> Report:
    filled = str(place / "filled")
    numbers = iter(range(1_000_000))

    def pipeline(until: int | None = None) -> Pipeline:
        made = Pipeline("disk-state")
        source = made.source(FromFunction(_keys(keys), total=keys + updates, batch=BATCH))
        source.on_demand().process(Counts(until), name="counts").collect()
        return made

    def going_on(checkpoint: Coordinated, kill: tuple[str, ...] = ()) -> RunResult:
        return run(
            pipeline(),
            checkpoint=checkpoint,
            store=str(place / f"run-{next(numbers)}"),
            start_from=f"{filled}@filled",
            master=master,
            workers=2,
            kill=kill,
        )

    progress(f"filling it with {keys:,} keys")
    began_s = time.monotonic()
    result = run(
        pipeline(keys),
        checkpoint=Coordinated(every=interval_s),
        store=filled,
        master=master,
        workers=2,
        until=lambda snapshot: snapshot.totals.get("counts", 0) >= keys,
    )
    filled_per_s = round(keys / (time.monotonic() - began_s))
    state_bytes = sum(r.restore_bytes for r in result.checkpoints[-1].records.values())
    take_savepoint(CheckpointStore.at(filled), "filled", time.time())
    captures: list[float] = [0.0]
    uploads: list[int] = []
    epochs: list[int] = []
    off: list[CountReport] = []
    on: list[CountReport] = []

    def without(number: int) -> None:
        progress(f"round {number} of {rounds}: without checkpoints")
        off.append(_report_of(going_on(NEVER)))

    def with_them(number: int) -> None:
        progress(f"round {number} of {rounds}: every {interval_s:g} s")
        result = going_on(Coordinated(every=interval_s))
        counted = _report_of(result)
        on.append(counted)
        if counted.keys != keys:
            raise InternalError(f"{counted.keys} keys were counted, not {keys}")
        taken = [manifest for manifest in result.checkpoints if not manifest.final]
        epochs.append(len(taken))
        captures.extend(r.capture_s for m in taken for r in m.records.values())
        uploads.extend(sum(r.size_bytes for r in m.records.values()) for m in taken)

    for number in range(1, rounds + 1):
        for side in (without, with_them) if number % 2 else (with_them, without):
            side(number)
    progress("a kill")
    killed = going_on(Coordinated(every=interval_s), (f"counts@{updates // 10}",))
    [report] = killed.recoveries
    recovery_s = 0.0
    if report.restored_s is not None and report.failed_s is not None:
        recovery_s = round(report.restored_s - report.failed_s, 3)
    with_per_s, without_per_s = (
        [counted.per_s for counted in on],
        [counted.per_s for counted in off],
    )
    costs = [1 - w / o for w, o in zip(with_per_s, without_per_s, strict=True)]
    unqueued = [max(counted.unqueued_per_s for counted in runs) for runs in (on, off)]
    background = busy(counted.took for counted in on) - busy(counted.took for counted in off)
    figures = [
        Figure("state", state_bytes, "bytes"),
        # The most that the worker had without pages of files, which the system takes back.
        Figure("memory", max(counted.memory_bytes for counted in on), "bytes", at_most(1e9)),
        Figure("filled", filled_per_s, "records/s"),
        # Share of the throughput lost; best rounds compared.
        Figure(
            "checkpoint_cost", round(1 - max(with_per_s) / max(without_per_s), 4), "", at_most(0.05)
        ),
        # The same without the time in which the operator waited for a processor.
        Figure("unqueued_cost", round(1 - unqueued[0] / unqueued[1], 4)),
        Figure("median_cost", round(statistics.median(costs), 4), repetitions=tuple(costs)),
        # Of one processor, what checkpoints take in the worker beside the operator.
        Figure("background_share", round(background, 4)),
        Figure("checkpoints_per_run", statistics.mean(epochs)),
        Figure("uploaded", sum(uploads) / max(1, sum(epochs)), "bytes"),
        Figure("largest_capture", round(max(captures), 4), "s"),
        # From the kill until the state was there again.
        Figure("recovery", recovery_s, "s"),
        Figure.median("with", with_per_s, "records/s"),
        Figure.median("without", without_per_s, "records/s"),
    ]
    return Report("state --state disk", figures, {"keys": keys, "interval_s": interval_s})


def _keys(keys: int) -> Callable[[int, int], list[int]]:
    """Each key once, and from then on any, from its number alone."""

    def make(start: int, stop: int) -> list[int]:
        numbers = np.arange(start, stop, dtype=np.uint64)
        with np.errstate(over="ignore"):
            mixed = (numbers * _MIX) ^ ((numbers * _MIX) >> np.uint64(32))
        chosen = np.where(numbers < keys, numbers, mixed % np.uint64(keys))
        made: list[int] = chosen.astype(np.int64).tolist()
        return made

    return make


def _report_of(result: RunResult) -> CountReport:
    [report] = result.collected()
    assert isinstance(report, CountReport)
    return report


def _own_memory_bytes() -> int:
    """What this process has that is no page of a file."""
    with open(f"/proc/{os.getpid()}/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0
