"""A pipeline runs inside a test: what goes in, what comes out, and what survives a failure."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream import testing
from everstream.errors import RunFailed, UserError
from everstream.pipeline.checkpointing import Checkpointing


def totals(*, shards: int = 2, sources: int = 1) -> es.Pipeline:
    """Sums per name."""
    pipeline = es.Pipeline("totals")
    orders = pipeline.source(es.FromList([]), name="orders", shards=sources)
    keyed = orders.key_by(lambda order: order[0])
    summed = keyed.fold(init=int, update=lambda total, order: total + order[1], shards=shards)
    return summed.sink(es.Collect(), name="totals")


def clicks(**options: Any) -> es.Pipeline:
    """Clicks per user and ten seconds."""
    pipeline = es.Pipeline("clicks")
    timed = pipeline.source(es.FromList([]), name="clicks").event_time("at", unit="s", **options)
    window = timed.key_by("user").window(es.Tumbling("10s"))
    return window.aggregate(n=es.count(), name="count", shards=2).sink(es.Collect(), name="counts")


def counted(user: str, start: int, n: int) -> dict[str, Any]:
    return {"user": user, "window_start": start, "window_end": start + 10, "n": n}


# Input and output.


def test_output_is_committed_by_a_checkpoint_and_is_uncommitted_before() -> None:
    with testing.harness(totals()) as h:
        h.push("orders", [("ada", 3), ("ada", 4)])
        assert h.output("totals") == []
        assert h.uncommitted("totals") == [("ada", 3), ("ada", 7)]
        assert h.checkpoint() == 1
        assert h.output("totals") == [("ada", 3), ("ada", 7)]
        assert h.uncommitted("totals") == []
        assert h.checkpoint() == 2


def test_the_end_of_all_sources_commits_everything() -> None:
    with testing.harness(totals()) as h:
        h.push("orders", [("ada", 3)])
        assert not h.finished
        h.end()
        assert h.finished
        assert h.output("totals") == [("ada", 3)]


def test_pushes_of_any_iterable_and_of_columns_arrive_with_their_types() -> None:
    pipeline = es.Pipeline("as-is")
    pipeline.source(es.FromList([]), name="rows").sink(es.Collect(), name="out")
    with testing.harness(pipeline) as h:
        h.push("rows", (n for n in (1, 2.0)))
        h.push("rows", pl.DataFrame({"n": [3]}))
        found = h.uncommitted("out")
        assert found == [1, 2.0, {"n": 3}]
        assert [type(record) for record in found] == [int, float, dict]


def test_shards_of_a_source_get_the_records_in_turn() -> None:
    pipeline = es.Pipeline("shards")
    rows = pipeline.source(es.FromList([]), name="rows", shards=3)
    rows.process(WhereItRuns(), name="where").sink(es.Collect(), name="out")
    with testing.harness(pipeline) as h:
        h.push("rows", [0, 1])
        h.push("rows", pl.DataFrame({"n": [2, 3]}))
        found = sorted(h.uncommitted("out"), key=str)
    assert found == [(0, 0), (0, {"n": 3}), (1, 1), (2, {"n": 2})]


class WhereItRuns(es.Operator):
    repeatable = True

    def process(self, record: Any, ctx: es.Context) -> None:
        ctx.emit((ctx.shard, record))


def test_what_an_operator_changes_in_place_does_not_change_output_or_input() -> None:
    class Growing(es.Operator):
        seen = es.Keyed[list[int]](init=list)

        def process(self, record: list[int], ctx: es.Context) -> None:
            record.append(0)
            self.seen[ctx.key].append(len(record))
            ctx.emit(self.seen[ctx.key])

    pipeline = es.Pipeline("growing")
    rows = pipeline.source(es.FromList([]), name="rows").key_by(lambda record: 0)
    rows.process(Growing(), name="growing").sink(es.Collect(), name="out")
    with testing.harness(pipeline) as h:
        given = [1]
        h.push("rows", [given])
        h.push("rows", [[1, 2]])
        h.crash("growing:0")
        assert h.uncommitted("out") == [[2], [2, 3]]
        assert given == [1]
        h.output("out").append("mine")
        h.state("growing")[0].append("mine")
        assert h.state("growing") == {0: [2, 3]}


def test_nothing_of_spark_is_imported() -> None:
    program = (
        "import sys\n"
        "import everstream as es\n"
        "from everstream import testing\n"
        "p = es.Pipeline('p')\n"
        "p.source(es.FromList([]), name='s').sink(es.Collect(), name='out')\n"
        "with testing.harness(p) as h:\n"
        "    h.push('s', [1])\n"
        "    h.end()\n"
        "    assert h.output('out') == [1]\n"
        "print('pyspark' in sys.modules, 'py4j' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False False\n", done.stderr


# Failures.

PROTOCOLS = [
    es.Coordinated(),
    es.Coordinated(mode="unaligned"),
    es.Uncoordinated(),
    es.CommunicationInduced(),
]


@pytest.mark.parametrize("checkpoint", PROTOCOLS, ids=str)
@pytest.mark.parametrize("shard", ["orders:0", "orders:1", "fold:0", "fold:1", "totals:0"])
def test_a_crash_in_the_middle_gives_the_same_output(shard: str, checkpoint: Checkpointing) -> None:
    with testing.harness(totals(sources=2), checkpoint=checkpoint, workers=4) as h:
        h.push("orders", [(name, 1) for name in "aabbcc"])
        h.checkpoint()
        h.push("orders", [(name, 10) for name in "aabbcc"])
        h.crash(shard)
        h.push("orders", [(name, 100) for name in "aabbcc"])
        h.end()
        found = sorted(h.output("totals"))
    assert found == sorted((name, n) for name in "abc" for n in (1, 2, 12, 22, 122, 222))


def test_a_crash_takes_uncommitted_output_back_and_makes_it_again() -> None:
    with testing.harness(totals()) as h:
        h.push("orders", [("ada", 1)])
        h.checkpoint()
        h.push("orders", [("ada", 2)])
        h.crash("fold:1")
        assert (h.output("totals"), h.uncommitted("totals")) == ([("ada", 1)], [("ada", 3)])
        assert h.state("fold") == {"ada": 3}


def test_a_plain_attribute_is_lost_in_a_crash() -> None:
    """The mistake that this harness is for."""

    class Forgetful(es.Operator):
        def __init__(self) -> None:
            self.seen = 0

        def process(self, record: Any, ctx: es.Context) -> None:
            self.seen += 1
            ctx.emit(self.seen)

    pipeline = es.Pipeline("forgetful")
    rows = pipeline.source(es.FromList([]), name="rows")
    rows.process(Forgetful(), name="count").sink(es.Collect(), name="out")
    with testing.harness(pipeline) as h:
        h.push("rows", "ab")
        h.checkpoint()
        h.crash("count:0")
        h.push("rows", "c")
        assert h.output("out") + h.uncommitted("out") == [1, 2, 1]


def test_an_error_of_the_users_function_is_raised_with_its_cause() -> None:
    pipeline = es.Pipeline("division")
    rows = pipeline.source(es.FromList([]), name="rows")
    rows.map(lambda n: 1 // n, name="divide").sink(es.Collect(), name="out")
    with (
        pytest.raises(RunFailed, match=r"divide.*ZeroDivisionError"),
        testing.harness(pipeline) as h,
    ):
        h.push("rows", [1, 0])


def test_a_run_that_failed_resumes_with_the_corrected_pipeline() -> None:
    def dividing(divide: Any) -> es.Pipeline:
        pipeline = es.Pipeline("division")
        rows = pipeline.source(es.FromList([]), name="rows")
        return rows.map(divide, name="divide").sink(es.Collect(), name="out")

    with testing.harness(dividing(lambda n: 4 // n)) as h:
        h.push("rows", [2])
        h.checkpoint()
        with pytest.raises(RunFailed):
            h.push("rows", [0])
        with pytest.raises(UserError, match="the run has failed: no worker is left"):
            h.checkpoint()
        h.restart(dividing(lambda n: 4 // (n or 1)))
        assert (h.output("out"), h.uncommitted("out")) == ([2], [4])


def test_transactions_survive_a_crash() -> None:
    stock = es.Table("stock", initial=5)

    @es.transaction(left=stock.key("item"), writes="left", interpreted=True)
    def buy(left: Any, amount: Any) -> Any:
        return es.ABORT if left < amount else left - amount

    pipeline = es.Pipeline("shop")
    orders = pipeline.source(es.FromList([]), name="orders")
    orders.transact(buy, name="buy").sink(es.Collect(), name="out")
    with testing.harness(pipeline) as h:
        h.push("orders", [{"item": 1, "amount": 3}])
        h.checkpoint()
        h.push("orders", [{"item": 1, "amount": 1}])
        h.crash("buy:0")
        h.push("orders", [{"item": 1, "amount": 3}])
        h.end()
        assert [row["committed"] for row in h.output("out")] == [True, True, False]


def test_dead_letters_are_kept() -> None:
    pipeline = es.Pipeline("division")
    rows = pipeline.source(es.FromList([]), name="rows")
    divided = rows.map(lambda n: 1 // n, name="divide", on_error="dead_letter")
    divided.sink(es.Collect(), name="out")
    with testing.harness(pipeline) as h:
        h.push("rows", [1, 0])
        assert h.uncommitted("out") == [1]
        assert [letter.record for letter in h.dead_letters("divide")] == [0]
        h.checkpoint()
        h.crash("divide:0")
        assert [letter.record for letter in h.dead_letters("divide")] == [0]
        with pytest.raises(UserError, match=r"no operator with on_error.* 'out'; it has: divide"):
            h.dead_letters("out")


# Time.


def test_windows_close_when_the_watermark_passes_and_late_records_are_kept_aside() -> None:
    with testing.harness(clicks(lateness="2s")) as h:
        h.push("clicks", [{"user": "ada", "at": 1}, {"user": "ada", "at": 11}])
        assert h.uncommitted("counts") == []
        h.push("clicks", [{"user": "ada", "at": 9}, {"user": "ada", "at": 12}])
        assert h.uncommitted("counts") == [counted("ada", 0, 2)]
        assert h.late("count") == []
        h.push("clicks", [{"user": "ada", "at": 2}])
        assert h.late("count") == [{"user": "ada", "at": 2}]
        h.end()
        assert h.output("counts") == [counted("ada", 0, 2), counted("ada", 10, 2)]


@pytest.mark.parametrize("time", [10, "1970-01-01T00:00:10", datetime(1970, 1, 1, 0, 0, 10)])
def test_a_watermark_of_the_source_closes_windows_without_a_record(time: Any) -> None:
    with testing.harness(clicks()) as h:
        h.push("clicks", [{"user": "ada", "at": 1}])
        h.watermark("clicks", 9)
        assert h.uncommitted("counts") == []
        h.watermark("clicks", time)
        assert h.uncommitted("counts") == [counted("ada", 0, 1)]
        h.checkpoint()
        h.crash("clicks:0")
        h.push("clicks", [{"user": "ada", "at": 9}])
        assert h.late("count") == [{"user": "ada", "at": 9}]
        assert h.output("counts") == [counted("ada", 0, 1)]


def test_streams_are_joined_when_both_watermarks_allow_it() -> None:
    pipeline = es.Pipeline("joined")
    sides = [
        pipeline.source(es.FromList([]), name=name).event_time("at", unit="s", name=f"{name}-time")
        for name in ("ads", "visits")
    ]
    joined = sides[0].window_join(sides[1], on="user", window=es.Tumbling("10s"), name="join")
    joined.select("ad", "page").sink(es.Collect(), name="pairs")
    with testing.harness(pipeline) as h:
        h.push("ads", [{"user": 1, "ad": "tea", "at": 3}])
        h.push("visits", [{"user": 1, "page": "a", "at": 4}, {"user": 2, "page": "b", "at": 5}])
        h.watermark("ads", 10)
        assert h.uncommitted("pairs") == []
        h.crash("join:0")
        h.watermark("visits", 10)
        assert h.uncommitted("pairs") == [{"ad": "tea", "page": "a"}]
        h.push("visits", [{"user": 1, "page": "late", "at": 6}])
        assert [row["page"] for row in h.late("join")] == ["late"]


class TimesOut(es.Operator):
    """Emits a key a minute after its last record."""

    def process(self, record: str, ctx: es.Context) -> None:
        ctx.timers.set(after="60s", time="processing")

    def on_timer(self, key: str, name: str, at: int, ctx: es.Context) -> None:
        ctx.emit((key, ctx.now_s))


def test_timers_fire_in_virtual_time_each_at_its_own_moment() -> None:
    pipeline = es.Pipeline("timeouts")
    names = pipeline.source(es.FromList([]), name="names").key_by(lambda name: name)
    names.process(TimesOut(), name="timeout").sink(es.Collect(), name="out")
    began_s = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    with testing.harness(pipeline) as h:
        assert h.now_s == began_s
        h.push("names", ["ada"])
        h.advance("20s")
        h.push("names", ["bob"])
        due = [(timer.key, timer.at / 1e6 - began_s) for timer in h.timers("timeout")]
        assert due == [("ada", 60), ("bob", 80)]
        h.advance(39.5)
        assert h.uncommitted("out") == []
        h.checkpoint()
        h.crash("timeout:0")
        h.advance(timedelta(hours=1))
        assert h.now_s == began_s + 59.5 + 3600
        assert h.uncommitted("out") == [("ada", began_s + 60), ("bob", began_s + 80)]
        assert h.timers("timeout") == []
        with pytest.raises(UserError, match="time does not go back"):
            h.advance(-1)


def test_a_harness_begins_at_the_time_that_it_is_given() -> None:
    with testing.harness(totals(), start="1999-12-31T23:59:59+00:00") as h:
        h.advance("1s")
        assert h.now_s == datetime(2000, 1, 1, tzinfo=UTC).timestamp()
    with pytest.raises(UserError, match="'tomorrow' is not a time"):
        testing.harness(totals(), start="tomorrow")


# State and side outputs.


class Sorted(es.Operator):
    """Counts per key, with negative numbers at a side output."""

    count = es.Keyed[int](init=int)
    last = es.Keyed[int](init=int)

    def process(self, record: int, ctx: es.Context) -> None:
        self.count[ctx.key] += 1
        self.last[ctx.key] = record
        ctx.emit(record, "out" if record >= 0 else "negative")


def sides() -> es.Pipeline:
    pipeline = es.Pipeline("sides")
    rows = pipeline.source(es.FromList([]), name="rows").key_by(lambda n: n % 10)
    done = rows.process(Sorted(), name="sorted", shards=2)
    done.side_output("negative").sink(es.Collect(), name="negative")
    return done.sink(es.Collect(), name="out")


def test_side_outputs_reach_their_own_sinks() -> None:
    with testing.harness(sides()) as h:
        h.push("rows", [1, -2, 3])
        h.end()
        assert sorted(h.output("out")) == [1, 3]
        assert h.output("negative") == [-2]


def test_state_is_read_over_all_shards_or_from_one() -> None:
    with testing.harness(sides()) as h:
        h.push("rows", [1, -2, 3, 4, 11])
        assert h.state("sorted", "count") == {1: 2, 8: 1, 3: 1, 4: 1}
        assert h.state("sorted", "last") == {1: 11, 8: -2, 3: 3, 4: 4}
        parts = [h.state(f"sorted:{shard}", "count") for shard in range(2)]
        assert parts[0] and parts[1]
        assert {**parts[0], **parts[1]} == {1: 2, 8: 1, 3: 1, 4: 1}
        with pytest.raises(UserError, match="several states: name one of count, last"):
            h.state("sorted")
        with pytest.raises(UserError, match="no state of 'sorted' 'first'; it has: count, last"):
            h.state("sorted", "first")


def test_state_on_disk_is_read_and_survives_a_crash() -> None:
    pipeline = es.Pipeline("on-disk")
    rows = pipeline.source(es.FromList([]), name="rows").key_by(lambda n: n % 2)
    rows.fold(init=int, update=lambda total, n: total + n, state="disk").collect(name="out")
    with testing.harness(pipeline) as h:
        h.push("rows", [1, 2, 3])
        h.checkpoint()
        h.crash("fold:0")
        assert h.state("fold") == {1: 4, 0: 2}


# Restarts and upgrades.


def test_a_restart_resumes_from_the_last_checkpoint() -> None:
    with testing.harness(totals()) as h:
        h.push("orders", [("ada", 1)])
        h.checkpoint()
        h.push("orders", [("ada", 2)])
        h.restart()
        assert h.state("fold") == {"ada": 3}
        h.end()
        assert h.output("totals") == [("ada", 1), ("ada", 3)]


def test_a_changed_number_of_shards_is_taken_along() -> None:
    with testing.harness(totals(shards=1, sources=1)) as h:
        h.push("orders", [(name, 1) for name in "abcd"])
        h.checkpoint()
        h.restart(totals(shards=3, sources=2))
        assert {key for n in range(3) for key in h.state(f"fold:{n}")} == set("abcd")
        assert all(len(h.state(f"fold:{n}")) < 4 for n in range(3))
        h.push("orders", [(name, 10) for name in "abcd"])
        h.end()
        assert sorted(h.output("totals")) == sorted([(n, v) for n in "abcd" for v in (1, 11)])


def test_a_source_with_other_shards_goes_through_all_that_is_pushed() -> None:
    def where(shards: int) -> es.Pipeline:
        pipeline = es.Pipeline("shards")
        rows = pipeline.source(es.FromList([]), name="rows", shards=shards)
        return rows.process(WhereItRuns(), name="where").sink(es.Collect(), name="out")

    with testing.harness(where(1)) as h:
        h.push("rows", ["a"])
        h.checkpoint()
        h.restart(where(3))
        h.push("rows", ["b", "c", "d"])
        h.checkpoint()
        assert {shard for shard, _ in h.output("out")} == {0, 1, 2}
        h.push("rows", ["e", "f", "g"])
        h.restart(where(2))
        h.push("rows", ["h"])
        h.end()
        assert sorted(record for _, record in h.output("out")) == [*"abcdefgh"]


class Balance(es.Operator):
    amount = es.Keyed[Any](init=int)

    def process(self, record: tuple[str, int], ctx: es.Context) -> None:
        self.amount[ctx.key] += record[1]
        ctx.emit((ctx.key, self.amount[ctx.key]))


def migrating() -> type[es.Operator]:
    class Balance(es.Operator):
        amount = es.Keyed[Any](
            init=lambda: {"cents": 0}, version=2, migrate=lambda had, _: {"cents": had * 100}
        )

        def process(self, record: tuple[str, int], ctx: es.Context) -> None:
            self.amount[ctx.key]["cents"] += record[1] * 100
            ctx.emit((ctx.key, self.amount[ctx.key]["cents"]))

    return Balance


def balances(operator: es.Operator, name: str = "balance") -> es.Pipeline:
    pipeline = es.Pipeline("balances")
    orders = pipeline.source(es.FromList([]), name="orders").key_by(lambda order: order[0])
    return orders.process(operator, name=name).sink(es.Collect(), name="out")


def test_an_upgrade_migrates_the_state() -> None:
    with testing.harness(balances(Balance())) as h:
        h.push("orders", [("ada", 3)])
        h.checkpoint()
        h.restart(balances(migrating()()))
        h.push("orders", [("ada", 4)])
        assert h.uncommitted("out") == [("ada", 700)]
        assert h.state("balance") == {"ada": {"cents": 700}}


def test_an_upgrade_that_would_lose_state_is_refused_and_the_run_continues() -> None:
    with testing.harness(balances(Balance())) as h:
        h.push("orders", [("ada", 3)])
        h.checkpoint()
        with pytest.raises(UserError, match=r"renamed={'balance': 'saldo'}"):
            h.restart(balances(Balance(), "saldo"))
        assert h.state("balance") == {"ada": 3}
        h.restart(balances(Balance(), "saldo"), renamed={"balance": "saldo"})
        assert h.state("saldo") == {"ada": 3}
        h.checkpoint()
        h.restart(balances(Balance()), drop_state=["saldo"])
        assert h.state("balance") == {}


def test_a_window_can_be_removed_after_it_had_late_records() -> None:
    with testing.harness(clicks()) as h:
        h.push("clicks", [{"user": "ada", "at": 11}])
        h.push("clicks", [{"user": "ada", "at": 1}])
        assert len(h.late("count")) == 1
        h.checkpoint()
        pipeline = es.Pipeline("clicks")
        pipeline.source(es.FromList([]), name="clicks").sink(es.Collect(), name="counts")
        h.restart(pipeline, drop_state=["count"])
        h.push("clicks", [{"user": "bob", "at": 2}])
        assert h.uncommitted("counts") == [{"user": "bob", "at": 2}]


def test_a_finished_run_can_be_started_again_and_has_nothing_to_do() -> None:
    with testing.harness(totals()) as h:
        h.push("orders", [("ada", 1)])
        h.end()
        h.restart()
        assert h.finished
        assert h.output("totals") == [("ada", 1)]


# Mistakes.


def test_unknown_names_are_refused_with_those_that_exist() -> None:
    with testing.harness(totals()) as h:
        with pytest.raises(UserError, match="'totals' has no source 'order'; it has: orders"):
            h.push("order", [])
        with pytest.raises(UserError, match="has no source 'fold'; it has: orders"):
            h.watermark("fold", 1)
        with pytest.raises(UserError, match="has no sink 'fold'; it has: totals"):
            h.output("fold")
        with pytest.raises(UserError, match="has no sink 'alerts'; it has: totals"):
            h.uncommitted("alerts")
        with pytest.raises(UserError, match="has no operator 'orders'; it has: fold"):
            h.state("orders")
        with pytest.raises(UserError, match="has no operator 'count'; it has: fold"):
            h.timers("count")
        with pytest.raises(UserError, match="no operator with late records 'fold'; it has: none"):
            h.late("fold")
        with pytest.raises(UserError, match=r"no shard 'fold'; it has: orders:0, fold:0, fold:1"):
            h.crash("fold")
        with pytest.raises(UserError, match=r"2 shard.* there is no shard 2"):
            h.crash("fold:2")


def test_nothing_is_pushed_after_the_end_or_after_the_harness_is_closed() -> None:
    with testing.harness(totals()) as h:
        h.end("orders")
        with pytest.raises(UserError, match="'orders' has ended"):
            h.push("orders", [("ada", 1)])
        with pytest.raises(UserError, match="the run has finished"):
            h.checkpoint()
    for use in (lambda: h.push("orders", []), lambda: h.advance(1), h.checkpoint, h.restart):
        with pytest.raises(UserError, match="the harness is closed"):
            use()


def test_a_pipeline_that_a_run_would_refuse_is_refused() -> None:
    pipeline = es.Pipeline("no-sink")
    pipeline.source(es.FromList([]), name="rows").map(str)
    with pytest.raises(es.UserError, match="has no sink"):
        testing.harness(pipeline)
    cyclic = es.Pipeline("cyclic")
    halves = cyclic.source(es.FromList([]), name="rows").map(lambda n: n // 2, name="halve")
    again, done = halves.branch(lambda n: n > 1)
    again.feedback(to=halves)
    done.sink(es.Collect(), name="out")
    with pytest.raises(es.UserError, match="cannot go round the cycle"):
        testing.harness(cyclic)
    with testing.harness(cyclic, checkpoint=es.Coordinated(mode="unaligned")) as h:
        h.push("rows", [8, 3])
        h.end()
        assert sorted(h.output("out")) == [1, 1]


def test_an_operator_that_never_rests_is_found() -> None:
    class Restless(es.Operator):
        repeatable = True

        def process(self, record: Any, ctx: es.Context) -> None:
            ctx.wake_at(ctx.now_s)

        def on_wake(self, now_s: float, ctx: es.Context) -> None:
            ctx.wake_at(now_s)

    pipeline = es.Pipeline("restless")
    rows = pipeline.source(es.FromList([]), name="rows")
    rows.process(Restless(), name="restless").sink(es.Collect(), name="out")
    with (
        pytest.raises(UserError, match="does not come to rest"),
        testing.harness(pipeline) as h,
    ):
        h.push("rows", [1])


def test_operators_are_stopped_in_order_when_the_harness_is_left() -> None:
    closed: list[str] = []
    CLOSED["now"] = closed
    pipeline = es.Pipeline("closing")
    rows = pipeline.source(es.FromList([]), name="rows")
    rows.process(Closing(), name="closing").sink(es.Collect(), name="out")
    with testing.harness(pipeline) as h:
        h.push("rows", [1])
        assert closed == []
    assert closed == ["closed"]


CLOSED: dict[str, list[str]] = {}


class Closing(es.Operator):
    repeatable = True

    def process(self, record: Any, ctx: es.Context) -> None:
        ctx.emit(record)

    def on_stop(self, ctx: es.Context) -> None:
        CLOSED["now"].append("closed")
