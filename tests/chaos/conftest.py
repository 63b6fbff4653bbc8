"""A pipeline whose shards say which process they run in, and a listener that kills them."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.core.manifest import EpochManifest
from everstream.spark.listener import Listener

MASTER = "local[6]"
RECORDS = 60_000
KEYS = 50


class Register(es.Operator):
    """Passes records on, and writes down which process runs this shard."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def on_start(self, ctx: es.Context) -> None:
        (Path(self.folder) / f"{ctx.operator}.{ctx.shard}").write_text(str(os.getpid()))

    def process_batch(self, batch: Any, ctx: es.Context) -> None:
        ctx.emit_batch(batch)


def killable(folder: Path, records: int = RECORDS, rate: float = 20_000) -> es.Pipeline:
    """numbers -> front | middle | count x2 | out: every part on a host of its own."""
    pids = folder / "pids"
    pids.mkdir(exist_ok=True)
    pipeline = es.Pipeline("killable")
    numbers = pipeline.source(es.Paced(es.Range(records), rate=rate), name="numbers")
    front = numbers.process(Register(str(pids)), name="front")
    middle = front.on_demand().map(lambda n: n * 3, name="triple")
    middle = middle.process(Register(str(pids)), name="middle")
    counts = middle.key_by(lambda n: n % KEYS).aggregate(
        init=int, update=lambda count, n: count + 1, name="count", shards=2
    )
    back = counts.on_demand().process(Register(str(pids)), name="back", shards=1)
    back.sink(es.JsonLines(str(folder / "out")), name="out")
    return pipeline


def expected(records: int = RECORDS) -> Counter[Any]:
    """The same as a plain sequential program."""
    counts: Counter[int] = Counter()
    rows: Counter[Any] = Counter()
    for n in range(records):
        key = n * 3 % KEYS
        counts[key] += 1
        rows[key, counts[key]] += 1
    return rows


def shown(folder: Path) -> Counter[Any]:
    """What the sink has shown."""
    import json

    return Counter(
        tuple(json.loads(line))
        for path in (folder / "out").glob("part-*.jsonl")
        for line in path.read_text().splitlines()
    )


def pid_of(folder: Path, operator: str, shard: int = 0) -> int:
    return int((folder / "pids" / f"{operator}.{shard}").read_text())


class Killer(Listener):
    """Calls `at_epoch` when an epoch becomes stable and `at_failure` when a host was lost."""

    def __init__(
        self,
        at_epoch: Callable[[int], None] = lambda epoch: None,
        at_failure: Callable[[int], None] = lambda failure: None,
    ) -> None:
        self.at_epoch = at_epoch
        self.at_failure = at_failure
        self.failures = 0
        self.notes: list[str] = []

    def epoch(self, manifest: EpochManifest) -> None:
        self.at_epoch(manifest.epoch)

    def note(self, text: str, warning: bool) -> None:
        self.notes.append(text)
        if "going back to epoch" in text:
            self.failures += 1
            self.at_failure(self.failures)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
