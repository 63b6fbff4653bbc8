"""SIGKILL while transactions run: tables and outcomes are those of a plain sequential loop."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

import everstream as es
from everstream.engine.result import RunResult
from everstream.inspection import read_tables
from everstream.transactions.interpreter import Interpreter
from everstream_lab.workloads.transactions import ledger
from tests.sampling import sampled
from tests.spark import MASTER
from tests.transactions.piped import content

from .conftest import RECORDS, Gated, Killer
from .places import store_of

OFTEN = es.Coordinated(every="200ms")
EVENTS = ledger.streaming_ledger().events(RECORDS, seed=4)


def moves(numbers: list[int]) -> pl.DataFrame:
    return EVENTS[numbers[0] : numbers[-1] + 1]


def book(folder: Path, recovery: str) -> es.Pipeline:
    """numbers -> events | book | out: a ledger on a worker of its own."""
    pipeline = es.Pipeline("ledger")
    numbers = pipeline.source(Gated(folder / "gate"), name="numbers")
    events = numbers.map_batches(moves, name="events").on_demand()
    outcomes = events.transact(
        ledger.transfer, ledger.deposit, parallelism=2, recovery=recovery, name="book"
    )
    outcomes.on_demand().sink(es.Parquet(str(folder / "out")), name="out")
    return pipeline


def run(folder: Path, recovery: str, kills: Sequence[str]) -> tuple[es.Pipeline, RunResult]:
    pipeline = book(folder, recovery)
    result = pipeline.run(
        checkpoint=OFTEN,
        store=store_of(folder),
        master=MASTER,
        workers=3,
        kill=list(kills),
        listener=Killer(folder, len(kills)),
    )
    return pipeline, result


@pytest.mark.parametrize("recovery", sampled(["delta", "fast"], ["delta"]))
def test_killed_transactions_give_every_outcome_once_and_the_right_tables(
    tmp_path: Path, recovery: str
) -> None:
    kills = ["book@20000", "book@in-snapshot#3", "out@after-prepare#4"]
    pipeline, result = run(tmp_path, recovery, kills)
    assert [report.injected for report in result.recoveries] == [True] * len(kills)

    tables = (ledger.accounts, ledger.assets)
    interpreter = Interpreter(tables, (ledger.transfer, ledger.deposit))
    outcomes = interpreter.run(EVENTS.to_dicts())
    shown = pl.read_parquet(tmp_path / "out" / "*.parquet").sort("position")
    assert shown["position"].to_list() == list(range(RECORDS))
    assert shown.select(EVENTS.drop("transaction").columns).equals(EVENTS.drop("transaction"))
    assert shown["committed"].to_list() == [outcome.committed for outcome in outcomes]
    for name in ("src", "dst", "src_asset", "dst_asset"):
        assert shown[name].to_list() == [outcome.reads.get(name) for outcome in outcomes]

    found = read_tables(store_of(tmp_path), pipeline, "book")
    assert {name: content(frame) for name, frame in found.items()} == interpreter.tables
    moved = shown.filter(pl.col("committed") & (pl.col("transaction") == "deposit"))
    accounts = found["accounts"]
    assert accounts["value"].sum() == ledger.INITIAL * len(accounts) + moved["amount"].sum()
