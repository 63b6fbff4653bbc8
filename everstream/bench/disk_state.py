"""State on disk: more keys than memory would hold, what checkpoints cost there, and a recovery.

One host counts how often it has seen each of many keys, chosen at random. It is filled once; from a
savepoint of that, runs without and with checkpoints take turns, and one is killed.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from everstream.bench.took import Took, busy
from everstream.connectors.generate import FromFunction
from everstream.errors import InternalError
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.checkpointing import Coordinated
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.stream import Pipeline
from everstream.spark.result import RunResult
from everstream.spark.run import run
from everstream.state.savepoints import take_savepoint
from everstream.state.store import CheckpointStore

BATCH = 8192
HOLD_S = 0.5
"""Per batch, once it is filled."""
NEVER = Coordinated(every="10h")
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Counts(Operator):
    """Counts its records by key. The last record says how long that took, and in what memory."""

    counts = Keyed[int](init=int, state="disk")

    def __init__(self, filled: int | None = None) -> None:
        """filled: from so many records on it takes its time, until the run is stopped."""
        self.filled = filled

    def on_start(self, ctx: Context) -> None:
        self.records = 0
        self.memory_bytes = 0
        self.began = Took.by_now()

    def process_batch(self, batch: Batch, ctx: Context) -> None:
        if not self.records:
            self.began = Took.by_now()
        keys = records_of(batch)
        counts = self.counts.changing(keys)
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
        self.records += len(keys)
        if self.filled is not None and self.records >= self.filled:
            time.sleep(HOLD_S)
        self.memory_bytes = max(self.memory_bytes, _own_memory_bytes())

    def on_end(self, ctx: Context) -> None:
        took = Took.by_now().since(self.began)
        ctx.emit(Told(self.records, took, self.memory_bytes, len(self.counts)))


@dataclass(frozen=True)
class Told:
    """What the operator says at the end of a run."""

    records: int
    took: Took
    memory_bytes: int
    keys: int

    @property
    def per_s(self) -> float:
        return self.records / self.took.wall_s

    @property
    def unqueued_per_s(self) -> float:
        return self.records / self.took.unqueued_s


@dataclass
class DiskState:
    """Records per second with checkpoints on and off, and what that means."""

    keys: int
    interval_s: float
    filled_per_s: float = 0.0
    state_bytes: int = 0
    """On disk."""
    checkpoint_cost: float = 0.0
    """Share of the throughput lost; best rounds compared."""
    unqueued_cost: float = 0.0
    """The same without the time in which the operator waited for a processor."""
    median_cost: float = 0.0
    """The same as the first per round; the middle one."""
    background_share: float = 0.0
    """Of one processor, what checkpoints take in the host beside the operator; medians compared."""
    checkpoints_per_run: float = 0.0
    uploaded_bytes: float = 0.0
    """Per checkpoint."""
    largest_capture_s: float = 0.0
    memory_bytes: int = 0
    """The most that the host had of its own: without pages of files, which the system takes back."""
    recovery_s: float = 0.0
    """From the kill until the state was there again."""
    with_per_s: list[float] = field(default_factory=list)
    without_per_s: list[float] = field(default_factory=list)


def measure(
    *,
    keys: int = 20_000_000,
    updates: int = 3_000_000,
    interval_s: float = 10.0,
    rounds: int = 3,
    master: str = "local[2]",
    folder: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> DiskState:
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
    progress: Callable[[str], None],
) -> DiskState:
    found = DiskState(keys, interval_s)
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
    found.filled_per_s = round(keys / (time.monotonic() - began_s))
    found.state_bytes = sum(r.restore_bytes for r in result.checkpoints[-1].records.values())
    take_savepoint(CheckpointStore.at(filled), "filled", time.time())
    captures: list[float] = [0.0]
    uploads: list[int] = []
    epochs: list[int] = []
    off: list[Told] = []
    on: list[Told] = []

    def without(number: int) -> None:
        progress(f"round {number} of {rounds}: without checkpoints")
        off.append(_told(going_on(NEVER)))

    def with_them(number: int) -> None:
        progress(f"round {number} of {rounds}: every {interval_s:g} s")
        result = going_on(Coordinated(every=interval_s))
        told = _told(result)
        on.append(told)
        found.memory_bytes = max(found.memory_bytes, told.memory_bytes)
        if told.keys != keys:
            raise InternalError(f"{told.keys} keys were counted, not {keys}")
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
    if report.restored_s is not None and report.failed_s is not None:
        found.recovery_s = round(report.restored_s - report.failed_s, 3)
    found.with_per_s, found.without_per_s = [t.per_s for t in on], [t.per_s for t in off]
    costs = [1 - w / o for w, o in zip(found.with_per_s, found.without_per_s, strict=True)]
    found.checkpoint_cost = round(1 - max(found.with_per_s) / max(found.without_per_s), 4)
    unqueued = [max(told.unqueued_per_s for told in runs) for runs in (on, off)]
    found.unqueued_cost = round(1 - unqueued[0] / unqueued[1], 4)
    found.background_share = round(busy(t.took for t in on) - busy(t.took for t in off), 4)
    found.median_cost = round(statistics.median(costs), 4)
    found.checkpoints_per_run = statistics.mean(epochs)
    found.uploaded_bytes = sum(uploads) / max(1, sum(epochs))
    found.largest_capture_s = round(max(captures), 4)
    return found


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


def _told(result: RunResult) -> Told:
    [told] = result.collected()
    assert isinstance(told, Told)
    return told


def _own_memory_bytes() -> int:
    """What this process has that is no page of a file."""
    with open(f"/proc/{os.getpid()}/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0
