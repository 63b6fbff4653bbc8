"""The engine is equivalent to running events one by one, whatever the schedule."""

import pickle
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everstream.transactions as es
from tests.transactions import bank

SCHEDULES = [(1, "serial"), (2, "parallel"), (3, "parallel"), (2, "auto")]

row = st.tuples(
    st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2), st.integers(0, 90)
)


@pytest.mark.parametrize(("threads", "execution"), SCHEDULES)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(row, max_size=60), cut=st.integers(1, 30))
def test_any_schedule_equals_the_sequential_interpreter(
    threads: int, execution: str, rows: list[Any], cut: int
) -> None:
    stream = bank.events(rows)
    run = bank.engine(parallelism=threads, execution=execution)
    frames = [run.process_batch(stream[at : at + cut]) for at in range(0, len(stream), cut)]
    tables, outcomes = bank.truth(stream)
    assert bank.content(run) == tables
    if frames:
        bank.assert_outcomes(pl.concat(frames), outcomes)
    run.close()


def test_a_long_contended_run_on_threads_equals_the_interpreter() -> None:
    stream = bank.random_events(20_000, seed=3, keys=50)
    run = bank.engine(parallelism=2, execution="parallel")
    frame = bank.feed(run, stream, epoch_events=5_000)
    tables, outcomes = bank.truth(stream)
    assert bank.content(run) == tables
    bank.assert_outcomes(frame, outcomes)


def test_an_aborted_transaction_leaves_no_trace() -> None:
    run = bank.engine()
    outcome = run.process_batch(bank.events([(0, 7, 8, 0, 1_000)]))
    assert outcome["committed"].to_list() == [False]
    assert bank.content(run) == {"accounts": {}, "meters": {}}
    assert run.table("accounts").get(7) == 100


def test_a_snapshot_holds_one_instant_and_survives_pickling() -> None:
    stream = bank.random_events(400, seed=1)
    run = bank.engine()
    bank.feed(run, stream, 100, stop=200)
    image = pickle.dumps(run.snapshot())
    bank.feed(run, stream, 100)
    other = bank.engine()
    other.restore(pickle.loads(image))
    assert bank.content(other) == bank.truth(stream[:200])[0]
    bank.feed(other, stream, 100)
    assert bank.content(other) == bank.content(run) == bank.truth(stream)[0]


def test_many_keys_grow_the_tables_without_losing_values() -> None:
    stream = bank.random_events(30_000, seed=2, keys=9_000)
    run = bank.engine(parallelism=2)
    bank.feed(run, stream, epoch_events=20_000)
    assert bank.content(run) == bank.truth(stream)[0]


def test_interpreted_transactions_may_use_any_python_and_recover(tmp_path: Any) -> None:
    words = es.Table("words", value="int64")

    @es.transaction(count=words.key("word"), writes="count", interpreted=True)
    def checkpoint_stats(count, step):
        return {"next": count + step}["next"] if step else es.ABORT

    stream = pl.DataFrame({"word": [1, 2, 1, 1], "step": [5, 0, 2, 3]})
    for scheme in bank.SCHEMES:
        folder = tmp_path / scheme
        run = es.TransactionEngine(
            [words], [checkpoint_stats], parallelism=2, recovery=scheme, log=folder
        )
        assert run.process_batch(stream)["committed"].to_list() == [True, False, True, True]
        run.end_epoch()
        run.flush()
        again = es.TransactionEngine([words], [checkpoint_stats], recovery=scheme, log=folder)
        again.recover(lambda first, last: stream[first:last])
        if again.next_event == 0:
            again.process_batch(stream)
        assert dict(again.table("words").items()) == {1: 10}


def test_a_function_that_raises_breaks_the_engine_until_it_is_restored() -> None:
    ratios = es.Table("ratios", value="float64", initial=1.0)

    @es.transaction(ratio=ratios.key("k"), writes="ratio")
    def divide(ratio, by):
        return ratio / by

    for threads, execution in SCHEDULES:
        run = es.TransactionEngine(
            [ratios], [divide], recovery="none", parallelism=threads, execution=execution
        )
        before = run.snapshot()
        with pytest.raises(es.ExecutionError, match="division"):
            run.process_batch(pl.DataFrame({"k": [1, 2, 1, 3], "by": [2.0, 4.0, 0.0, 1.0]}))
        with pytest.raises(es.ExecutionError, match="recover"):
            run.process_batch(pl.DataFrame({"k": [1], "by": [2.0]}))
        run.restore(before)
        run.process_batch(pl.DataFrame({"k": [1], "by": [2.0]}))
        assert dict(run.table("ratios").items()) == {1: 0.5}
        run.close()


def test_bad_events_are_refused_with_the_column_named() -> None:
    run = bank.engine(timestamp="amount")
    good = bank.random_events(5, seed=1)
    with pytest.raises(es.InputError, match="no column name"):
        run.process_batch(good.drop("name"))
    with pytest.raises(es.InputError, match="order of 'amount'"):
        run.process_batch(good.with_columns(amount=pl.Series([5, 4, 3, 2, 1])))
    with pytest.raises(es.InputError, match="unknown transactions"):
        run.process_batch(
            good.with_columns(transaction=pl.lit("steal"), amount=pl.Series([1, 2, 3, 4, 5]))
        )
    with pytest.raises(es.InputError, match="'a' is null"):
        run.process_batch(
            good.with_columns(
                transaction=pl.lit("transfer"), a=pl.lit(None, pl.Int64), amount=pl.lit(1)
            )
        )


def test_columns_a_transaction_does_not_use_may_be_null() -> None:
    run = bank.engine()
    stream = bank.events([(0, 1, 2, 0, 10), (2, 1, 2, 1, 10)])
    stream = stream.with_columns(
        name=pl.Series([None, "m1"]), a=pl.Series([1, None], dtype=pl.Int64)
    )
    run.process_batch(stream)
    assert bank.content(run) == bank.truth(stream)[0]
