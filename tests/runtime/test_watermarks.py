"""Watermarks: from the source over every kind of edge to the operators, and across a failure."""

from datetime import datetime
from typing import Any, ClassVar

import polars as pl
import pytest

from everstream.connectors.generate.sources import FromFunction, FromList
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.frames import Frame, FrameKind
from everstream.core.ids import ChannelId, CheckpointNumber, Epoch, Generation, ShardId
from everstream.core.instructions import Advance, Deliver
from everstream.core.messages import Restore, Stable
from everstream.core.plan import make_plan
from everstream.core.protocols.base import ShardPosition
from everstream.core.scheme import ALIGNED
from everstream.core.shard import Shard
from everstream.engine.continuous.transport.wire import Credit
from everstream.engine.continuous.transport.wire import Wire as WorkerWire
from everstream.errors import UserError
from everstream.pipeline.event_time.windows import Tumbling
from everstream.pipeline.graph import Broadcast, ByKey, OnDemand, Routing
from everstream.pipeline.keys import Keying
from everstream.pipeline.operator import Context, Operator
from everstream.pipeline.source import END, Reader, Source
from everstream.pipeline.stream import Pipeline
from everstream.pipeline.times import END_OF_TIME, NO_WATERMARK, TimeOf, microseconds
from everstream.runtime.outlets import CREDIT_ON_DEMAND
from everstream.simulation.outside import OutsideSink
from tests.core.shards import LEFT, ME, RIGHT, G, data, end, feed, running
from tests.runtime.wires import ALL, CHANNELS, A, B, Wire
from tests.runtime.workbench import WORLD, Bench, bench

IDS = ["on demand", "broadcast", "by key"]


def key_of(record: Any) -> int:
    return int(record["n"] if isinstance(record, dict) else record)


def at(frame: Frame, watermark: int) -> Frame:
    frame.watermark = watermark
    return frame


# The shard.


def test_time_is_that_of_the_slowest_input() -> None:
    it = running(LEFT, RIGHT)
    feed(it, at(data(LEFT, 1), 50), at(data(RIGHT, 1), 30), at(data(RIGHT, 2), 70))
    told = [one.watermark for _ in range(3) for one in it.step() if isinstance(one, Deliver)]
    assert told == [None, 30, 50]
    assert it._times.lowest == 50


def test_time_never_goes_back() -> None:
    it = running(LEFT)
    feed(it, at(data(LEFT, 1), 50), at(data(LEFT, 2), 20), data(LEFT, 3), at(data(LEFT, 4), 60))
    told = [one.watermark for _ in range(4) for one in it.step() if isinstance(one, Deliver)]
    assert told == [50, None, None, 60]


def test_an_input_that_has_ended_holds_time_back_no_longer() -> None:
    it = running(LEFT, RIGHT)
    feed(it, at(data(LEFT, 1), 50), end(RIGHT, 1))
    instructions = [one for _ in range(2) for one in it.step()]
    assert [one for one in instructions if isinstance(one, Advance)] == [Advance(50)]


def test_a_feedback_input_says_nothing_about_the_time() -> None:
    it = Shard(
        ME,
        [LEFT, RIGHT],
        [],
        ALIGNED.protocol(ShardPosition(ME, (LEFT, RIGHT), ())),
        feedback=[RIGHT],
    )
    it.on_restore(Restore(G, Epoch(0), {}))
    it.on_loaded(G, 0.0)
    it.on_resume(G)
    feed(it, at(data(LEFT, 1), 50), data(RIGHT, 1), end(LEFT, 2))
    instructions = [one for _ in range(3) for one in it.step()]
    assert [one.watermark for one in instructions if isinstance(one, Deliver)] == [None, 50]
    assert Advance(END_OF_TIME) in instructions


def test_watermarks_are_restored_with_the_checkpoint_and_ended_inputs_stay_at_the_end() -> None:
    it = running(LEFT, RIGHT)
    feed(it, at(data(LEFT, 1), 50), at(data(RIGHT, 1), 30))
    it.step(), it.step()
    record = CheckpointRecord.from_json(it._record(CheckpointNumber(1), final=False).to_json())
    assert record.watermarks == {str(LEFT): 50, str(RIGHT): 30}
    again = running(LEFT, RIGHT, records=[record])
    assert again._times.lowest == 30
    feed(again, at(data(LEFT, 1), 40))
    assert [one.watermark for one in again.step() if isinstance(one, Deliver)] == [None]


# The outlets.


@pytest.mark.parametrize("routing", ALL, ids=IDS)
def test_every_channel_hears_a_watermark_behind_the_records_before_it(routing: Routing) -> None:
    wire = Wire(routing)
    wire.outlet.collect([1])
    wire.outlet.advance(10)
    wire.outlet.flush(0)
    for channel in CHANNELS:
        frames = [frame for frame in wire.sent if frame.channel == channel]
        assert frames[-1].watermark == 10
        assert all(frame.watermark == NO_WATERMARK for frame in frames[:-1])


@pytest.mark.parametrize("routing", [OnDemand(), Broadcast(), ByKey(Keying(key_of))], ids=IDS)
def test_a_watermark_never_overtakes_records_that_wait(routing: Routing) -> None:
    wire = Wire(routing)
    for number in range(40):
        wire.outlet.collect([number] if number % 2 else pl.DataFrame({"n": [number]}))
    wire.outlet.advance(10)
    wire.outlet.flush(0)
    while not wire.outlet.idle:
        for channel in CHANNELS:
            wire.outlet.grant(channel, 1)
        wire.outlet.pump()
    for channel in CHANNELS:
        wire.outlet.grant(channel, 1)
    wire.outlet.pump()
    for channel in CHANNELS:
        frames = [frame for frame in wire.sent if frame.channel == channel]
        marked = [index for index, frame in enumerate(frames) if frame.watermark == 10]
        assert marked == [len(frames) - 1]


@pytest.mark.parametrize("routing", ALL, ids=IDS)
def test_a_channel_without_credit_makes_nobody_wait_and_hears_the_latest(routing: Routing) -> None:
    wire = Wire(routing)
    for watermark in range(1, 30):
        wire.outlet.advance(watermark)
        wire.outlet.flush(0)
        wire.outlet.grant(A, 1)
        wire.outlet.pump()
        assert wire.outlet.idle
    heard = {c: [f.watermark for f in wire.sent if f.channel == c] for c in CHANNELS}
    assert heard[A] == list(range(1, 30))
    assert heard[B] == list(range(1, 1 + wire.outlet.credit))
    wire.outlet.grant(B, 1)
    wire.outlet.pump()
    assert wire.sent[-1].channel == B and wire.sent[-1].watermark == 29


def test_nothing_is_sent_for_the_time_after_the_end_of_a_channel() -> None:
    wire = Wire(Broadcast())
    wire.outlet.advance(10)
    wire.outlet.end()
    wire.outlet.grant(A, 1)
    wire.outlet.pump()
    assert wire.on(A) == wire.on(B) == ["END"]


def test_without_watermarks_no_frame_is_sent_that_has_no_records() -> None:
    wire = Wire(OnDemand())
    wire.emit()
    wire.outlet.flush_outside_step()
    assert wire.sent == []


def test_before_an_ordered_sink_a_watermark_rides_on_the_one_frame_of_a_step() -> None:
    wire = Wire(OnDemand(), one_frame=True)
    wire.outlet.advance(10)
    wire.outlet.flush_outside_step()
    assert wire.sent == []
    for _ in range(CREDIT_ON_DEMAND):
        wire.outlet.flush(0)
    assert next(frame.watermark for frame in wire.sent if frame.channel == A) == 10
    assert len(wire.sent) == CREDIT_ON_DEMAND


def test_watermarks_cross_the_wire() -> None:
    channel = ChannelId(0, ShardId("a", 0), ShardId("b", 0))
    wire = WorkerWire([channel])
    for watermark in (NO_WATERMARK, -5, 0, 7, END_OF_TIME):
        frame = Frame(channel, FrameKind.DATA, Generation(3), 1, watermark=watermark)
        (parsed,) = wire.parse(wire.frame_to_parts(frame))
        assert isinstance(parsed, Frame) and parsed == frame
    credit = Credit(channel, Generation(3), 2, 50)
    assert wire.parse([wire.credit_to_bytes(credit)]) == [credit]


# Operators.


class Watch(Operator):
    """Emits what it hears about the time."""

    def process(self, record: Any, ctx: Context) -> None:
        ctx.emit(("record", record, ctx.watermark))

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        ctx.emit(("time", watermark, ctx.watermark))


class Heard(Operator):
    """Notes what it hears, and lets everything pass."""

    notes: ClassVar[list[Any]] = []

    def process_batch(self, batch: Any, ctx: Context) -> None:
        Heard.notes.append([*batch])
        ctx.emit_batch(batch)

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        assert ctx.watermark == watermark
        Heard.notes.append(watermark)

    def on_end(self, ctx: Context) -> None:
        Heard.notes.append("end")


def test_fused_operators_hear_the_time_behind_the_records_and_the_end_of_time_at_the_end() -> None:
    Heard.notes.clear()
    it = bench(
        lambda s: s.event_time(lambda x: x, lateness=2e-6, unit="us").process(Heard()),
        items=[5, 3, 9],
    )
    it.step(6)
    assert Heard.notes == [[5], 3, [3], [9], 7, END_OF_TIME, "end"]


def test_what_an_operator_emits_for_the_time_reaches_those_behind_before_the_time() -> None:
    Heard.notes.clear()
    it = bench(
        lambda s: s.event_time(lambda x: x, unit="us").process(Watch()).process(Heard()),
        items=[5, 9],
    )
    it.step(6)
    assert Heard.notes == [
        [("record", 5, NO_WATERMARK)], [("time", 5, 5)], 5,
        [("record", 9, 5)], [("time", 9, 9)], 9,
        [("time", END_OF_TIME, END_OF_TIME)], END_OF_TIME, "end",
    ]  # fmt: skip


def test_time_does_not_go_back_in_a_failure_and_those_behind_hear_it_again() -> None:
    Heard.notes.clear()
    stream = Pipeline("test").source(FromList([5, 3, 9], batch=1), name="numbers")
    timed = stream.event_time(lambda x: x, unit="us").process(Heard())
    plan = make_plan(timed.broadcast().sink(OutsideSink(WORLD), name="out", shards=2), 1)
    it = Bench(plan).restore()
    it.step(1)
    record = it.checkpoint(1)
    it.engine.frames.clear()
    it.restore(record, stable=1)
    assert [(f.watermark, f.payload) for f in it.engine.frames] == [(5, None)] * 2
    it.step(2)
    assert Heard.notes == [[5], 5, [3], [9], 9]


class Telling(Source[Any]):
    """A source whose reader tells the time: batches, or None and only the time goes on."""

    max_shards = 1
    event_time = TimeOf(lambda record: record, "us")
    stable: ClassVar[list[int]] = []

    def open(self, shard: int, shards: int) -> Reader:
        return TellingReader()


class TellingReader(Reader):
    script = (([5, 7], 4), (None, 6), ([9], 5), (None, 8))

    def __init__(self) -> None:
        self.place = 0

    @property
    def offset(self) -> int:
        return self.place

    def seek(self, offset: int) -> None:
        self.place = offset

    def read(self) -> Any:
        if self.place == len(self.script):
            return END
        self.place += 1
        return self.script[self.place - 1][0]

    def ready_in_s(self) -> float:
        return 0.0

    def watermark(self) -> int:
        return self.script[self.place - 1][1] if self.place else NO_WATERMARK

    def stable(self, offset: int) -> None:
        Telling.stable.append(offset)


def test_a_source_tells_the_time_behind_its_records_and_while_it_has_none() -> None:
    Heard.notes.clear()
    stream = Pipeline("test").source(Telling(), name="numbers").process(Heard())
    plan = make_plan(stream.broadcast().sink(OutsideSink(WORLD), name="out"), 1)
    it = Bench(plan).restore()
    it.step(3)
    assert Heard.notes == [[5, 7], 4, 6, [9]]
    assert [frame.watermark for frame in it.engine.frames] == [4, 6, NO_WATERMARK]
    record = it.checkpoint(1)
    it.engine.frames.clear()
    it.restore(record, stable=1)
    assert [frame.watermark for frame in it.engine.frames] == [6], (
        "it does not go back in a failure"
    )
    it.step(2)
    assert Heard.notes[4:] == [8, END_OF_TIME, "end"]


def test_windows_take_the_time_that_the_source_tells() -> None:
    stream = Pipeline("test").source(Telling(), name="numbers")
    stream.window(Tumbling("1s"))
    plain = Pipeline("test").source(FromList([1]), name="numbers")
    with pytest.raises(UserError, match="event_time"):
        plain.window(Tumbling("1s"))


def test_a_source_hears_what_is_read_for_good() -> None:
    Telling.stable.clear()
    stream = Pipeline("test").source(Telling(), name="numbers")
    it = Bench(make_plan(stream.sink(OutsideSink(WORLD), name="out"), 1)).restore()
    it.step(1)
    it.checkpoint(1)
    it.step(1)
    assert Telling.stable == []
    it.runner.on_command(Stable(Epoch(1), {}))
    it.runner.on_commit_done(it.engine.commits[-1])
    assert Telling.stable == [1]


def test_a_frame_for_the_time_alone_costs_and_gives_back_credit() -> None:
    stream = Pipeline("test").source(FromList([5, 9], batch=1), name="numbers")
    timed = stream.event_time(lambda x: x, unit="us").filter(lambda x: False).broadcast()
    plan = make_plan(timed.sink(OutsideSink(WORLD), name="out"), 1)
    source, sink = Bench(plan).restore(), Bench(plan, ShardId("out", 0)).restore()
    source.step()
    (frame,) = source.engine.frames
    assert (frame.watermark, frame.records, frame.payload) == (5, 0, None)
    sink.runner.on_frame(frame)
    sink.step()
    assert sink.engine.grants == [(frame.channel, 1)]
    assert sink.runner.shard._times.lowest == 5


def test_an_operator_is_called_when_it_asked_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    class Alarm(Operator):
        def on_start(self, ctx: Context) -> None:
            ctx.wake_at(20.0)
            ctx.wake_at(10.0)

        def process(self, record: Any, ctx: Context) -> None: ...

        def on_wake(self, now_s: float, ctx: Context) -> None:
            Heard.notes.append((now_s, ctx.now_s))
            if now_s < 30:
                ctx.wake_at(30.0)

    Heard.notes.clear()
    it = bench(lambda s: s.process(Alarm()))
    now_s = 5.0
    monkeypatch.setattr(it.runner.engine, "wall_s", lambda: now_s)
    it.runner.chain.clock_s = it.runner.engine.wall_s
    it.restore()
    assert it.runner.timer_in_s() == 5.0
    it.step()
    now_s = 12.0
    it.step(2)
    now_s = 31.0
    it.step(1)
    assert Heard.notes == [(12.0, 12.0), (31.0, 31.0)]
    assert it.runner.timer_in_s() == float("inf")


# Times.


def test_times_are_datetimes_or_whole_numbers_in_a_unit() -> None:
    frame = pl.DataFrame({"n": [1, 2], "t": [datetime(1970, 1, 1, 0, 0, 1)] * 2, "x": [0.5, 1.5]})

    def read(what: Any, unit: Any = None) -> list[int]:
        time = TimeOf(what, unit)
        return time.microseconds(time.read(frame, "op")).to_list()

    assert read("n", "us") == [1, 2]
    assert read(pl.col("n") * 1999, "ns") == [1, 3]
    assert read("n", "ms") == [1_000, 2_000]
    assert read(pl.col("n") + 1, "s") == [2_000_000, 3_000_000]
    assert read("t") == read(lambda row: row["t"]) == [1_000_000, 1_000_000]
    for numbers in ("n", pl.col("n"), lambda row: row["n"]):
        with pytest.raises(UserError, match="Int64, for example 1, but their unit is unknown"):
            read(numbers)
    with pytest.raises(UserError, match="which is Float64"):
        read("x")
    with pytest.raises(UserError, match="the records have: n, t, x"):
        read("missing")
    with pytest.raises(UserError, match="not a unit of time"):
        read("n", "minutes")


def test_durations_are_read_in_microseconds() -> None:
    assert [microseconds(d) for d in ("0s", "-1s", "250ms", 2, 0)] == [
        0, -1_000_000, 250_000, 2_000_000, 0
    ]  # fmt: skip


def test_rows_with_columns_have_times_too() -> None:
    def make(start: int, stop: int) -> pl.DataFrame:
        return pl.DataFrame({"at": range(start, stop)})

    stream = Pipeline("test").source(FromFunction(make, 10, batch=5), name="rows")
    plan = make_plan(
        stream.event_time("at", unit="ms").broadcast().sink(OutsideSink(WORLD), name="out"), 1
    )
    it = Bench(plan).restore()
    it.step(2)
    assert [frame.watermark for frame in it.engine.frames] == [4_000, 9_000]


class Firing(Operator):
    """Takes ten seconds for a watermark, and nothing for a record."""

    clock_s = 0.0

    def process(self, record: Any, ctx: Context) -> None:
        """Drop the record."""

    def on_watermark(self, watermark: int, ctx: Context) -> None:
        Firing.clock_s += 10.0


def test_the_time_that_windows_take_to_end_is_not_taken_for_the_cost_of_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Firing, "clock_s", 0.0)
    numbers = Pipeline("test").source(FromList([1]), name="numbers").on_demand()
    numbers = numbers.process(Firing(), name="firing")
    plan = make_plan(numbers.sink(OutsideSink(WORLD), name="out"), 1)
    source, firing = (Bench(plan, ShardId(name, 0)).restore() for name in ("numbers", "firing"))
    monkeypatch.setattr(firing.engine, "clock_s", lambda: Firing.clock_s)
    source.step()
    firing.runner.on_frame(at(source.engine.frames[0], 50))
    firing.step()
    assert Firing.clock_s == 10.0
    assert firing.engine.wished == 0, "frames of any size"
