"""A pipeline that leaves every kind of file behind, cut off in the middle and gone on with.

Core, runtime, connectors and store are the real ones, on a real folder; workers and network are
simulated, so that a run takes a fraction of a second.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

import everstream as es
from everstream.connectors import END, Reader
from everstream.connectors.dead_letters import folder_of
from everstream.core.orders import Outcome, Policy
from everstream.core.scheme import Checkpointing, scheme_of
from everstream.engine.store_session import sinks_of
from everstream.errors import EverstreamError
from everstream.pipeline.batch import Batch, records_of
from everstream.pipeline.source import EndOfStream
from everstream.pipeline.stream import Pipeline
from everstream.simulation.disk import SimulatedDisk
from everstream.simulation.faults import NO_FAULTS
from everstream.simulation.workers import SimulatedWorker
from everstream.simulation.world import World
from everstream.state import FsspecBlobs
from everstream.state.objects import Data
from tests.docs.simulated import Given

TOTAL = 300
NAME = "left-behind"
PER_EPOCH = 40
FEED: list[int] = []
"""What a live feed has yet to give: each record once, to whoever asks."""
GATE = [TOTAL]
"""Records from this number on are not there yet."""


class Live(es.Source[int]):
    """Gives the FEED, two records at a time; cannot go back."""

    replayable = False
    max_shards = 1

    def open(self, shard: int, shards: int) -> Reader:
        return LiveReader()


class LiveReader(Reader):
    offset = None

    def seek(self, offset: Any) -> None:
        raise AssertionError("a live feed cannot go back")

    def read(self) -> Batch | EndOfStream | None:
        if not FEED:
            return END
        given = [n for n in FEED[:2] if n < GATE[0]]
        del FEED[: len(given)]
        return given or None


def pipeline_in(folder: Path) -> Pipeline:
    pipeline = Pipeline(NAME)
    numbers = pipeline.source(es.Journal(Live(), folder / "journal"), name="live").on_demand()
    rows = numbers.map(lambda n: {"n": n, "text": f"number {n}"}, name="rows")
    rows.sink(es.JsonLines(folder / "lines"), name="lines")
    rows.sink(es.Parquet(folder / "parquet"), name="parquet")
    rows.sink(es.Sqlite(folder / "rows.db", "rows"), name="table")
    good = numbers.map(lambda n: (n, 1 // (n % 10)), name="divide", on_error="dead_letter")
    counts = good.key_by(lambda pair: pair[0] % 7)
    counts.fold(init=int, update=lambda count, _: count + 1, name="count").collect()
    return pipeline


def expected() -> dict[str, Counter[Any]]:
    numbers = range(TOTAL)
    keys = Counter(n % 7 for n in numbers if n % 10)
    return {
        "lines": Counter(numbers),
        "parquet": Counter(numbers),
        "table": Counter(numbers),
        "letters": Counter(n for n in numbers if n % 10 == 0),
        "collect": Counter((key, n + 1) for key, total in keys.items() for n in range(total)),
    }


def shown(folder: Path) -> dict[str, Counter[Any]]:
    """What the world sees."""

    def lines(of: Path) -> Iterator[dict[str, Any]]:
        for part in of.glob("part-*.jsonl"):
            yield from map(json.loads, part.read_text().splitlines())

    store = folder / "store"
    collected: list[Batch] = es.Collect().results(NAME, "collect", str(store)) or []
    database = sqlite3.connect(folder / "rows.db")
    rows = database.execute("SELECT n FROM rows").fetchall()
    database.close()
    parts = sorted((folder / "parquet").glob("part-*.parquet"))
    return {
        "lines": Counter(row["n"] for row in lines(folder / "lines")),
        "parquet": Counter(n for part in parts for n in pl.read_parquet(part)["n"]),
        "table": Counter(n for (n,) in rows),
        "letters": Counter(
            letter["record"] for letter in lines(Path(folder_of(str(store), "divide").path))
        ),
        "collect": Counter(tuple(pair) for batch in collected for pair in records_of(batch)),
    }


class FolderDisk(SimulatedDisk):
    """The store on a real disk, in a world that can still watch it."""

    def __init__(self, world: World, folder: Path) -> None:
        super().__init__(world.scheduler.random)
        self.watch = world.disk.watch
        self._blobs = FsspecBlobs(str(folder))

    def write(self, path: str, data: Data) -> None:
        self._blobs.write(path, data)

    def write_summed(self, path: str, data: Data) -> str:
        return self._blobs.write_summed(path, data)

    def create(self, path: str, data: bytes) -> None:
        self._blobs.create(path, data)
        if self.watch is not None:
            self.watch(path, data)

    def read(self, path: str) -> bytes:
        return self._blobs.read(path)

    def list(self, prefix: str, after: str = "") -> list[str]:
        return self._blobs.list(prefix, after)

    def delete(self, path: str) -> None:
        self._blobs.delete(path)

    def clean(self) -> None:
        self._blobs.clean()


class OnDisk(World):
    """A world whose store is a folder."""

    folder: ClassVar[Path]

    def _start_driver(self) -> None:
        self.disk = FolderDisk(self, self.folder / "store")
        super()._start_driver()


class Cut(Exception):
    """Everything stops here, as in a power failure."""


def make_world(folder: Path, checkpoint: Checkpointing, seed: int) -> OnDisk:
    OnDisk.folder = folder
    SimulatedWorker.store_url = str(folder / "store")
    pipeline = pipeline_in(folder)
    shape = Given(NAME, 2, lambda pipeline, world: None, dict, given=pipeline)
    policy = Policy(every_s=0.01, max_restarts=1)
    return OnDisk(seed, shape, NO_FAULTS, scheme_of(checkpoint), policy)


def cut_off(folder: Path, checkpoint: Checkpointing, at: str | int, seed: int) -> list[int]:
    """Run in a new folder until something happens, or so many things; what is left of the feed."""
    FEED[:], GATE[:] = range(TOTAL), [PER_EPOCH]
    for name, sink in sinks_of(pipeline_in(folder).graph):
        sink.start_fresh(NAME, name, str(folder / "store"), replace=False)
    world = make_world(folder, checkpoint, seed)

    events = count(1)

    def cut() -> None:
        raise Cut

    def watch(happened: str) -> None:
        if isinstance(at, str) and happened.startswith(at):
            raise Cut
        if next(events) == at:
            world.scheduler.after(0.0, cut)
        if happened.startswith("epoch") and happened.endswith("is stable"):
            GATE[0] += PER_EPOCH

    world.watchers.append(watch)
    try:
        history = world.run()
    except Cut:
        return list(FEED)
    raise AssertionError(f"'{at}' never happened: {history}")


def go_on(folder: Path, checkpoint: Checkpointing, feed: list[int], seed: int) -> str | None:
    """Go on from what is there, to the end; the error if that is refused."""
    FEED[:], GATE[:] = feed, [TOTAL]
    try:
        for name, sink in sinks_of(pipeline_in(folder).graph):
            sink.before_resume(NAME, name, str(folder / "store"))
        world = make_world(folder, checkpoint, seed)
        history = world.run()
    except EverstreamError as error:
        return str(error)
    assert not history.violations, history.violations
    if history.outcome is Outcome.FINISHED:
        return None
    return "\n".join(history.notes)
