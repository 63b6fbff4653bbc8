"""What it costs to resume from a store and sinks that have been in use for long.

A store keeps a slot for every driver it ever had, a file sink a part for every checkpoint, a table
every row. Recovery must not get slower with any of them: each is measured with little of it and with
much. Reads are counted as well, because those do not depend on the machine.
"""

import builtins
import os
import sqlite3
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from everstream.connectors.files.json_lines import JsonLines
from everstream.connectors.files.parts import PartFolder, PartName, owner_of
from everstream.connectors.sql.sqlite import Sqlite
from everstream.core.permits import permit
from everstream.errors import InternalError
from everstream.pipeline.sink import Sink, SinkShard
from everstream.state.blobs import FsspecBlobs
from everstream.state.manifests import Lease, encoded, path_of
from everstream.state.store import CheckpointStore
from everstream_lab.bench.report import Figure, Progress, Report, Target

FEW = 10
ROUNDS = 5


@dataclass(frozen=True)
class Cost:
    """The cost of one recovery, with this many accumulated parts or rows."""

    what: str
    many: int
    took_s: float
    """The median of some."""
    reads: int | None = None
    """Blobs that were read or listed, where that can be counted."""


class _Counted(FsspecBlobs):
    reads = 0

    def read(self, path: str) -> bytes:
        self.reads += 1
        return super().read(path)

    def list(self, prefix: str, after: str = "") -> builtins.list[str]:
        names = super().list(prefix, after)
        self.reads += len(names)
        return names


def measure(slots: int, parts: int, rows: int, progress: Progress) -> list[Cost]:
    """Each with few and with as many as this."""
    costs: list[Cost] = []
    for name, most, work in (
        ("slots", slots, _slots),
        ("parts", parts, _parts),
        ("rows", rows, _rows),
    ):
        for many in sorted({min(FEW, most), most}):
            progress(f"{name}: {many:,}")
            with tempfile.TemporaryDirectory(prefix="everstream-bench-") as folder:
                costs.append(work(Path(folder), many))
    return costs


def measure_report(slots: int, parts: int, rows: int, progress: Progress) -> Report:
    """To open a store must not take more reads, however often it was opened."""
    fewest: dict[str, int] = {}
    figures = []
    for cost in measure(slots, parts, rows, progress):
        name = f"{cost.what}, {cost.many:,}"
        figures.append(Figure(f"{name}, median", 1000 * cost.took_s, "ms"))
        if cost.reads is not None:
            fewest.setdefault(cost.what, cost.reads)
            no_more = Target("at most", fewest[cost.what], required=True)
            figures.append(Figure(f"{name}, blobs read or listed", cost.reads, "", no_more))
    return Report("open", figures)


def _slots(folder: Path, many: int) -> Cost:
    """A store that this many drivers have opened; only the first wrote a checkpoint."""
    store = CheckpointStore.at(str(folder))
    first = store.acquire_lease("driver")
    store.append_manifest(first, {"objects": [], "epoch": 1})
    for slot in range(3, many + 3):
        (folder / path_of(slot)).write_bytes(encoded("lease", Lease(slot, slot), ["driver", ""]))
    _opened(folder)  # writes the index, once
    took, reads = zip(*(_opened(folder) for _ in range(ROUNDS)), strict=True)
    return Cost("slots", many, statistics.median(took), max(reads))


def _opened(folder: Path) -> tuple[float, int]:
    """As a run opens its store."""
    blobs = _Counted(str(folder))
    store = CheckpointStore(blobs)
    began_s = time.perf_counter()
    store.survey()
    lease = store.acquire_lease("driver")
    if [manifest.epoch for manifest in store.manifests()] != [1]:
        raise InternalError("the checkpoint of a store that was opened often is gone")
    store.sweep(lease)
    return time.perf_counter() - began_s, blobs.reads


def _parts(folder: Path, many: int) -> Cost:
    """A folder with this many parts of one shard, which recovers from the last of them."""
    sink = JsonLines(folder / "out")
    place = PartFolder.at(str(folder / "out"), ".jsonl")
    place.create()
    for checkpoint in range(1, many + 1):
        name = PartName(owner_of("bench", "out"), 0, checkpoint, 1)
        os.close(os.open(place.path_of(name), os.O_CREAT | os.O_WRONLY))
    return Cost("parts", many, _recovered(sink, many))


def _rows(folder: Path, many: int) -> Cost:
    """A table with this many rows of one shard, all of one checkpoint, from which it recovers."""
    sink = Sqlite(folder / "bench.db", "bench")
    writer = sink.open(_sink_shard(1, str(folder)))
    writer.recover([], permit(0))
    writer.write([{"n": 1}])
    prepared = writer.prepare(1)
    assert prepared is not None
    prepared.commit(permit(1))
    writer.close()
    with sqlite3.connect(folder / "bench.db") as database:
        there = 1
        while there < many:
            more = min(there, many - there)
            database.execute(f"INSERT INTO bench SELECT * FROM bench LIMIT {more}")
            there += more
    database.close()
    return Cost("rows", many, _recovered(sink, 1, str(folder)))


def _recovered(sink: Sink, checkpoint: int, store: str = "") -> float:
    """How long a shard takes, the median of some generations."""
    took: list[float] = []
    for generation in range(2, 2 + ROUNDS):
        began_s = time.perf_counter()
        writer = sink.open(_sink_shard(generation, store))
        writer.recover([], permit(checkpoint, takes_back=False))
        took.append(time.perf_counter() - began_s)
        writer.close()
    return statistics.median(took)


def _sink_shard(generation: int, store: str) -> SinkShard:
    return SinkShard("bench", "out", 0, 1, generation, store)
