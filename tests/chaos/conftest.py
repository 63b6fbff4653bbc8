"""A pipeline whose shards say which process they run in, and a listener that kills them."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import everstream as es
from everstream.connectors import END, Reader
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.engine.reporting.listener import Listener
from everstream.events import (
    AnyFailure,
    ConnectionCut,
    EpochRepeated,
    EpochStable,
    OperatorFailed,
    Progressed,
    RunEvent,
    RunStatus,
    WorkerLost,
)
from everstream.state.store import CheckpointStore
from tests.output import rows_in
from tests.s3_server import BUCKET, S3Server
from tests.spark import MASTER as MASTER

from .places import IN_A_BUCKET

RECORDS = 60_000
KEYS = 50
T = TypeVar("T")


@pytest.fixture(scope="session", autouse=True)
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A real one, in which all stores are, if that is wanted."""
    if IN_A_BUCKET not in os.environ:
        yield
        return
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        os.environ.update({**server.variables, IN_A_BUCKET: f"s3://{BUCKET}"})
        yield


class Register(es.Operator):
    """Passes records on, and writes down which process runs this shard."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def on_start(self, ctx: es.Context) -> None:
        (Path(self.folder) / f"{ctx.operator}.{ctx.shard}").write_text(str(os.getpid()))

    def process_batch(self, batch: Any, ctx: es.Context) -> None:
        ctx.emit_batch(batch)


class Gated(es.Source):
    """Numbers at a good pace, but the last tenth only trickles until the gate is open.

    So a run lasts as long as its story needs, however slow the machine is.
    """

    max_shards = 1

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def open(self, shard: int, shards: int) -> Reader:
        return GatedReader(self.gate)


class GatedReader(Reader):
    def __init__(self, gate: Path) -> None:
        self.gate = gate
        self.next = 0
        self.rest = True

    @property
    def offset(self) -> int:
        return self.next

    def seek(self, offset: int) -> None:
        self.next = offset

    def read(self) -> Any:
        self.rest = not self.rest
        if self.next >= RECORDS:
            return END
        if self.rest:
            return None
        trickle = self.next >= RECORDS * 9 // 10 and not self.gate.exists()
        stop = min(RECORDS, self.next + (1 if trickle else 250))
        if trickle and stop == RECORDS:
            return None
        batch = list(range(self.next, stop))
        self.next = stop
        return batch

    def ready_in_s(self) -> float:
        return 0.005


def open_gate(folder: Path) -> None:
    (folder / "gate").touch()


def killable(folder: Path) -> es.Pipeline:
    """numbers -> front | middle | count x2 | out: every part on a worker of its own."""
    pids = folder / "pids"
    pids.mkdir(exist_ok=True)
    pipeline = es.Pipeline("killable")
    numbers = pipeline.source(Gated(folder / "gate"), name="numbers")
    front = numbers.process(Register(str(pids)), name="front")
    middle = front.on_demand().map(lambda n: n * 3, name="triple")
    middle = middle.process(Register(str(pids)), name="middle")
    counts = middle.key_by(lambda n: n % KEYS).fold(
        init=int, update=lambda count, n: count + 1, name="count", shards=2
    )
    back = counts.on_demand().process(Register(str(pids)), name="back", shards=1)
    back.sink(es.JsonLines(str(folder / "out")), name="out")
    return pipeline


def expected() -> Counter[Any]:
    """The same as a plain sequential program."""
    counts: Counter[int] = Counter()
    rows: Counter[Any] = Counter()
    for n in range(RECORDS):
        key = n * 3 % KEYS
        counts[key] += 1
        rows[key, counts[key]] += 1
    return rows


def shown(folder: Path) -> Counter[Any]:
    """What the sink has shown."""
    return rows_in(folder / "out")


def pid_of(folder: Path, operator: str, shard: int = 0) -> int:
    return int((folder / "pids" / f"{operator}.{shard}").read_text())


class Killer(Listener):
    """Calls `at_epoch` when an epoch becomes stable and `at_failure` when a worker was lost.

    Opens the gate once as many failures as expected have been recovered from.
    """

    def __init__(
        self,
        folder: Path,
        failures: int = 1,
        at_epoch: Callable[[int], None] = lambda epoch: None,
        at_failure: Callable[[int], None] = lambda failure: None,
    ) -> None:
        self.folder = folder
        self.expected_failures = failures
        self.at_epoch = at_epoch
        self.at_failure = at_failure
        self.failures = 0
        self.events: list[RunEvent] = []

    def on_event(self, event: RunEvent) -> None:
        match event:
            case Progressed(status=status):
                self.progress(status)
                return
            case EpochStable(epoch=epoch):
                self.epoch(epoch)
            case WorkerLost() | OperatorFailed() | ConnectionCut() | EpochRepeated():
                self.failure(event)
        self.events.append(event)

    def epoch(self, epoch: int) -> None:
        self.at_epoch(epoch)

    def progress(self, status: RunStatus) -> None:
        back = [report for report in status.recoveries if report.restored_s is not None]
        if len(back) >= self.expected_failures:
            open_gate(self.folder)

    def failure(self, event: AnyFailure) -> None:
        if event.from_epoch is not None:
            self.failures += 1
            self.at_failure(self.failures)

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]


def newest_manifest(store: str | Path) -> EpochManifest:
    """The newest epoch, or recovery line, with all its records."""
    return EpochManifest.from_json(CheckpointStore.at(str(store)).manifests()[0].body)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
