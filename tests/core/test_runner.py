"""A runner at work, on a port that keeps everything in memory."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from everstream.connectors.generate import FromList, Range
from everstream.core.chain import ChainStages
from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, Epoch, Generation, HostId, ShardId
from everstream.core.jobs import CommitJob, Upload
from everstream.core.message_log import Segment
from everstream.core.messages import (
    CheckpointFailed,
    CheckpointRecord,
    CheckpointTaken,
    Committed,
    Restore,
    Restored,
    RestoreFailed,
    Resume,
    ShardFailed,
    Stable,
    StartCheckpoint,
)
from everstream.core.plan import Plan, make_plan
from everstream.core.points import Point
from everstream.core.runner import ShardRunner
from everstream.core.scheme import ALIGNED
from everstream.core.shard import Status
from everstream.errors import CorruptObject, OperatorError
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.sink import Permit
from everstream.pipeline.stream import Pipeline, Stream
from everstream.simulation.outside import Outside, OutsideSink
from everstream.state.store import ObjectRef

WORLD = -1


class MemoryPort:
    """Performs nothing by itself: tests look at what came, and answer when they like."""

    store_url = "memory://"

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.grants: list[tuple[ChannelId, int]] = []
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

    def grant(self, channel: ChannelId, frames: int) -> None:
        self.grants.append((channel, frames))

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

    def told(self, kind: type) -> list[Any]:
        return [report for report in self.reports if isinstance(report, kind)]


class Bench:
    """One shard of a pipeline, restored and running."""

    def __init__(self, plan: Plan, shard: ShardId | None = None) -> None:
        self.port = MemoryPort()
        self.id = shard or plan.shards[0]
        self.runner = ShardRunner(plan, self.id, ALIGNED, self.port)
        self.generation = 0
        self.outside = OutsideSink.worlds[WORLD] = Outside()

    def restore(self, *records: CheckpointRecord, stable: int = 0) -> "Bench":
        self.generation += 1
        g = Generation(self.generation)
        self.runner.on_restore(Restore(g, Epoch(stable), {self.id: records}))
        if self.runner.shard.status is Status.READY:
            self.runner.on_resume(Resume(g, {HostId(0): None}))
        return self

    def checkpoint(self, epoch: int) -> CheckpointRecord:
        """Take one and make it durable."""
        self.runner.on_start_checkpoint(StartCheckpoint(Epoch(epoch)))
        return self.save(self.port.uploads[-1])

    def save(self, upload: Upload) -> CheckpointRecord:
        data = upload.prepare(self.port.reached)
        ref = ObjectRef.of(upload.name, data)
        self.port.objects[ref] = data
        self.runner.on_uploaded(upload, ref, 0.0)
        record: CheckpointRecord = self.port.told(CheckpointTaken)[-1].record
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


class Total(Operator):
    """Sums up in declared state, in ctx.state and, wrongly, in a plain attribute."""

    state = Keyed[int](init=int)
    plain = 0

    def process(self, record: Any, ctx: Context) -> None:
        self.state[0] += record
        ctx.state.put(0, ctx.state.get(0, 0) - record)
        self.plain += record
        ctx.emit((self.state[0], ctx.state.get(0, 0), self.plain))


def shown(bench: Bench) -> list[Any]:
    return bench.outside.output("out")


def commit(bench: Bench, epoch: int) -> None:
    bench.runner.on_stable(Stable(Epoch(epoch)))
    job = bench.port.commits[-1]
    job.perform(MemoryPort().reached)
    bench.runner.on_commit_done(job)


def test_a_snapshot_does_not_hold_updates_made_before_it_is_encoded() -> None:
    it = bench(lambda s: s.process(Total()))
    it.step()
    it.runner.on_start_checkpoint(StartCheckpoint(Epoch(1)))
    it.step(2)
    record = it.save(it.port.uploads[0])
    it.restore(record, stable=1)
    it.step()
    it.checkpoint(2)
    commit(it, 2)
    assert shown(it)[-1] == (3, -3, 2), "1 from before, then 2 again; the plain attribute is lost"


def test_records_are_shown_only_when_their_epoch_is_stable() -> None:
    it = bench(lambda s: s)
    it.step(2)
    it.checkpoint(1)
    it.step()
    assert shown(it) == []
    commit(it, 1)
    assert shown(it) == [1, 2]
    assert it.port.told(Committed) == [Committed(it.id, Generation(1), Epoch(1))]


def test_a_restore_commits_what_the_checkpoint_had_prepared() -> None:
    it = bench(lambda s: s)
    it.step(2)
    record = it.checkpoint(1)
    it.step()
    it.restore(record, stable=1)
    assert shown(it) == [1, 2]
    it.step(2)
    it.checkpoint(2)
    commit(it, 2)
    assert shown(it) == [1, 2, 3, 4]


def test_a_source_that_ends_takes_its_last_checkpoint_by_itself() -> None:
    it = bench(lambda s: s)
    it.step(6)
    assert it.runner.shard.status is Status.ENDED
    (upload,) = it.port.uploads
    assert upload.record.final
    assert upload.record.counts == {"numbers": (0, 4), "out": (4, 4)}
    assert it.runner.progress().ended and it.runner.processed == 4


def test_a_checkpoint_that_cannot_be_written_is_reported_and_the_run_goes_on() -> None:
    it = bench(lambda s: s.process(Total()))
    it.step()
    it.runner.on_start_checkpoint(StartCheckpoint(Epoch(1)))
    it.runner.on_upload_failed(it.port.uploads[0], OSError(28, "No space left on device"))
    assert [r.reason for r in it.port.told(CheckpointFailed)] == [
        "[Errno 28] No space left on device"
    ]
    it.step()
    record = it.checkpoint(2)
    it.restore(record, stable=2)
    assert shown(it) == [(1, -1, 1), (3, -3, 3)], "both are in the later one"


def test_state_that_cannot_be_saved_fails_the_shard_with_the_operators_name() -> None:
    class Bad(Operator):
        def process(self, record: Any, ctx: Context) -> None:
            ctx.state.put("lock", threading.Lock())

    it = bench(lambda s: s.process(Bad(), name="bad"))
    it.step()
    it.runner.on_start_checkpoint(StartCheckpoint(Epoch(1)))
    (failed,) = it.port.told(ShardFailed)
    assert "cannot be saved in a checkpoint" in failed.error.message
    assert it.runner.shard.status is Status.FAILED


def test_a_failing_function_is_reported_with_operator_record_traceback_and_story() -> None:
    it = bench(lambda s: s.map(lambda x: 1 // (x - 2), name="divide"))
    it.step(2)
    (failed,) = it.port.told(ShardFailed)
    error = failed.error
    assert isinstance(error, OperatorError)
    assert (error.operator, error.shard, error.record) == ("divide", 0, "2")
    assert "ZeroDivisionError" in error.message and "test_runner.py" in error.traceback
    assert "everstream/core" not in error.traceback
    assert any("running -> failed" in line for line in error.story)
    it.step(3)
    assert len(it.port.told(ShardFailed)) == 1, "it waits for the coordinator"


def test_an_error_in_a_hook_names_no_record() -> None:
    class Bad(Operator):
        def process(self, record: Any, ctx: Context) -> None:
            ctx.emit(record)

        def on_end(self, ctx: Context) -> None:
            raise ValueError("at the end")

    it = bench(lambda s: s.process(Bad(), name="bad"))
    it.step(6)
    (failed,) = it.port.told(ShardFailed)
    assert (failed.error.operator, failed.error.record) == ("bad", "None")


def test_a_long_record_is_cut_in_the_report() -> None:
    it = bench(lambda s: s.map(lambda x: x.missing, name="bad"), items=["x" * 5000])
    it.step()
    (failed,) = it.port.told(ShardFailed)
    assert len(failed.error.record) == 303 and failed.error.record.endswith("...")


class Hooks(Operator):
    """Notes its calls; in the module, because operators are copied for every generation."""

    calls: ClassVar[list[str]] = []

    def process(self, record: Any, ctx: Context) -> None:
        self.calls.append(f"process {record}")

    def on_start(self, ctx: Context) -> None:
        self.calls.append(f"start {ctx.operator} {ctx.shard}/{ctx.shards}")

    def on_end(self, ctx: Context) -> None:
        self.calls.append("end")

    def on_stop(self, ctx: Context) -> None:
        self.calls.append("stop")

    def on_checkpoint(self, checkpoint: int, ctx: Context) -> None:
        self.calls.append(f"checkpoint {checkpoint}")

    def on_commit(self, checkpoint: int, ctx: Context) -> None:
        self.calls.append(f"commit {checkpoint}")


def test_all_hooks_are_called_in_their_order() -> None:
    Hooks.calls.clear()
    it = bench(lambda s: s.process(Hooks(), name="hooks"), items=[1])
    it.step()
    it.checkpoint(1)
    commit(it, 1)
    it.step(2)
    it.runner.on_shutdown()
    start, *others = Hooks.calls
    assert start == "start hooks 0/1"
    assert others == ["process 1", "checkpoint 1", "commit 1", "end", "stop"]


def test_a_missing_object_makes_the_restore_fail_not_the_shard() -> None:
    it = bench(lambda s: s)
    record = it.checkpoint(1)
    it.port.objects.clear()
    it.restore(record, stable=1)
    (failed,) = it.port.told(RestoreFailed)
    assert failed.generation == 2 and "is missing" in failed.reason
    assert it.port.told(ShardFailed) == []


def test_an_operator_that_moved_to_another_chain_finds_its_state() -> None:
    it = bench(lambda s: s.process(Total(), name="total"))
    it.step(3)
    record = it.checkpoint(1)
    moved = Pipeline("test").source(FromList([1, 2, 3, 4], batch=1), name="numbers").on_demand()
    pipeline = moved.process(Total(), name="total").sink(OutsideSink(WORLD), name="out")
    plan = make_plan(pipeline, 1)
    after = Bench(plan, ShardId("total", 0))
    after.port.objects = it.port.objects
    after.outside = OutsideSink.worlds[WORLD] = it.outside
    after.generation = it.generation
    after.restore(record, stable=1)
    assert after.port.told(Restored), after.port.reports
    stage: ChainStages = after.runner.chain
    assert stage.state.keystore("total", "state").get(0) == 6


def test_frames_and_results_of_an_earlier_generation_change_nothing() -> None:
    it = bench(lambda s: s)
    it.step()
    it.runner.on_start_checkpoint(StartCheckpoint(Epoch(1)))
    upload = it.port.uploads[0]
    it.restore()
    it.port.reports.clear()
    it.runner.on_uploaded(upload, ObjectRef.of("x", b""), 0.0)
    it.runner.on_upload_failed(upload, OSError("late"))
    job = CommitJob(it.id, Generation(1), Permit(1), [])
    it.runner.on_commit_done(job)
    it.runner.on_commit_failed(job, OSError("late"))
    assert it.port.reports == []


def test_a_shard_does_no_work_while_its_output_waits_for_credit() -> None:
    it = wide(lambda s: s.on_demand())
    while it.runner.can_step(0.0):
        it.step()
    assert len(it.port.frames) < 10 and not it.runner.outlets[0].idle
    channel = it.port.frames[0].channel
    it.runner.on_grant(channel, Generation(0), 5)
    assert not it.runner.can_step(0.0), "credit of another generation does not count"
    it.runner.on_grant(channel, Generation(1), 5)
    assert it.runner.can_step(0.0)


def test_a_record_that_cannot_be_sent_fails_the_shard_also_when_credit_comes_late() -> None:
    it = wide(lambda s: s.map(lambda x: x if x < 4 else threading.Lock(), name="bad").on_demand())
    for _ in range(6):
        if it.runner.can_step(0.0):
            it.step()
    assert it.port.told(ShardFailed) == []
    it.runner.on_grant(it.port.frames[0].channel, Generation(1), 1)
    (failed,) = it.port.told(ShardFailed)
    assert "must pickle" in failed.error.message


def test_a_delivered_frame_gives_its_channel_one_credit_back() -> None:
    stream = Pipeline("test").source(Range(10), name="numbers").on_demand()
    plan = make_plan(stream.sink(OutsideSink(WORLD), name="out"), 1)
    source, sink = Bench(plan, ShardId("numbers", 0)).restore(), Bench(plan, ShardId("out", 0))
    sink.restore()
    source.step()
    (frame,) = source.port.frames
    sink.runner.on_frame(frame)
    sink.step()
    assert sink.port.grants == [(frame.channel, 1)] and sink.runner.processed == 10
    stale = Frame(frame.channel, FrameKind.DATA, Generation(0), 1)
    sink.runner.on_frame(stale)
    assert sink.runner.dropped == 1


@pytest.mark.parametrize("where", ["on_start", "on_end"])
def test_hooks_may_emit(where: str) -> None:
    class Emits(Operator):
        def process(self, record: Any, ctx: Context) -> None: ...

    def emit(self: Operator, ctx: Context) -> None:
        ctx.emit(where)

    setattr(Emits, where, emit)
    it = bench(lambda s: s.process(Emits()).map(str.upper))
    it.step(6)
    it.save(it.port.uploads[-1])
    commit(it, 1)
    assert shown(it) == [where.upper()]
