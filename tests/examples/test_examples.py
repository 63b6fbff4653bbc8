"""Each example is loaded as the command line loads it, run on one shared Spark, and checked
against what a few lines of plain Python give."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from everstream.inspection import read_tables
from tests.engines import on_all_engines, on_all_engines_at_length
from tests.spark import shared_session

from .conftest import MASTER, Load


def rows(folder: str) -> list[Any]:
    parts = sorted(Path(folder).glob("*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def words() -> list[str]:
    return [word for book in Path("books").glob("*.txt") for word in book.read_text().split()]


@on_all_engines_at_length
def test_word_count_gives_every_count_of_every_word_once(load: Load) -> None:
    _, pipeline = load("word_count")
    pipeline.run(master=MASTER, store="store")
    expected = [
        [word, count] for word, total in Counter(words()).items() for count in range(1, total + 1)
    ]
    assert sorted(rows("counts")) == sorted(expected)


@on_all_engines_at_length
def test_sessions_finds_the_visits_that_a_plain_loop_finds(load: Load) -> None:
    module, pipeline = load("sessions")
    pipeline.run(master=MASTER, store="store")
    by_visitor: dict[int, list[int]] = defaultdict(list)
    for click in module.clicks(0, 20_000):
        by_visitor[click["visitor"]].append(click["at_s"])
    expected = []
    for visitor, times in by_visitor.items():
        visit = [times[0]]
        for at_s in [*times[1:], float("inf")]:
            if at_s - visit[-1] > module.GAP_S:
                expected.append((visitor, visit[0], len(visit), visit[-1] - visit[0]))
                visit = []
            visit.append(at_s)
    found = [(r["visitor"], r["began_s"], r["clicks"], r["lasted_s"]) for r in rows("sessions")]
    assert sorted(found) == sorted(expected)
    assert len(found) > 50, "every visitor comes back, so there are more visits than visitors"


@on_all_engines_at_length
def test_auctions_finds_the_best_bids_that_polars_finds(load: Load) -> None:
    module, pipeline = load("auctions")
    found = module.best_bids(pipeline.run(master=MASTER).to_polars())
    serious = module.bids(0, module.BIDS).filter(pl.col("price_cents") >= 50_000)
    expected = (
        serious.group_by("auction")
        .agg((pl.col("price_cents") / 100).max().alias("price_euros"), pl.len().alias("bids"))
        .sort("auction")
    )
    assert found.equals(expected.cast(dict(found.schema)))


@on_all_engines_at_length
def test_alarms_sends_each_reading_to_one_of_two_sinks(load: Load) -> None:
    module, pipeline = load("alarms")
    pipeline.run(master=MASTER, store="store")
    everything = module.readings("cellar", 2, 30)(0, 3000) + module.readings("attic", -10, 60)(
        0, 2000
    )
    out = [r for r in everything if r["value"] > 40 or r["value"] < 0]
    by_number = lambda r: (r["sensor"], r["n"])  # noqa: E731
    assert sorted(rows("alarms"), key=by_number) == sorted(out, key=by_number)
    fine = Counter(r["sensor"] for r in everything if 0 <= r["value"] <= 40)
    expected = [[sensor, n] for sensor, total in fine.items() for n in range(1, total + 1)]
    assert sorted(rows("readings")) == sorted(expected)


@on_all_engines
def test_primes_come_out_in_the_order_of_the_numbers(load: Load) -> None:
    module, pipeline = load("primes")
    found = pipeline.run(master=MASTER).collected()
    assert found == [n for n in range(module.FIRST, module.LAST) if module.is_prime(n)]


@pytest.mark.spark("gives a DataFrame of Spark")
def test_to_spark_gives_a_data_frame_of_the_last_counts(load: Load) -> None:

    module, _ = load("to_spark")
    session = shared_session()
    found = {row["word"]: row["count"] for row in module.most_frequent(session).collect()}
    assert found == Counter(word.strip(".,:").lower() for word in words())


@on_all_engines_at_length
def test_ledger_gives_the_outcomes_and_balances_that_a_plain_loop_gives(load: Load) -> None:
    module, pipeline = load("ledger")
    pipeline.run(master=MASTER, store="store")
    balances: dict[int, int] = defaultdict(lambda: module.INITIAL_CENTS)
    expected = []
    for event in module.events(0, module.EVENTS).iter_rows(named=True):
        src, dst = balances[event["from"]], balances[event["to"]]
        moves = event["transaction"] == "transfer"
        committed = not moves or src >= event["cents"]
        expected.append((committed, src if moves else None, dst))
        if committed:
            balances[event["from"]] -= event["cents"] if moves else 0
            balances[event["to"]] += event["cents"]
    found = pl.read_parquet("outcomes/*.parquet").sort("position")
    assert found.select("committed", "src", "dst").rows() == expected
    assert not found["committed"].all()
    held = read_tables("store", pipeline, "ledger")["accounts"]
    assert dict(held.iter_rows()) == dict(balances)
