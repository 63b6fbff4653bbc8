"""What a shard measures of itself, on a clock that only work and tests move."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream.connectors.generate.sources import FromList
from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import Epoch, Generation, ShardId
from everstream.core.measuring import Losses, Meter
from everstream.core.messages import Recover, Resume, Stable
from everstream.core.plan import make_plan
from everstream.core.scheme import ALIGNED, UNALIGNED, Scheme, scheme_of
from everstream.pipeline.stream import Pipeline
from everstream.runtime.measuring import TimeUse
from everstream.runtime.payload import BatchPayload
from everstream.runtime.runner import ShardRunner
from everstream.simulation.outside import OutsideSink
from tests.runtime.workbench import WORLD, Bench, MemoryEngineApi, bench, wide


class Clocked(MemoryEngineApi):
    """Its clock is moved by hand."""

    now_s = 100.0
    """Of the class: operators are copied, and move it, too."""

    def clock_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s

    def save_segment(self, segment: object) -> None:
        """Nobody reads it."""


def clocked(it: Bench, measures: bool = True) -> tuple[Clocked, ShardRunner]:
    """The same shard anew, on a clock."""
    engine = it.engine = Clocked()
    plan = it.runner.chain.plan
    it.runner = ShardRunner(plan, it.id, ALIGNED, engine, measures=measures)
    it.restore()
    return engine, it.runner


def meter(runner: ShardRunner) -> Meter:
    found = runner.progress().meter
    assert found is not None
    return found


# Time.


def test_time_is_busy_waiting_or_blocked_and_what_is_none_of_these_was_somebody_elses() -> None:
    use = TimeUse()
    use.rests(10.0, blocked=False)
    use.rests(11.0, blocked=True)
    use.stepped(13.0, 17.0)
    use.stepped(18.0, 19.0)
    use.rests(21.0, blocked=False)
    use.settle(26.0)
    assert (use.waiting_s, use.blocked_s, use.busy_s) == (1.0 + 5.0, 2.0, 4.0 + 1.0)


def test_a_slow_operator_is_busy() -> None:
    def slow(record: Any) -> Any:
        Clocked.now_s += 2.0
        return record

    it = bench(lambda s: s.map(slow))
    engine, runner = clocked(it)
    for _ in range(3):
        assert runner.may_step(engine.now_s) and runner.step()
    found = meter(runner)
    assert (found.busy_s, found.waiting_s, found.blocked_s) == (6.0, 0.0, 0.0)


def test_a_shard_without_room_behind_it_is_blocked_until_there_is_some() -> None:
    engine, runner = clocked(wide(lambda s: s.broadcast()))
    while runner.may_step(engine.now_s):
        runner.step()
    Clocked.now_s += 5.0
    assert not runner.may_step(engine.now_s)
    assert meter(runner).blocked_s == 5.0
    (channel,) = runner.outlets[0].channels
    runner.on_grant(channel, runner.shard.generation, 2)
    assert runner.may_step(engine.now_s)
    assert meter(runner).waiting_s == 0.0


def test_a_shard_without_input_waits() -> None:
    engine, runner = clocked(sink_of(2))
    assert runner.may_step(engine.now_s) and not runner.step()
    Clocked.now_s += 3.0
    found = meter(runner)
    assert (found.waiting_s, found.busy_s, found.blocked_s) == (3.0, 0.0, 0.0)


def test_a_source_that_is_not_due_waits() -> None:
    engine, runner = clocked(bench(lambda s: s))
    runner.ready_at_s = engine.now_s + 60.0
    assert not runner.may_step(engine.now_s)
    Clocked.now_s += 4.0
    assert meter(runner).waiting_s == 4.0


def test_who_is_not_to_measure_says_nothing() -> None:
    it = bench(lambda s: s)
    engine, runner = clocked(it, measures=False)
    runner.may_step(engine.now_s)
    runner.step()
    assert runner.processed == 1
    assert runner.progress().meter is None and not runner.chain.meter.latency


# Latency.


def test_latency_counts_from_when_a_record_came_in_to_each_sink() -> None:
    def slow(record: Any) -> Any:
        Clocked.now_s += 0.25
        return record

    it = bench(lambda s: s.map(slow))
    clocked(it)
    it.step(4)
    found = meter(it.runner).latency["out"]
    assert found.total == 4
    assert found.quantile(0.99) == pytest.approx(0.25, rel=0.1)


# Checkpoints.


def sink_of(shards: int, scheme: Scheme = ALIGNED) -> Bench:
    """A sink with so many inputs."""
    source = Pipeline("test").source(FromList([1]), name="numbers", shards=shards)
    plan = make_plan(source.on_demand().sink(OutsideSink(WORLD), name="out"), shards + 1)
    it = Bench(plan, ShardId("out", 0))
    it.runner = ShardRunner(plan, it.id, scheme, it.engine)
    return it.restore()


def frame(it: Bench, number: int, kind: FrameKind, sequence: int, records: int = 0) -> Frame:
    channel = it.runner.shard._inputs[number]
    payload = BatchPayload(list(range(records))) if records else None
    return Frame(channel, kind, Generation(it.generation), sequence, 1, records, b"", payload)


@pytest.mark.parametrize("scheme", [ALIGNED, UNALIGNED], ids=["aligned", "unaligned"])
def test_a_checkpoint_says_how_long_its_markers_were_apart(scheme: Scheme) -> None:
    it = sink_of(2, scheme)
    engine = it.engine = Clocked()
    it.runner = ShardRunner(it.runner.chain.plan, it.id, scheme, engine)
    it.restore()
    it.runner.on_frame(frame(it, 0, FrameKind.MARKER, 0))
    it.runner.step()
    Clocked.now_s += 7.0
    it.runner.on_frame(frame(it, 1, FrameKind.DATA, 1, records=3))
    it.runner.step()
    Clocked.now_s += 1.0
    it.runner.on_frame(frame(it, 1, FrameKind.MARKER, 1))
    it.runner.step()
    assert it.save(engine.uploads[-1]).aligned_s == 8.0


def test_a_marker_behind_other_frames_counts_from_when_it_is_met() -> None:
    it = sink_of(2)
    engine, runner = clocked(it)
    runner.on_frame(frame(it, 0, FrameKind.DATA, 1, records=1))
    runner.on_frame(frame(it, 0, FrameKind.MARKER, 1))
    runner.step()
    Clocked.now_s += 5.0
    runner.step()
    Clocked.now_s += 2.0
    runner.on_frame(frame(it, 1, FrameKind.MARKER, 0))
    runner.step()
    assert it.save(engine.uploads[-1]).aligned_s == 2.0


def test_commits_and_what_the_state_takes_are_known_from_checkpoints() -> None:
    it = bench(lambda s: s.key_by(lambda n: n % 3).fold(int, lambda count, _: count + 1))
    it.step(4)
    before = meter(it.runner)
    assert (before.state_bytes, before.state_keys, before.commits) == (None, 3, 0)
    record = it.checkpoint(1)
    it.runner.on_command(Stable(Epoch(1)))
    it.runner.on_commit_done(it.engine.commits[-1])
    after = meter(it.runner)
    assert (after.state_bytes, after.commits) == (record.size_bytes, 1)


# Frames.


def test_frames_that_wait_are_counted_and_those_of_zombies_are_suppressed() -> None:
    it = sink_of(2)
    it.runner.on_frame(frame(it, 0, FrameKind.DATA, 1, records=3))
    it.runner.on_frame(frame(it, 1, FrameKind.DATA, 1, records=3))
    zombie = frame(it, 0, FrameKind.DATA, 2, records=5)
    zombie.generation = Generation(0)
    it.runner.on_frame(zombie)
    found = meter(it.runner)
    assert (found.frames_waiting, found.suppressed) == (2, 5)
    it.step()
    assert meter(it.runner).frames_waiting == 1


def test_a_log_says_how_large_it_is_and_what_it_has_sent_again() -> None:
    stream = Pipeline("test").source(FromList([1, 2, 3], batch=1), name="numbers")
    plan = make_plan(stream.broadcast().sink(OutsideSink(WORLD), name="out"), 2)
    it = Bench(plan, ShardId("numbers", 0))
    it.runner = ShardRunner(plan, it.id, scheme_of(es.Uncoordinated(every="1h")), it.engine)
    receiver = ShardId("out", 0)
    (channel,) = plan.outputs[it.id]
    started = Recover(
        Generation(1), {it.id: None, receiver: None}, {it.id: 0, receiver: 0}, {str(channel): 0}
    )
    it.runner.on_command(started)
    it.runner.on_command(Resume(Generation(1), {}))
    it.step(2)
    before = meter(it.runner)
    assert before.log_bytes and before.replayed == 0
    lost = Recover(Generation(2), {receiver: None}, {it.id: 0, receiver: 0}, {str(channel): 0})
    it.runner.on_command(lost)
    it.runner.on_command(Resume(Generation(2), {}))
    assert meter(it.runner).replayed == 2


# Records that went another way.


def test_what_is_skipped_or_a_dead_letter_is_counted_by_operator() -> None:
    it = bench(lambda s: s.map(lambda n: 1 // (n % 2), name="divide", on_error="dead_letter"))
    it.step(4)
    found = meter(it.runner)
    assert (found.skipped, found.dead_letters) == (2, 2)
    assert found.losses == {"divide": Losses(skipped=2, dead_letters=2)}


def events(build: Callable[[Any], Any]) -> Bench:
    frame = pl.DataFrame({"t": [1_000_000, 9_000_000, 2_000_000, 9_500_000]})
    source = Pipeline("test").source(FromList(frame.rows(named=True), batch=1), name="events")
    return Bench(
        make_plan(build(source.event_time("t", unit="us")).sink(OutsideSink(WORLD), name="out"), 1)
    ).restore()


def test_late_records_and_the_watermark_are_known() -> None:
    def build(timed: Any) -> Any:
        return timed.window(es.Tumbling("1s")).aggregate(n=es.count())

    it = events(build)
    assert meter(it.runner).watermark is None
    it.step(4)
    found = meter(it.runner)
    assert found.late == 1
    assert sum(lost.late for lost in found.losses.values()) == 1
    assert found.watermark == 9500
