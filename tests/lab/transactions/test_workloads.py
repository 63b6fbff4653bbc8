"""The workloads mean what they say, and every scheme gives their true state after any crash."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import everstream.transactions as es
from everstream_lab.recovery.fast import FastOptions
from everstream_lab.workloads.transactions import WORKLOADS, Workload, toll
from everstream_lab.workloads.transactions.ledger import INITIAL
from tests.transactions import bank

EVENTS = 480
EPOCH = 60
SMALL: dict[str, dict[str, Any]] = {
    "ledger": {"keys": 60, "partitions": 4},
    "grep-sum": {"keys": 60, "partitions": 4, "aborts": 0.2},
    "toll": {"keys": 6},
}


def small(name: str, **knobs: Any) -> Workload:
    make = WORKLOADS[name]
    return make(replace(make(None).shape, **{**SMALL[name], **knobs}))


def open_engine(workload: Workload, **options: Any) -> es.TransactionEngine:
    return es.TransactionEngine(workload.tables, workload.transactions, **options)


@pytest.fixture(scope="module")
def truths() -> dict[str, Any]:
    """Per workload its events and the interpreter's state after every epoch."""
    found = {}
    for name in WORKLOADS:
        workload = small(name)
        events = workload.events(EVENTS, seed=4)
        interpreter = es.Interpreter(workload.tables, workload.transactions)
        states = [{table: dict(content) for table, content in interpreter.tables.items()}]
        for first in range(0, EVENTS, EPOCH):
            interpreter.run(events[first : first + EPOCH].iter_rows(named=True))
            states.append({table: dict(content) for table, content in interpreter.tables.items()})
        found[name] = (workload, events, states)
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("scheme", bank.SCHEMES)
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_scheme_thread_count_and_crash_point_ends_in_the_truth(
    name: str, scheme: str, threads: int, truths: dict[str, Any], tmp_path: Path
) -> None:
    workload, events, states = truths[name]
    for crash_event in (30, 120, 210, 470):
        options: dict[str, Any] = {
            "recovery": scheme,
            "log": tmp_path / str(crash_event),
            "parallelism": threads,
            "execution": "parallel" if threads > 1 else "serial",
            "snapshot_every_epochs": 3,
            "recovery_options": FastOptions(adaptive_replay=False) if scheme == "fast" else None,
        }
        run = open_engine(workload, **options)
        bank.feed(run, events, EPOCH, stop=crash_event)
        run.flush()
        again = open_engine(workload, **options)
        again.recover(bank.source(events))
        assert bank.content(again) == states[again.next_event // EPOCH]
        bank.feed(again, events, EPOCH)
        assert bank.content(again) == states[-1]
        run.close()
        again.close()


def test_the_ledger_conserves_money_and_assets() -> None:
    workload = small("ledger", aborts=0.2)
    events = workload.events(5_000, seed=5)
    run = open_engine(workload, recovery="none", parallelism=2, execution="parallel")
    outcomes = run.process_batch(events)
    assert 0.1 < 1 - outcomes["committed"].mean() < 0.3
    deposits = events.filter((pl.col("transaction") == "deposit") & outcomes["committed"])
    for table, column in (("accounts", "amount"), ("assets", "units")):
        held = dict(run.table(table).items())
        assert sum(held.values()) == INITIAL * len(held) + deposits[column].sum()


def test_grep_and_sum_writes_the_sum_back_to_the_first_key() -> None:
    workload = small("grep-sum", length=3, aborts=0.0)
    run = open_engine(workload, recovery="none")
    run.process_batch(
        pl.DataFrame({"key0": [1, 1], "key1": [2, 1], "key2": [3, 4], "rejected": [False, False]})
    )
    assert dict(run.table("states").items()) == {1: 3 + 3 + 1}


def test_toll_processing_counts_each_vehicle_once_per_segment() -> None:
    workload = small("toll")
    events = workload.events(3_000, seed=6)
    run = open_engine(workload, recovery="none", parallelism=2, execution="parallel")
    outcomes = run.process_batch(events)
    valid = events.filter(pl.col("kmh") >= 0)
    expected = valid.group_by("segment").agg(pl.col("vehicle").n_unique()).rows()
    assert dict(run.table("vehicles").items()) == dict(expected)
    tolls = toll.tolls(outcomes, events)
    assert len(tolls) == len(valid)
    assert (tolls["toll"] >= 0).all()


def test_generators_repeat_for_a_seed_and_differ_between_seeds() -> None:
    for name in WORKLOADS:
        workload = small(name)
        assert workload.events(500, 1).equals(workload.events(500, 1))
        assert not workload.events(500, 1).equals(workload.events(500, 2))


def test_the_knobs_of_the_generators_do_what_they_say() -> None:
    skewed = small("grep-sum", keys=1_000, skew=1.2).events(5_000, 1)["key0"]
    even = small("grep-sum", keys=1_000, skew=0.0).events(5_000, 1)["key0"]
    assert skewed.value_counts()["count"].max() > 5 * even.value_counts()["count"].max()
    local = small("grep-sum", multi_partition=0.0).events(2_000, 1)
    assert (local["key0"] % 4 == local["key1"] % 4).all()
    spread = small("grep-sum", multi_partition=1.0).events(2_000, 1)
    assert (spread["key0"] % 4 == spread["key1"] % 4).mean() < 0.5
    transfers = small("ledger").events(2_000, 1)
    assert (transfers["from_account"] != transfers["to_account"]).all()
    assert 0.35 < (small("toll", aborts=0.4).events(5_000, 1)["kmh"] < 0).mean() < 0.45


def hottest_share(name: str) -> float:
    """Of the events of a workload as it is by default, the share on its most used key."""
    column = {"ledger": "to_account", "grep-sum": "key0", "toll": "segment"}[name]
    events = WORKLOADS[name](None).events(20_000, seed=8)
    counts = events[column].value_counts()["count"]
    return float(counts.max()) / len(events)  # type: ignore[arg-type]


def test_grep_and_sum_is_the_most_skewed_and_the_ledger_uses_its_keys_evenly() -> None:
    skews = {name: make(None).shape.skew for name, make in WORKLOADS.items()}
    assert skews["ledger"] == 0 < skews["toll"] < skews["grep-sum"]
    assert hottest_share("grep-sum") > 3 * hottest_share("toll") > 9 * hottest_share("ledger")


def test_the_ledger_has_many_dependencies_in_an_epoch() -> None:
    """Each key is used several times in an epoch, by transactions over several partitions."""
    shape = WORKLOADS["ledger"](None).shape
    assert 4096 * 1.5 / shape.keys > 4 and shape.multi_partition == 1.0


@pytest.mark.parametrize("partitions", [256, 257, 1_000])
def test_more_partitions_than_a_byte_can_count_recover_the_truth(
    partitions: int, truths: dict[str, Any], tmp_path: Path
) -> None:
    make = WORKLOADS["ledger"]
    workload = make(replace(make(None).shape, keys=600))
    events = workload.events(EVENTS, seed=4)
    options: dict[str, Any] = {
        "recovery": "fast",
        "log": tmp_path,
        "snapshot_every_epochs": 100,
        "recovery_options": FastOptions(adaptive_replay=False, partitions=partitions),
    }
    run = open_engine(workload, **options)
    bank.feed(run, events, EPOCH)
    run.flush()
    again = open_engine(workload, **options)
    report = again.recover(bank.source(events))
    assert report.replayed_events > 0
    interpreter = es.Interpreter(workload.tables, workload.transactions)
    interpreter.run(events[: again.next_event].iter_rows(named=True))
    assert bank.content(again) == interpreter.tables
    run.close()
    again.close()


@pytest.mark.parametrize("partitions", [0, -1, 65_537])
def test_a_number_of_partitions_that_cannot_be_is_refused(partitions: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 65536"):
        FastOptions(partitions=partitions)


def test_a_log_with_partitions_continues_with_them_whatever_the_options_say(
    tmp_path: Path,
) -> None:
    workload = small("ledger")
    events = workload.events(EVENTS, seed=9)

    def opened(selective: bool) -> es.TransactionEngine:
        return open_engine(
            workload,
            recovery="fast",
            log=tmp_path,
            snapshot_every_epochs=100,
            commit="every-epoch",
            recovery_options=FastOptions(adaptive_replay=False, selective=selective),
        )

    for selective, stop in ((True, 150), (False, 270), (True, 390), (False, 470)):
        run = opened(selective)
        run.recover(bank.source(events))
        bank.feed(run, events, EPOCH, stop=stop)
        run.flush()
    again = opened(True)
    again.recover(bank.source(events))
    interpreter = es.Interpreter(workload.tables, workload.transactions)
    interpreter.run(events[: again.next_event].iter_rows(named=True))
    assert bank.content(again) == interpreter.tables and again.next_event == 420
