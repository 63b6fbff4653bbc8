"""Recovery spread over Spark tasks gives what recovery in one place gives."""

from pathlib import Path
from typing import Any

import pytest

import everstream.transactions as es
from everstream_lab.recovery.fast import AfterImages, FastOptions, FastRecovery
from everstream_lab.recovery.spread import recover_on_spark
from tests.transactions import bank


def test_chains_replayed_by_spark_tasks_give_the_interpreters_state(
    spark: Any, tmp_path: Path
) -> None:
    stream = bank.random_events(600, seed=21, keys=40)

    def open_engine() -> es.TransactionEngine:
        return bank.engine("fast", log=tmp_path, snapshot_every_epochs=5, commit="every-epoch")

    run = open_engine()
    bank.feed(run, stream, 20, stop=590)
    run.flush()
    engine, report = recover_on_spark(spark, open_engine, lambda: bank.source(stream), tasks=3)
    assert report.next_event == 580
    assert bank.content(engine) == bank.truth(stream[:580])[0]
    bank.feed(engine, stream, 20)
    assert bank.content(engine) == bank.truth(stream)[0]


@pytest.mark.parametrize("shares", [1, 2, 5])
@pytest.mark.parametrize("selective", [True, False])
def test_shares_replayed_apart_give_the_interpreters_state(
    selective: bool, shares: int, tmp_path: Path
) -> None:
    """As the tasks do it; the log has three partitionings, because two crashes came between."""
    stream = bank.random_events(900, seed=22, keys=60)

    def opened() -> es.TransactionEngine:
        return bank.engine(
            "fast",
            log=tmp_path,
            snapshot_every_epochs=100,
            commit="every-epoch",
            recovery_options=FastOptions(
                adaptive_replay=False, selective=selective, partitions=300
            ),
        )

    def adopted(stop: int) -> es.TransactionEngine:
        images: list[AfterImages] = []
        for share in range(shares):
            worker = opened()
            assert isinstance(worker.scheme, FastRecovery)
            images.append(worker.scheme.replay_share(bank.source(stream), share, shares))
            worker.close()
        run = opened()
        assert isinstance(run.scheme, FastRecovery)
        run.scheme.adopt(images)
        assert bank.content(run) == bank.truth(stream[: run.next_event])[0]
        bank.feed(run, stream, 20, stop=stop)
        run.flush()
        return run

    run = opened()
    bank.feed(run, stream, 20, stop=310)
    run.flush()
    adopted(610)
    run = adopted(900)
    assert bank.content(run) == bank.truth(stream)[0]
    assert run.next_event == 900


def test_schemes_without_recorded_reads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(es.LogError, match="cannot be spread"):
        recover_on_spark(
            None, lambda: bank.engine("wal", log=tmp_path), lambda: lambda a, b: None, tasks=2
        )
