"""`transact` in a pipeline: what comes out is what a plain loop gives, however the stream is cut
into batches, wherever checkpoints fall and whenever it crashes."""

import pickle
from dataclasses import replace
from typing import Any

import cloudpickle
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import everstream as es
from everstream.errors import UserError
from everstream.transactions import ExecutionError, InputError
from everstream.transactions.operator import Transact
from everstream_lab.workloads.transactions import WORKLOADS, Workload
from tests.transactions import bank
from tests.transactions.piped import Shard, assert_true

PIPED = [name for name in bank.SCHEMES if name != "none"]


def workload(name: str) -> Workload:
    return WORKLOADS[name](replace(WORKLOADS[name](None).shape, keys=30))


def live(shard: Shard) -> dict[str, Any]:
    """The tables right now."""
    engine = shard.chain.stages["book"].operator._engine  # type: ignore[union-attr]
    assert engine is not None
    return bank.content(engine.engine)


@pytest.mark.parametrize("recovery", PIPED)
@pytest.mark.parametrize("name", WORKLOADS)
def test_each_workload_gives_what_a_plain_loop_gives_through_crashes(
    name: str, recovery: str
) -> None:
    chosen = workload(name)
    events = chosen.events(900, seed=3)
    shard = Shard(chosen.transactions, parallelism=2, recovery=recovery)
    shown = shard.run(events, crashes=(5, 13, 20))
    assert live(shard) == shard.tables()
    assert_true(shard.operator, shown, shard.tables(), events)


CUTS = st.lists(
    st.tuples(st.integers(1, 25), st.sampled_from(["go on", "checkpoint", "crash"])),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60)
@example(cuts=[(1, "checkpoint")], seed=1, recovery="fast")  # a table without keys
@given(cuts=CUTS, seed=st.integers(0, 10_000), recovery=st.sampled_from(PIPED))
def test_any_cut_into_batches_with_checkpoints_and_crashes_anywhere_changes_nothing(
    cuts: list[tuple[int, str]], seed: int, recovery: str
) -> None:
    events = bank.random_events(120, seed, keys=4)
    shard = Shard(bank.TRANSACTIONS, parallelism=2, recovery=recovery)
    read = saved = 0
    for size, then in cuts:
        shard.process(events[read : read + size])
        read = min(len(events), read + size)
        if then == "checkpoint":
            shard.checkpoint()
            saved = read
        elif then == "crash":
            shard.crash()
            read = saved
    shard.process(events[read:])
    assert_true(shard.operator, shard.finish(), shard.tables(), events)


@settings(max_examples=40)
@given(
    times=st.lists(st.integers(0, 50), min_size=1, max_size=60),
    size=st.integers(1, 12),
    epoch_events=st.integers(1, 20),
    checkpoint_every=st.integers(1, 4),
)
def test_events_run_in_the_order_of_their_timestamps_within_an_epoch(
    times: list[int], size: int, epoch_events: int, checkpoint_every: int
) -> None:
    events = bank.random_events(len(times), 5, keys=3).with_columns(at=pl.Series(times))
    shard = Shard(bank.TRANSACTIONS, timestamp="at", epoch=epoch_events)
    for number, start in enumerate(range(0, len(events), size)):
        shard.process(events[start : start + size])
        if number % checkpoint_every == 0:
            shard.checkpoint()
            shard.process(events[:3])  # lost in the crash, with the events that waited since
            shard.crash()
    shown = shard.finish()
    epochs = [events[at : at + epoch_events] for at in range(0, len(events), epoch_events)]
    order = pl.concat([epoch.sort("at", maintain_order=True) for epoch in epochs])
    assert_true(shard.operator, shown, shard.tables(), order)


@settings(max_examples=40)
@given(
    times=st.lists(st.integers(0, 50), min_size=1, max_size=60),
    size=st.integers(1, 12),
    lateness=st.integers(0, 30),
    checkpoint_every=st.integers(1, 4),
)
def test_events_run_in_the_order_of_their_timestamps_as_watermarks_complete_them(
    times: list[int], size: int, lateness: int, checkpoint_every: int
) -> None:
    events = bank.random_events(len(times), 5, keys=3).with_columns(at=pl.Series(times))
    shard = Shard(bank.TRANSACTIONS, timestamp="at", unit="ms", epoch="watermark")
    waiting, epochs, watermark = events[:0], [events[:0]], -100
    for number, start in enumerate(range(0, len(events), size)):
        shard.process(events[start : start + size])
        if number % checkpoint_every == 0:
            shard.checkpoint()
            shard.process(events[:3])  # lost in the crash
            shard.crash()
        waiting = pl.concat([waiting, events[start : start + size]])
        reached = max(times[start : start + size]) - lateness
        if reached <= watermark:
            continue
        watermark = reached
        shard.chain.advance(watermark * 1000)
        epochs.append(waiting.filter(pl.col("at") < watermark).sort("at", maintain_order=True))
        waiting = waiting.filter(pl.col("at") >= watermark)
        assert sum(map(len, shard.shown)) == sum(map(len, epochs)), "nothing complete waits"
    shown = shard.finish()
    order = pl.concat([*epochs, waiting.sort("at", maintain_order=True)])
    assert_true(shard.operator, shown, shard.tables(), order)
    if lateness >= max(times):
        assert order["at"].is_sorted()


def test_a_watermark_does_not_overtake_the_outcomes_of_events_that_wait() -> None:
    shard = Shard([bank.transfer], timestamp="at", epoch=3)
    row = {"a": 1, "b": 2, "amount": 1, "at": 5}
    shard.process([row])
    shard.chain.advance(10)
    assert shard.promised == -1
    shard.process([row, row])
    assert (shard.promised, len(shard.shown)) == (10, 1)


def test_by_itself_each_batch_is_put_in_order() -> None:
    events = bank.random_events(40, 1).with_columns(at=pl.Series(range(40, 0, -1)))
    shard = Shard(bank.TRANSACTIONS, timestamp="at")
    shard.process(events[:25])
    shard.process(events[25:])
    order = pl.concat([events[:25].reverse(), events[25:].reverse()])
    assert_true(shard.operator, shard.finish(), shard.tables(), order)


def test_money_is_conserved_by_transfers_through_crashes() -> None:
    shard = Shard([bank.transfer], parallelism=2)
    events = bank.random_events(2000, 11, keys=50).drop("transaction")
    shown = shard.run(events.filter(pl.col("a") != pl.col("b")), crashes=(4, 9, 11, 30))
    assert not shown["committed"].all()
    for balances in (shard.tables()["accounts"], live(shard)["accounts"]):
        assert sum(balances.values()) == 100 * len(balances)


def test_a_checkpoint_saves_only_the_keys_that_changed_since_the_one_before() -> None:
    shard = Shard([bank.transfer])
    keys = pl.int_range(0, 40_000, eager=True)
    shard.process(pl.DataFrame({"a": keys, "b": keys, "amount": keys * 0 + 1}))
    shard.checkpoint()
    shard.checkpoint()
    nothing = len(shard.objects[-1][1])
    shard.process(pl.DataFrame({"a": [1, 2], "b": [3, 4], "amount": [5, 6]}))
    shard.checkpoint()
    whole, little = len(shard.objects[0][1]), len(shard.objects[-1][1])
    assert whole > 40_000 * 12
    assert nothing < little < 2_000


def test_long_histories_are_folded_into_a_snapshot() -> None:
    shard = Shard([bank.transfer], recovery="wal")
    rows = {"a": [1, 2], "b": [3, 4], "amount": [1, 1]}
    for _ in range(100):
        shard.process(pl.DataFrame(rows))
        shard.checkpoint()
    assert len(shard.state.keystore("book", "ctx.state")) <= 40
    assert shard.tables()["accounts"] == {1: 0, 2: 0, 3: 200, 4: 200}


names = es.Table("names", value={"seen": "int64", "best": "float64"}, initial=0, keys="string")


@es.transaction(names=names.key("name"), writes="names", interpreted=True)
def greet(names, text):  # type: ignore[no-untyped-def]
    length = len(f"{text:.2f}")  # nothing that numba knows
    return (names.seen + 1, max(names.best, text * length))


def test_an_interpreted_function_over_string_keys_runs_and_survives() -> None:
    events = pl.DataFrame(
        {"name": ["ä", "b", "ä", "", "b"] * 9, "text": [1.5, 2.0, 0.5, 9.0, 1.0] * 9}
    )
    shard = Shard([greet], parallelism=2)
    for start in range(0, 45, 6):
        shard.process(events[start : start + 6])
        shard.checkpoint()
        shard.crash()
    assert_true(shard.operator, shard.finish(), shard.tables(), events)
    assert set(shard.tables()["names"]) == {"ä", "b", ""}


def test_a_function_that_cannot_be_compiled_is_refused_where_it_is_defined() -> None:
    with pytest.raises(UserError, match=r"cannot be compiled(.|\n)*interpreted=True"):

        @es.transaction(names=names.key("name"), writes="names")
        def greet_compiled(names, text):  # type: ignore[no-untyped-def]
            return (names.seen + len(f"{text:.2f}"), open("file").fileno())


def test_outcomes_have_the_events_columns_the_name_the_verdict_and_the_values_read() -> None:
    shard = Shard([bank.transfer], parallelism=1)
    shard.process([{"a": 1, "b": 2, "src": "mine", "amount": 500}])
    (row,) = shard.finish().to_dicts()
    assert row == {
        "a": 1,
        "b": 2,
        "src": "mine",
        "amount": 500,
        "transaction": "transfer",
        "position": 0,
        "committed": False,
        "src_read": 100,
        "dst": 100,
    }


def test_numbers_may_name_transactions_and_outcomes_still_give_the_name() -> None:
    shard = Shard([bank.transfer, bank.borrow], select="kind")
    rows = [{"kind": kind, "a": 1, "b": 2, "amount": 1} for kind in (1, 0)]
    shard.process(rows)
    assert shard.finish()["kind"].to_list() == ["borrow", "transfer"]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"a": [1], "b": [1], "amount": [1]}, "no column 'transaction' that names which"),
        ({"transaction": ["borrow"], "a": [1], "b": [1]}, "no column amount"),
        ({"transaction": ["lend"], "a": [1], "b": [1], "amount": [1]}, "unknown transactions"),
        ({"transaction": [None], "a": [1], "b": [1], "amount": [1]}, "without a transaction type"),
        ({"transaction": ["borrow"], "a": [None], "b": [1], "amount": [1]}, "'a' is null"),
        (
            {"transaction": ["borrow"], "a": [1], "b": [1], "amount": [1], "committed": [1]},
            "rename",
        ),
    ],
)
def test_events_that_do_not_fit_are_refused_with_the_reason(
    columns: dict[str, Any], problem: str
) -> None:
    shard = Shard([bank.transfer, bank.borrow])
    with pytest.raises(InputError, match=problem):
        shard.process(pl.DataFrame(columns))


def test_only_the_events_that_do_not_fit_are_left_out_if_the_user_says_so() -> None:
    good = bank.random_events(30, 2).filter(pl.col("transaction").is_in(["transfer", "borrow"]))
    good = good.with_columns(pl.col("transaction").cast(pl.String))
    bad = [
        good[:1].with_columns(transaction=pl.lit("lend")),
        good[:1].with_columns(transaction=pl.lit(None, pl.String)),
        good[:1].with_columns(a=pl.lit(None, pl.Int64)),
        good[:1].with_columns(amount=pl.lit(None, pl.Int64)),
    ]
    shard = Shard([bank.transfer, bank.borrow], on_error="skip")
    shard.process(pl.concat([good[:5], *bad, good[5:]]))
    assert_true(shard.operator, shard.finish(), shard.tables(), good)
    assert shard.chain.skipped == {"book": 4}


ratios = es.Table("ratios", value="int64", initial=12)


@es.transaction(ratio=ratios.key("key"), writes="ratio")
def divide(ratio, by):  # type: ignore[no-untyped-def]
    return ratio // by


def test_a_function_that_raises_fails_the_shard_and_is_never_skipped() -> None:
    shard = Shard([divide], on_error="skip")
    shard.process(pl.DataFrame({"key": [1, 1], "by": [2, 3]}))
    shard.checkpoint()
    with pytest.raises(ExecutionError, match=r"'book'.*ZeroDivisionError"):
        shard.process(pl.DataFrame({"key": [1, 1], "by": [2, 0]}))
    shard.crash()
    assert live(shard) == {"ratios": {1: 2}}


def stream() -> Any:
    return es.Pipeline("p").source(es.FromList([]))


@pytest.mark.parametrize(
    ("given", "options", "problem"),
    [
        ([], {}, "at least one"),
        ([len], {}, "declared with es.transaction"),
        ([bank.transfer, bank.transfer], {}, "two transactions are named transfer"),
        ([bank.transfer], {"recovery": "magic"}, "one of none, checkpoint"),
        ([bank.transfer], {"recovery": "none"}, "saves nothing"),
        ([bank.transfer], {"parallelism": 0}, "number of threads"),
        ([bank.transfer], {"epoch": 10}, "name the column with timestamp"),
        ([bank.transfer], {"epoch": "now", "timestamp": "at"}, "'batch', 'watermark' or a number"),
        ([bank.transfer], {"epoch": "watermark", "timestamp": "at"}, "event_time"),
    ],
)
def test_wrong_uses_are_refused_before_anything_runs(
    given: list[Any], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        stream().transact(*given, **options)


def test_it_has_one_shard_behind_many() -> None:
    many = es.Pipeline("p").source(es.Range(10), shards=3)
    many.transact(bank.transfer, name="book").collect()
    assert many.pipeline.graph.nodes["book"].shards == 1


def test_one_that_waits_in_before_checkpoint_to_emit_is_told_that_it_cannot() -> None:
    shard = Shard([bank.transfer])
    shard.chain.stages["book"].operator.before_checkpoint = (  # type: ignore[method-assign,union-attr]
        lambda ctx: ctx.emit("late")
    )
    with pytest.raises(UserError, match="before_checkpoint cannot emit"):
        shard.checkpoint()


def test_tables_and_transactions_come_with_the_library_but_numba_only_when_asked_for() -> None:
    import subprocess
    import sys

    program = (
        "import sys, everstream as es; assert 'numba' not in sys.modules; "
        "es.Table, es.transaction, es.ABORT; assert 'numba' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        es.nothing  # noqa: B018


def test_a_transaction_moves_between_processes_by_name_or_whole() -> None:
    assert pickle.loads(pickle.dumps(bank.transfer)) is bank.transfer

    @es.transaction(ratio=ratios.key("key"), writes="ratio")
    def halve(ratio):  # type: ignore[no-untyped-def]
        if ratio == 1:
            return es.ABORT
        return ratio // 2

    copy = cloudpickle.loads(cloudpickle.dumps(halve))
    assert copy is not halve
    assert (copy.fingerprint, copy.needs, copy(8)) == (halve.fingerprint, halve.needs, 4)
    assert copy(1) is es.ABORT
    operator: Transact = cloudpickle.loads(cloudpickle.dumps(Transact([halve], parallelism=2)))
    assert operator.parallelism == 2
