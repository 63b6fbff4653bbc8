"""A runner under test, on an engine that keeps everything in memory."""

from collections.abc import Callable, Sequence
from typing import Any

from everstream.connectors.generate.sources import FromList, Range
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.fault_points import Point
from everstream.core.frames import Frame
from everstream.core.ids import ChannelId, Epoch, Generation, ShardId, WorkerId
from everstream.core.messages import (
    CheckpointTaken,
    Restore,
    Resume,
    StartCheckpoint,
)
from everstream.core.plan import Plan, make_plan
from everstream.core.scheme import ALIGNED, Scheme
from everstream.core.shard import ShardStatus
from everstream.errors import CorruptObject
from everstream.pipeline.calls.services import CallServices
from everstream.pipeline.stream import Pipeline, Stream
from everstream.runtime.engine_api import CommitJob, Upload
from everstream.runtime.message_log import Segment
from everstream.runtime.runner import ShardRunner
from everstream.simulation.outside import Outside, OutsideSink
from everstream.state.store import ObjectRef

WORLD = -1


class MemoryEngineApi:
    """Performs nothing by itself: tests look at what came, and answer when they like."""

    store_url = "memory://"
    scratch = ""
    services = CallServices()

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.grants: list[tuple[ChannelId, int]] = []
        self.wished = 0
        """The size of frames that came with the newest grant."""
        self.reports: list[Any] = []
        self.uploads: list[Upload] = []
        self.commits: list[CommitJob] = []
        self.objects: dict[ObjectRef, bytes] = {}

    def clock_s(self) -> float:
        return 0.0

    def wall_s(self) -> float:
        return 0.0

    def send(self, frame: Frame) -> None:
        assert frame.payload is None or frame.payload.encoded
        self.frames.append(frame)

    def grant(self, channel: ChannelId, frames: int, most: int) -> None:
        self.grants.append((channel, frames))
        self.wished = most

    def tell(self, report: object) -> None:
        self.reports.append(report)

    def upload(self, upload: Upload) -> None:
        self.uploads.append(upload)

    def save_segment(self, segment: Segment) -> None:
        raise AssertionError("nothing is logged here")

    def commit(self, job: CommitJob) -> None:
        self.commits.append(job)

    def load(self, refs: Sequence[ObjectRef]) -> list[bytes]:
        missing = [ref for ref in refs if ref not in self.objects]
        if missing:
            raise CorruptObject(f"{missing[0].name} is missing")
        return [self.objects[ref] for ref in refs]

    def reached(self, shard: ShardId, point: Point) -> None:
        """Nobody is killed here."""

    def reported(self, kind: type) -> list[Any]:
        return [report for report in self.reports if isinstance(report, kind)]


class Bench:
    """One shard of a pipeline, restored and running."""

    def __init__(
        self,
        plan: Plan,
        shard: ShardId | None = None,
        scheme: Scheme = ALIGNED,
        latency_s: float = 0.0,
    ) -> None:
        self.engine = MemoryEngineApi()
        self.id = shard or plan.shards[0]
        self.runner = ShardRunner(plan, self.id, scheme, self.engine, latency_s=latency_s)
        self.generation = 0
        self.outside = OutsideSink.worlds[WORLD] = Outside()

    def restore(self, *records: CheckpointRecord, stable: int = 0) -> "Bench":
        self.generation += 1
        g = Generation(self.generation)
        self.runner.on_command(Restore(g, Epoch(stable), {self.id: records}))
        if self.runner.shard.status is ShardStatus.READY:
            self.runner.on_command(Resume(g, {WorkerId(0): None}))
        return self

    def checkpoint(self, epoch: int) -> CheckpointRecord:
        """Take one and make it durable."""
        self.runner.on_command(StartCheckpoint(Epoch(epoch)))
        return self.save(self.engine.uploads[-1])

    def save(self, upload: Upload) -> CheckpointRecord:
        data = upload.prepare(self.engine.reached)
        ref = ObjectRef.of(upload.name, data)
        self.engine.objects[ref] = data
        self.runner.on_uploaded(upload, ref, 0.0)
        record: CheckpointRecord = self.engine.reported(CheckpointTaken)[-1].record
        return record

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.runner.step()


def bench(build: Callable[[Stream], Stream], items: Sequence[Any] = (1, 2, 3, 4)) -> Bench:
    """A source of single records, what `build` makes of it and a sink, all in one shard."""
    stream = build(Pipeline("test").source(FromList(list(items), batch=1), name="numbers"))
    return Bench(make_plan(stream.sink(OutsideSink(WORLD), name="out"), 1)).restore()


def wide(build: Callable[[Stream], Stream]) -> Bench:
    """The source alone, with a channel behind it."""
    stream = build(Pipeline("test").source(Range(1000, batch=1), name="numbers"))
    return Bench(make_plan(stream.sink(OutsideSink(WORLD), name="out"), 1)).restore()
