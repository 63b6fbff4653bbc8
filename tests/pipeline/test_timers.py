"""Timers: durable, per key, in order, and exactly once."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import everstream as es
from everstream import testing
from everstream.errors import EverstreamError
from everstream.pipeline.event_time.timers import DueTimes


class Bell(es.Operator):
    """Does what its records say: ("set", name, at), ("after", name, duration), ("cancel", name)."""

    rung = es.Keyed[int](init=int)

    def process(self, record: tuple[Any, ...], ctx: es.Context) -> None:
        _, order, *rest = record
        match order, rest:
            case "set", [name, at]:
                ctx.timers.set(at, name)
            case "after", [name, duration]:
                ctx.timers.set(name=name, after=duration, time="processing")
            case "cancel", [name]:
                ctx.emit(("cancelled", ctx.timers.cancel(name)))
            case "get", [name]:
                ctx.emit(("due", ctx.timers.get(name)))

    def on_timer(self, key: str, name: str, at: int, ctx: es.Context) -> None:
        assert ctx.key == key
        self.rung[key] += 1
        ctx.emit((key, name, at))


def bell(operator: es.Operator | None = None, **options: Any) -> testing.OperatorHarness:
    return testing.operator(operator or Bell(), key=lambda record: record[0], **options)


def test_timers_of_event_time_fire_in_order_when_the_watermark_reaches_them() -> None:
    with bell() as op:
        op.push([("ada", "set", "b", 20), ("bob", "set", "a", 10), ("ada", "set", "c", 30)])
        assert op.output() == []
        op.watermark(20)
        assert op.output() == [("bob", "a", 10), ("ada", "b", 20)]
        assert op.timers() == [("ada", "c", 30)]


def test_a_timer_that_is_set_again_is_moved_and_a_cancelled_one_does_not_fire() -> None:
    with bell() as op:
        op.push([("ada", "set", "x", 10), ("ada", "set", "x", 25), ("ada", "set", "y", 5)])
        op.push([("ada", "get", "x"), ("ada", "cancel", "y"), ("ada", "cancel", "y")])
        op.watermark(15)
        assert op.output() == [("due", 25), ("cancelled", True), ("cancelled", False)]
        op.push([("ada", "set", "x", 20)])
        op.watermark(40)
        assert op.output()[3:] == [("ada", "x", 20)]


def test_timers_that_were_moved_fire_in_their_turn_among_those_that_are_due_too() -> None:
    with bell() as op:
        moves = [("x", 10), ("y", 40), ("z", 30), ("x", 35), ("y", 20), ("x", 50), ("z", 30)]
        op.push([("ada", "set", name, at) for name, at in moves])
        op.push([("bob", "set", "w", 25), ("bob", "cancel", "w")])
        op.watermark(100)
        assert op.output() == [
            ("cancelled", True),
            *(("ada", name, at) for name, at in (("y", 20), ("z", 30), ("x", 50))),
        ]
        assert op.timers() == []


class Meddler(es.Operator):
    """The timer `first` cancels, moves and looks at others that are due with it."""

    def process(self, record: tuple[str, str, int], ctx: es.Context) -> None:
        ctx.timers.set(record[2], record[1])

    def on_timer(self, key: str, name: str, at: int, ctx: es.Context) -> None:
        if name == "first":
            cancelled = ctx.timers.cancel("b"), ctx.timers.cancel("done")
            ctx.timers.set(45, "c")
            ctx.timers.set(12, "new")
            ctx.emit((cancelled, ctx.timers.get("d"), ctx.timers.get("first")))
        ctx.emit((name, at))


def test_a_timer_may_change_those_that_are_due_with_it() -> None:
    with bell(Meddler()) as op:
        times = {"done": 5, "first": 10, "b": 20, "c": 30, "d": 40}
        for watermark in (100, 200):  # the second time it is known that timers change others
            op.push([("ada", name, at) for name, at in times.items()])
            op.watermark(watermark)
        expected = [
            *(("done", 5), ((True, False), 40, None), ("first", 10), ("new", 12)),
            *(("d", 40), ("c", 45)),
        ]
        assert op.output() == 2 * expected


def test_a_crash_neither_loses_a_timer_nor_fires_it_twice() -> None:
    with bell(shards=2) as op:
        op.push([(key, "set", str(at), at) for key in "abcdef" for at in (10, 20, 30)])
        op.checkpoint()
        op.watermark(15)
        for shard in (0, 1):
            op.crash(shard)
        op.watermark(25)
        op.checkpoint()
        for shard in (1, 0):
            op.crash(shard)
        op.watermark(35)
        fired = op.output()
        assert sorted(fired) == sorted((k, str(at), at) for k in "abcdef" for at in (10, 20, 30))
        assert op.state("rung") == dict.fromkeys("abcdef", 3)
        assert op.timers() == []


def keyed_bell(shards: int, state: Any) -> es.Pipeline:
    pipeline = es.Pipeline("bells")
    rows = pipeline.source(es.FromList([]), name="rows").event_time(lambda r: 0, unit="us")
    rung = rows.key_by(lambda r: r[0]).process(Bell(), name="bell", state=state, shards=shards)
    rung.sink(es.Collect(), name="out")
    return pipeline


@pytest.mark.parametrize(
    ("before", "after"), [("disk", "disk"), ("memory", "disk"), ("disk", "memory")]
)
def test_timers_are_kept_on_disk_through_crashes_and_changes_of_shards(
    before: Any, after: Any
) -> None:
    with testing.harness(keyed_bell(2, before)) as h:
        h.push("rows", [(key, "set", str(at), at) for key in "abcdef" for at in range(1, 40)])
        h.push("rows", [(key, "set", "7", 25) for key in "abc"])
        h.push("rows", [(key, "cancel", "8") for key in "def"])
        h.checkpoint()
        h.watermark("rows", 10)
        h.crash("bell:0")
        h.watermark("rows", 20)
        h.checkpoint()
        h.restart(keyed_bell(3, after))
        h.watermark("rows", 30)
        h.checkpoint()
        h.crash("bell:1")
        h.watermark("rows", 50)
        assert h.timers("bell") == []
        h.end()
        moved = {(key, "7"): 25 for key in "abc"}
        expected = [
            (key, str(at), moved.get((key, str(at)), at))
            for key in "abcdef"
            for at in range(1, 40)
            if key in "abc" or at != 8
        ]
        fired = [row for row in h.output("out") if row[0] != "cancelled"]
        assert sorted(fired) == sorted(expected)


def test_timers_of_processing_time_fire_after_a_crash_too_and_are_dropped_at_the_end() -> None:
    with bell(start=1000.0) as op:
        op.push([("ada", "after", "soon", "10s"), ("bob", "after", "later", "1h")])
        op.checkpoint()
        op.crash(0)
        op.advance("10s")
        assert op.output() == [("ada", "soon", 1_010_000_000)]
        assert op.timers() == [("bob", "later", 4_600_000_000)]
        op.end()
        assert op.output() == [("ada", "soon", 1_010_000_000)]


class Chain(es.Operator):
    """A timer that sets others: one before those that are due too, one for ever."""

    def process(self, record: tuple[str, int], ctx: es.Context) -> None:
        ctx.timers.set(record[1], "first")
        ctx.timers.set(50, "last")

    def on_timer(self, key: str, name: str, at: int, ctx: es.Context) -> None:
        ctx.emit((name, at))
        if name == "first":
            ctx.timers.set(at + 10, "second")
        ctx.timers.set(at + 100, "periodic")


def test_a_timer_that_another_one_sets_fires_in_its_turn() -> None:
    with bell(Chain()) as op:
        op.push([("ada", 10)])
        op.watermark(60)
        assert op.output() == [("first", 10), ("second", 20), ("last", 50)]


def test_at_the_end_of_the_input_timers_fire_and_one_that_sets_itself_again_ends() -> None:
    with bell(Chain()) as op:
        op.push([("ada", 10)])
        op.end()
        assert op.output() == [("first", 10), ("second", 20), ("last", 50), ("periodic", 150)]


def ring(shards: int, operator: es.Operator | None = None) -> es.Pipeline:
    pipeline = es.Pipeline("ring")
    rows = pipeline.source(es.FromList([]), name="rows").event_time(lambda r: 0, unit="us")
    keyed = rows.key_by(lambda record: record[0])
    rung = keyed.process(operator or Bell(), name="bell", shards=shards)
    return rung.sink(es.Collect(), name="out", shards=1)


def test_timers_follow_their_keys_when_the_number_of_shards_changes() -> None:
    keys = [f"key {n}" for n in range(40)]
    with testing.harness(ring(1)) as h:
        h.push("rows", [(key, "set", "x", 100) for key in keys])
        h.checkpoint()
        h.restart(ring(3))
        for shard in range(3):
            assert 0 < len(h.timers(f"bell:{shard}")) < 40
        h.watermark("rows", 200)
        assert sorted(h.uncommitted("out")) == sorted((key, "x", 100) for key in keys)
        h.checkpoint()
        h.restart(ring(2))
        assert h.timers("bell") == []


class Deaf(es.Operator):
    rung = es.Keyed[int](init=int)

    def process(self, record: Any, ctx: es.Context) -> None:
        ctx.timers.set(0)


Deaf.__name__ = "Bell"


def test_pending_timers_of_an_operator_that_can_no_longer_hear_them_are_refused() -> None:
    with testing.harness(ring(1)) as h:
        h.push("rows", [("ada", "set", "x", 100)])
        h.checkpoint()
        with pytest.raises(
            EverstreamError, match="has 1 timers in its checkpoint, but no on_timer"
        ):
            h.restart(ring(1, Deaf()))


def test_an_operator_without_on_timer_cannot_set_one() -> None:
    with (
        pytest.raises(EverstreamError, match="sets a timer but has no on_timer"),
        bell(Deaf()) as op,
    ):
        op.push([("ada", 1)])


def test_a_timer_needs_a_key() -> None:
    pipeline = es.Pipeline("no-key")
    rows = pipeline.source(es.FromList([]), name="rows")
    rows.process(Bell(), name="bell").sink(es.Collect(), name="out")
    with (
        pytest.raises(EverstreamError, match="a timer belongs to a key: put"),
        testing.harness(pipeline) as h,
    ):
        h.push("rows", [("ada", "set", "x", 1)])


class Given(es.Operator):
    """Sets a timer as its record says."""

    def process(self, record: tuple[str, dict[str, Any]], ctx: es.Context) -> None:
        ctx.timers.set(**record[1])

    def on_timer(self, key: str, name: str, at: int, ctx: es.Context) -> None:
        ctx.emit(at)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at": 1.5}, "give a datetime, or whole microseconds"),
        ({"at": True}, "give a datetime"),
        ({"at": "10s"}, "give a datetime"),
        ({}, "either `at` or `after`"),
        ({"at": 1, "after": "1s"}, "either `at` or `after`"),
        ({"after": "1s"}, "add the duration to the time of the record"),
        ({"at": 1, "time": "evnt"}, "use 'event' or 'processing'"),
    ],
)
def test_a_time_that_could_mean_two_things_is_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(EverstreamError, match=message), bell(Given()) as op:
        op.push([("ada", arguments)])


@pytest.mark.parametrize(
    "at",
    [
        1_500_000,
        datetime(1970, 1, 1, 0, 0, 1, 500_000),
        datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC),
        datetime(1970, 1, 1, 2, 0, 1, 500_000, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_times_are_microseconds_or_datetimes(at: Any) -> None:
    with bell(Given()) as op:
        op.push([("ada", {"at": at})])
        assert op.timers() == [("ada", "", 1_500_000)]


class Failing(Bell):
    def on_timer(self, key: str, name: str, at: int, ctx: es.Context) -> None:
        ctx.emit("half of it")
        if name == "bad":
            raise ValueError("no bell")
        super().on_timer(key, name, at, ctx)


def test_an_error_in_a_timer_is_handled_as_on_error_says() -> None:
    pipeline = es.Pipeline("failing")
    rows = pipeline.source(es.FromList([]), name="rows").event_time(lambda r: 0, unit="us")
    rung = rows.key_by(lambda r: r[0]).process(Failing(), name="bell", on_error="dead_letter")
    rung.sink(es.Collect(), name="out")
    with testing.harness(pipeline) as h:
        h.push("rows", [("ada", "set", "bad", 5), ("ada", "set", "good", 6)])
        h.watermark("rows", 10)
        assert h.uncommitted("out") == ["half of it", ("ada", "good", 6)]
        h.checkpoint()
        (letter,) = h.dead_letters("bell")
        assert "no bell" in letter.error and letter.record == ("ada", "bad", 5)


@given(st.lists(st.tuples(st.integers(-5_000_000, 5_000_000), st.booleans())), st.integers(1, 7))
def test_due_times_come_out_in_order_however_they_went_in(
    actions: list[tuple[int, bool]], most: int
) -> None:
    due, waiting = DueTimes(), []
    for number, (at, take) in enumerate(actions):
        if not take:
            due.add(at, number)
            waiting.append((at, number))
            continue
        assert due.next_at == min((at for at, _ in waiting), default=None)
        taken = list(everything(due, at, most))
        assert taken == sorted(one for one in waiting if one[0] <= at)
        waiting = [one for one in waiting if one[0] > at]


def everything(due: DueTimes, until: int, most: int) -> Iterator[tuple[int, Any]]:
    while taken := due.take(until, most):
        assert taken == sorted(taken)
        yield from taken
