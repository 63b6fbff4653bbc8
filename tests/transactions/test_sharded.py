"""Transactions over partitioned tables: what comes out is what a plain loop gives, whatever the number of
shards, however frames are delivered and wherever checkpoints, crashes and rescaling fall."""

import random
from typing import Any

import polars as pl
import pytest

import everstream as es
from everstream.errors import GraphError, InternalError
from everstream.inspection import read_tables
from everstream.pipeline.keyed_state.spreading import Place
from everstream.transactions import InputError
from everstream.transactions.sharded import PartitionedTransact
from tests.spark import MASTER
from tests.transactions import bank
from tests.transactions.partitioned import Shards
from tests.transactions.piped import assert_true, content

PIPED = [name for name in bank.SCHEMES if name != "none"]


def bank_events(count: int, seed: int, keys: int = 5) -> pl.DataFrame:
    events = bank.random_events(count, seed, keys)
    return events.with_columns(pl.col("transaction").cast(pl.String))


def run_with_failures(seed: int, recovery: str = "delta", rescales: bool = False) -> None:
    """Everything at random: sizes of batches, deliveries, checkpoints, crashes."""
    chance = random.Random(seed)
    events = bank_events(chance.randint(10, 60), seed, chance.choice((2, 5, 40)))
    shards = Shards(bank.TRANSACTIONS, chance.randint(2, 4), seed, recovery)
    read = saved = 0
    while read < len(events):
        size = chance.randint(1, 15)
        shards.process(events[read : read + size])
        read = min(len(events), read + size)
        shards.deliver(chance.randint(0, 12))
        step = chance.random()
        if step < 0.3:
            shards.checkpoint()
            saved = read
        elif step < 0.5:
            shards.restore()
            read = saved
        elif step < 0.6 and rescales:
            shards.rescale(chance.randint(1, 4))
            saved = read
    shards.assert_serial(events)


@pytest.mark.parametrize("seed", range(30))
def test_shards_give_what_a_plain_loop_gives_through_crashes_and_rescaling(seed: int) -> None:
    run_with_failures(seed, rescales=True)


@pytest.mark.parametrize("recovery", PIPED)
def test_every_recovery_scheme_gives_what_a_plain_loop_gives(recovery: str) -> None:
    for seed in range(100, 103):
        run_with_failures(seed, recovery, rescales=True)


@pytest.mark.long
def test_a_thousand_seeds_of_shards_give_what_a_plain_loop_gives() -> None:
    for seed in range(1_000, 2_000):
        run_with_failures(seed, random.Random(seed).choice(PIPED), rescales=True)


def run_locally(
    folder: Any, events: pl.DataFrame, checkpoint: Any, kill: list[str], workers: int = 2
) -> es.RunResult:
    """Outcomes and tables of a local run with kills are those of a plain loop."""
    pipeline = es.Pipeline("partitioned")
    source = es.FromFunction(lambda start, stop: events[start:stop], total=len(events), batch=50)
    outcomes = pipeline.source(source).transact(
        bank.transfer, bank.borrow, shards=2, name="book", timestamp="at"
    )
    outcomes.collect()
    result = pipeline.run(
        engine="local", store=folder, checkpoint=checkpoint, kill=kill, workers=workers
    )
    shown = pl.DataFrame(result.collected()).sort("position")
    frames = read_tables(folder, pipeline, "book")
    operator: Any = pipeline.graph.nodes["book"].what
    tables = {name: content(frame) for name, frame in frames.items()}
    assert_true(operator, shown, tables, events)
    return result


def transfers(count: int, keys: int, *, own: bool) -> pl.DataFrame:
    """Transfers and loans; `own`: each within one key."""
    events = bank_events(3 * count, 7, keys).filter(
        pl.col("transaction").is_in(["transfer", "borrow"])
    )[:count]
    events = events.with_columns(at=pl.int_range(count))
    return events.with_columns(b=pl.col("a")) if own else events


def test_killed_shards_of_a_local_run_leave_the_output_and_the_tables_exact(tmp_path: Any) -> None:
    unaligned = es.Coordinated(every="50ms", mode="unaligned")
    kill = ["book:0@300", "book:1@900"]
    result = run_locally(tmp_path, transfers(1_200, 60, own=False), unaligned, kill)
    assert len(result.recoveries) == 2


def test_a_shard_that_has_received_nothing_from_a_lost_one_keeps_its_state(tmp_path: Any) -> None:
    events = transfers(1_200, 60, own=True)
    logged = es.Uncoordinated(every="50ms")
    (recovery,) = run_locally(tmp_path, events, logged, ["book:0@600"], workers=4).recoveries
    assert "book:0" in recovery.went_back
    assert "book:1" not in recovery.went_back


def test_shards_exchange_values_in_micro_batches_too(tmp_path: Any) -> None:
    events = transfers(60, 60, own=False).drop("at")
    pipeline = es.Pipeline("partitioned")
    source = es.FromFunction(lambda start, stop: events[start:stop], total=60, batch=30)
    pipeline.source(source).transact(bank.transfer, bank.borrow, shards=2, name="book").collect()
    result = pipeline.run(engine="microbatch", store=tmp_path, master=MASTER)
    _, outcomes = bank.truth(events)
    shown = sorted(result.collected(), key=lambda row: row["position"])
    assert [row["committed"] for row in shown] == [outcome.committed for outcome in outcomes]
    for row, outcome in zip(shown, outcomes, strict=True):
        assert all(row[name] == value for name, value in outcome.reads.items())


def stream() -> Any:
    return es.Pipeline("p").source(es.FromList([]))


def test_a_number_of_shards_that_cannot_be_is_refused() -> None:
    with pytest.raises(GraphError, match="1 to 128"):
        stream().transact(bank.transfer, shards=0, name="book")


def test_aligned_checkpoints_are_refused_with_those_that_work() -> None:
    pipeline = stream().transact(bank.transfer, shards=2, name="book").collect()
    with pytest.raises(GraphError, match=r"operator 'book'.*mode=\"unaligned\""):
        pipeline.run(engine="local", checkpoint=es.Coordinated())


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"transaction": "lend", "a": 1, "b": 2, "amount": 1}, "names none of transfer, borrow"),
        ({"transaction": "borrow", "a": None, "b": 2, "amount": 1}, "'a' is null"),
        ({"transaction": "borrow", "a": 0.5, "b": 2, "amount": 1}, "whole numbers"),
        ({"transaction": "borrow", "a": -(2**63), "b": 2, "amount": 1}, "reserved"),
        ({"transaction": "borrow", "a": 1, "b": 2, "amount": "x"}, "a number or a boolean"),
    ],
)
def test_events_that_cannot_run_are_refused_with_the_reason(
    row: dict[str, Any], problem: str
) -> None:
    shards = Shards([bank.transfer, bank.borrow], 2, seed=1)
    with pytest.raises(InputError, match=problem):
        shards.process(
            pl.DataFrame(
                [row], schema_overrides={"a": pl.Float64} if row["a"] == 0.5 else {"a": pl.Int64}
            )
        )
        shards.deliver()


flags = es.Table("flags", value={"on": "bool", "share": "float32"}, initial=0)


@es.transaction(left=flags.key("a"), right=flags.key("b"), writes=("left", "right"))
def swap(left, right, invert, a, b):  # type: ignore[no-untyped-def]
    if a == b:
        return es.ABORT
    if invert:
        return (not right.on, left.share + 0.5), (left.on, right.share)
    return (right.on, right.share), (left.on, left.share)


def test_booleans_small_floats_and_columns_that_are_keys_and_fields_keep_their_values() -> None:
    chance = random.Random(5)
    rows = [
        {"a": chance.randint(0, 5), "b": chance.randint(0, 5), "invert": chance.random() < 0.5}
        for _ in range(80)
    ]
    shards = Shards([swap], 3, seed=2, recovery="wal")
    shards.process(pl.DataFrame(rows))
    shards.assert_serial(pl.DataFrame(rows))
    assert shards.frames_exchanged > 0


def test_transactions_of_one_shard_exchange_nothing() -> None:
    shards = Shards([bank.transfer, bank.borrow], 4, seed=1)
    events = transfers(200, 50, own=True).drop("at")
    shards.process(events)
    shards.assert_serial(events)
    assert shards.frames_exchanged == 0


def test_state_of_transactions_that_wait_is_not_redistributed() -> None:
    operator = PartitionedTransact([bank.transfer])
    parts = {0: {"ctx.state": {"pending": pl.DataFrame()}}}
    with pytest.raises(InternalError, match="wait for values"):
        operator.redistribute(parts, Place("book", 0, 1, 2, {}, {}))


def test_watermarks_wait_for_transactions_that_wait() -> None:
    shards = Shards([bank.transfer], 2, seed=1)
    pairs = [{"a": a, "b": b, "amount": 1} for a in range(6) for b in range(6) if a != b]
    shards.process(pl.DataFrame(pairs))
    operator, ctx = shards.operators[0], shards.contexts[0]
    operator.process_batch(shards.channels[-1, 0].popleft(), ctx)
    ctx.watermark = 9
    operator.on_watermark(9, ctx)
    assert ctx.announced < 9
    shards._forward(0, *ctx.take_emitted()[-1])
    shards.deliver()
    assert ctx.announced == 9
