"""A runner at work, on an engine that keeps everything in memory."""

import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from everstream.connectors.files.json_lines import JsonLines
from everstream.connectors.generate.sources import FromList, Range
from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import CheckpointNumber, Epoch, Generation, ShardId
from everstream.core.messages import (
    EVERYBODY,
    Census,
    CheckpointFailed,
    Committed,
    Pause,
    Probe,
    Restored,
    RestoreFailed,
    ShardFailed,
    Shutdown,
    Stable,
    StartCheckpoint,
)
from everstream.core.permits import permit
from everstream.core.plan import make_plan
from everstream.core.shard import ShardStatus
from everstream.errors import OperatorError
from everstream.pipeline.operator import Context, Keyed, Operator
from everstream.pipeline.stream import Pipeline
from everstream.runtime.chain import ChainStages
from everstream.runtime.engine_api import CommitJob
from everstream.simulation.outside import OutsideSink
from everstream.state.store import ObjectRef
from tests.runtime.workbench import WORLD, Bench, MemoryEngineApi, bench, wide


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
    bench.runner.on_command(Stable(Epoch(epoch)))
    job = bench.engine.commits[-1]
    job.perform(MemoryEngineApi().reached)
    bench.runner.on_commit_done(job)


def test_a_snapshot_does_not_hold_updates_made_before_it_is_encoded() -> None:
    it = bench(lambda s: s.process(Total()))
    it.step()
    it.runner.on_command(StartCheckpoint(Epoch(1)))
    it.step(2)
    record = it.save(it.engine.uploads[0])
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
    assert it.engine.reported(Committed) == [Committed(it.id, Generation(1), CheckpointNumber(1))]


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
    assert it.runner.shard.status is ShardStatus.ENDED
    (upload,) = it.engine.uploads
    assert upload.record.final
    assert upload.record.counts == {"numbers": (0, 4), "out": (4, 4)}
    assert it.runner.progress().ended and it.runner.processed == 4


def test_output_that_is_shown_already_does_not_spoil_the_next_checkpoint(tmp_path: Path) -> None:
    """The next one was taken before this one was known to be saved, and counts it as its own to do."""
    numbers = Pipeline("test").source(FromList([1, 2, 3], batch=1), name="numbers")
    it = Bench(make_plan(numbers.sink(JsonLines(tmp_path / "out"), name="out"), 1)).restore()
    it.step(2)
    it.runner.on_command(StartCheckpoint(Epoch(1)))
    it.step(4)
    first, last = it.engine.uploads
    assert last.record.final and len(last.transactions) == 2
    it.save(first)
    commit(it, 1)
    it.save(last)
    commit(it, last.record.number)
    parts = sorted((tmp_path / "out").glob("*.jsonl"))
    assert [part.read_text() for part in parts] == ["1\n2\n", "3\n"]


def test_a_checkpoint_that_cannot_be_written_is_reported_and_the_run_goes_on() -> None:
    it = bench(lambda s: s.process(Total()))
    it.step()
    it.runner.on_command(StartCheckpoint(Epoch(1)))
    it.runner.on_upload_failed(it.engine.uploads[0], OSError(28, "No space left on device"))
    assert [r.reason for r in it.engine.reported(CheckpointFailed)] == [
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
    it.runner.on_command(StartCheckpoint(Epoch(1)))
    (failed,) = it.engine.reported(ShardFailed)
    assert "cannot be saved in a checkpoint" in failed.error.message
    assert it.runner.shard.status is ShardStatus.FAILED


def test_a_failing_function_is_reported_with_operator_record_traceback_and_story() -> None:
    it = bench(lambda s: s.map(lambda x: 1 // (x - 2), name="divide"))
    it.step(2)
    (failed,) = it.engine.reported(ShardFailed)
    error = failed.error
    assert isinstance(error, OperatorError)
    assert (error.operator, error.shard, error.record) == ("divide", 0, "2")
    assert "ZeroDivisionError" in error.message and "test_runner.py" in error.traceback
    assert "everstream/core" not in error.traceback
    assert any("running -> failed" in line for line in error.story)
    it.step(3)
    assert len(it.engine.reported(ShardFailed)) == 1, "it waits for the coordinator"


def test_an_error_in_a_hook_names_no_record() -> None:
    class Bad(Operator):
        def process(self, record: Any, ctx: Context) -> None:
            ctx.emit(record)

        def on_end(self, ctx: Context) -> None:
            raise ValueError("at the end")

    it = bench(lambda s: s.process(Bad(), name="bad"))
    it.step(6)
    (failed,) = it.engine.reported(ShardFailed)
    assert (failed.error.operator, failed.error.record) == ("bad", "")


def test_a_long_record_is_cut_in_the_report() -> None:
    it = bench(lambda s: s.map(lambda x: x.missing, name="bad"), items=["x" * 5000])
    it.step()
    (failed,) = it.engine.reported(ShardFailed)
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
    it.runner.on_command(Shutdown())
    start, *others = Hooks.calls
    assert start == "start hooks 0/1"
    assert others == ["process 1", "checkpoint 1", "commit 1", "end", "stop"]


def test_a_missing_object_makes_the_restore_fail_not_the_shard() -> None:
    it = bench(lambda s: s)
    record = it.checkpoint(1)
    it.engine.objects.clear()
    it.restore(record, stable=1)
    (failed,) = it.engine.reported(RestoreFailed)
    assert failed.generation == 2 and "is missing" in failed.reason
    assert it.engine.reported(ShardFailed) == []


def test_an_operator_that_moved_to_another_chain_finds_its_state() -> None:
    it = bench(lambda s: s.process(Total(), name="total"))
    it.step(3)
    record = it.checkpoint(1)
    moved = Pipeline("test").source(FromList([1, 2, 3, 4], batch=1), name="numbers").on_demand()
    pipeline = moved.process(Total(), name="total").sink(OutsideSink(WORLD), name="out")
    plan = make_plan(pipeline, 1)
    after = Bench(plan, ShardId("total", 0))
    after.engine.objects = it.engine.objects
    after.outside = OutsideSink.worlds[WORLD] = it.outside
    after.generation = it.generation
    after.restore(record, stable=1)
    assert after.engine.reported(Restored), after.engine.reports
    stage: ChainStages = after.runner.chain
    assert stage.state.keystore("total", "state").get(0) == 6


def test_frames_and_results_of_an_earlier_generation_change_nothing() -> None:
    it = bench(lambda s: s)
    it.step()
    it.runner.on_command(StartCheckpoint(Epoch(1)))
    upload = it.engine.uploads[0]
    it.restore()
    it.engine.reports.clear()
    it.runner.on_uploaded(upload, ObjectRef.of("x", b""), 0.0)
    it.runner.on_upload_failed(upload, OSError("late"))
    job = CommitJob(it.id, Generation(1), permit(1), [])
    it.runner.on_commit_done(job)
    it.runner.on_commit_failed(job, OSError("late"))
    assert it.engine.reports == []


@pytest.mark.parametrize("error", [ValueError("no such table"), SystemExit(2)])
def test_output_that_cannot_be_committed_is_held_against_its_sink(error: BaseException) -> None:
    it = bench(lambda s: s.map(lambda n: n, name="same"))
    it.step()
    it.checkpoint(1)
    it.runner.on_command(Stable(Epoch(1)))
    (job,) = it.engine.commits
    it.step()  # whatever is at work by then
    it.runner.on_commit_failed(job, error)
    (failed,) = it.engine.reported(ShardFailed)
    assert isinstance(failed.error, OperatorError) and failed.error.operator == "out"
    assert type(error).__name__ in failed.error.message


def test_a_shard_does_no_work_while_its_output_waits_for_credit() -> None:
    it = wide(lambda s: s.on_demand())
    while it.runner.can_step(0.0):
        it.step()
    assert len(it.engine.frames) < 10 and not it.runner.outlets[0].idle
    channel = it.engine.frames[0].channel
    it.runner.on_grant(channel, Generation(0), 5)
    assert not it.runner.can_step(0.0), "credit of another generation does not count"
    it.runner.on_grant(channel, Generation(1), 5)
    assert it.runner.can_step(0.0)


def test_a_record_that_cannot_be_sent_fails_the_shard_also_when_credit_comes_late() -> None:
    it = wide(lambda s: s.map(lambda x: x if x < 4 else threading.Lock(), name="bad").on_demand())
    for _ in range(6):
        if it.runner.can_step(0.0):
            it.step()
    assert it.engine.reported(ShardFailed) == []
    it.runner.on_grant(it.engine.frames[0].channel, Generation(1), 1)
    (failed,) = it.engine.reported(ShardFailed)
    assert "must pickle" in failed.error.message


def test_a_delivered_frame_gives_its_channel_one_credit_back() -> None:
    stream = Pipeline("test").source(Range(10), name="numbers").on_demand()
    plan = make_plan(stream.sink(OutsideSink(WORLD), name="out"), 1)
    source, sink = Bench(plan, ShardId("numbers", 0)).restore(), Bench(plan, ShardId("out", 0))
    sink.restore()
    source.step()
    (frame,) = source.engine.frames
    sink.runner.on_frame(frame)
    sink.step()
    assert sink.engine.grants == [(frame.channel, 1)] and sink.runner.processed == 10
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
    it.save(it.engine.uploads[-1])
    commit(it, 1)
    assert shown(it) == [where.upper()]


def test_a_source_that_is_told_to_pause_keeps_what_it_has_read_for_its_checkpoint() -> None:
    stream = Pipeline("test").source(Range(1000, batch=1000), name="numbers")
    plan = make_plan(stream.sink(OutsideSink(WORLD), name="out"), 1)
    it = Bench(plan).restore()
    it.runner.chain.head.rest.fill(list(range(1000)))
    it.runner.on_command(Pause())
    assert not it.runner.can_step(0.0)
    it.runner.on_command(Probe(EVERYBODY, 1))
    assert it.engine.reported(Census)[-1].passive
    saved = it.checkpoint(1)
    again = Bench(plan)
    again.engine.objects = it.engine.objects
    again.restore(saved, stable=1)
    assert again.runner.can_step(0.0) and again.runner.chain.head.rest
