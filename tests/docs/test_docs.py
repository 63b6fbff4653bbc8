"""The documents tell the truth: their programs run, their links lead somewhere, and their commands
have the options they use."""

import itertools
import json
import linecache
import logging
import re
import shutil
import socket
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from pyspark.sql import SparkSession

import everstream
from everstream import connectors, planning
from everstream.cli.app import app
from everstream.cli.views.summary import STEPS
from everstream.core.orders import Outcome
from everstream.engine.handle import RunHandle
from everstream.engine.result import RunResult
from everstream.engine.spark.context import make_context
from everstream.errors import UserError
from everstream.inspection import edit_savepoint
from everstream.pipeline.checkpointing import EngineName
from everstream.pipeline.stream import Pipeline
from everstream.simulation import __main__ as simulation
from tests.connectors.kafka_topics import Reading, make_topic
from tests.docs.sections import programs_under_a_tested_heading
from tests.engines import on_all_engines_at_length
from tests.kafka_server import KafkaServer
from tests.spark import MASTER

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
"""Followed block by block in `test_tutorials`."""

GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "docs/guides/plan-the-interval.md": lambda: {
        **{name: getattr(planning, name) for name in planning.__all__},
        "log": logging.getLogger("a reader's own"),
    },
}
"""What a page takes for granted in its programs."""

REFUSED_IN_EPOCHS = {
    "docs/guides/rescale.md": "numbers of shards are changed between two runs",
    "docs/guides/measure-a-run.md": "monitor= samples running shards",
    "docs/guides/keep-large-state-on-disk.md": "needs a permanent process",
}
"""Documents with a program that engine="microbatch" refuses, and why."""


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.DOTALL)


def each_program(
    document: str, instead: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Run the programs of a document one after the other; gives the names they define so far."""
    names: dict[str, Any] = {"__name__": "a_program_in_the_documents"}
    names |= GIVEN.get(document, dict)()
    for number, text in enumerate(blocks(ROOT / document, "python")):
        for written, meant in (instead or {}).items():
            text = text.replace(written, meant)
        place = f"{document}, program {number}"
        linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
        try:
            exec(compile(text, place, "exec"), names)
        except UserError:
            # What a program had started before a call of it was refused still runs.
            for run in [value for value in names.values() if isinstance(value, RunHandle)]:
                run.stop()
                run.wait()
            raise
        yield names


def program(document: str, number: int, instead: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The names that a program in a document defines, with those of the programs before it."""
    return next(itertools.islice(each_program(document, instead), number, None))


def run_block(
    document: str, number: int, instead: Mapping[str, str] | None = None
) -> dict[str, RunResult]:
    """Run the program in a document, and the pipelines it defines; their results by name."""
    return next(itertools.islice(run_blocks(document, instead), number, None))()


def run_blocks(
    document: str, instead: Mapping[str, str] | None = None
) -> Iterator[Callable[[], dict[str, RunResult]]]:
    """Run the programs in a document one after the other; gives how to run what each one defines."""
    known: set[int] = set()
    for names in each_program(document, instead):
        pipelines = [v for v in names.values() if isinstance(v, Pipeline) and id(v) not in known]
        known |= {id(value) for value in names.values()}
        yield lambda found=pipelines: {pipeline.name: pipeline.run() for pipeline in found}


@pytest.fixture(autouse=True)
def _in_a_folder_with_books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples" / "books", tmp_path / "books")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERSTREAM_INPUTS", str(tmp_path / "inputs"))


def programs_without_a_test_of_their_own() -> dict[str, list[int]]:
    """The page and numbers of those that no test in this file calls by page and number."""
    calls = Path(__file__).read_text()
    by_number = re.findall(r"(?:run_block|program)\(\"(.+?)\", (\d+)", calls)
    tested = {(document, int(number)) for document, number in by_number}
    tested |= programs_under_a_tested_heading()
    walked_through = set(re.findall(r"(?:each_program|run_blocks)\(\"(.+?)\"", calls))
    walked_through |= {str(page.relative_to(ROOT)) for page in TUTORIALS}
    every = [
        (str(document.relative_to(ROOT)), number)
        for document in DOCUMENTS
        for number in range(len(blocks(document, "python")))
    ]
    assert tested <= set(every), "a test here is about a program that is not there any more"
    found: dict[str, list[int]] = {}
    for document, number in every:
        if (document, number) not in tested and document not in walked_through:
            found.setdefault(document, []).append(number)
    return found


@on_all_engines_at_length
@pytest.mark.parametrize("document, numbers", programs_without_a_test_of_their_own().items())
def test_every_other_program_in_the_documents_runs(
    document: str, numbers: list[int], default_engine: EngineName
) -> None:
    why = REFUSED_IN_EPOCHS.get(document) if default_engine == "microbatch" else None
    with pytest.raises(UserError, match=why) if why else nullcontext():
        for number, run_pipelines in enumerate(run_blocks(document)):
            if number in numbers:
                for result in run_pipelines().values():
                    assert result.outcome is Outcome.FINISHED


@on_all_engines_at_length
def test_the_first_pipeline_of_the_readme_counts_words() -> None:
    (result,) = run_block("README.md", 0).values()
    words = sum(len(book.read_text().split()) for book in Path("books").glob("*.txt"))
    assert result.records_out == words
    written = [line for part in Path("counts").glob("*.jsonl") for line in part.open()]
    assert len(written) == words


@pytest.mark.parametrize("document", ["README.md", "docs/index.md"])
def test_the_first_pipeline_of_a_newcomer_is_the_example(document: str) -> None:
    (program,) = blocks(ROOT / document, "python")[:1]
    graph = program[program.index("pipeline = ") :].replace(" ", "").replace("\n", "")
    example = (ROOT / "examples" / "word_count.py").read_text()
    without_comments = re.sub(r"#.*", "", example)
    assert graph in without_comments.replace(" ", "").replace("\n", "")


@on_all_engines_at_length
def test_the_columns_of_the_page_on_operators_give_the_high_bids() -> None:
    (result,) = run_block("docs/explanation/operators-and-state.md", 1).values()
    prices = [n * 7919 % 100_000 for n in range(1_000_000)]
    expected = Counter(price for price in prices if price > 99_000)
    assert Counter(result.to_polars()["price"].to_list()) == expected


@on_all_engines_at_length
def test_the_branches_of_the_operators_page() -> None:
    (result,) = run_block("docs/explanation/operators-and-state.md", 0).values()
    assert sorted(result.collected("small")) == [str(n) for n in range(10)]
    last: dict[int, int] = {}
    for key, value in result.collected("large"):
        last[key] = max(value, last.get(key, 0))
    assert last == {key: sum(n for n in range(10, 1000) if n % 7 == key) for key in range(7)}


@on_all_engines_at_length
def test_the_operator_class_of_the_guide() -> None:
    (result,) = run_block("docs/guides/write-an-operator.md", 0).values()
    balances, expected = Counter[int](), []
    for n in range(50):
        balances[n % 5] += 100 - n * 10
        expected.append((n % 5, balances[n % 5]))
    assert Counter(result.collected("balances")) == Counter(expected)
    assert sorted(result.collected("overdrawn")) == [0, 1, 2, 3, 4]


@on_all_engines_at_length
def test_the_migrated_balances_of_their_guide() -> None:
    (result,) = run_block("docs/guides/migrate-state.md", 0).values()
    last = dict(sorted(result.collected()))
    assert last == {key: sum(range(key, 1_000, 7)) for key in range(7)}


def test_the_savepoint_of_its_guide_is_edited() -> None:
    here = {"workers=1": f'workers=1, master="{MASTER}"'}
    program("docs/guides/edit-a-savepoint.md", 0, here)
    found = edit_savepoint("ticking-store", "patched").state("count")
    assert found[99] == 10
    assert all(n >= 2000 for key, n in found.items() if key != 99)


def test_the_cycle_of_the_guide_to_feedback() -> None:
    letters = program("docs/guides/side-outputs-and-feedback.md", 0)["letters"]
    unaligned = everstream.Coordinated(mode="unaligned")
    result = letters.run(checkpoint=unaligned, master=MASTER)
    delivered = {letter["number"]: letter["tries"] for letter in result.collected("delivered")}
    assert delivered == {n: n % 4 + 1 for n in range(8) if n % 4 < 3}
    assert sorted(letter["number"] for letter in result.collected("given_up")) == [3, 7]


def test_the_run_in_the_background_of_the_guide_is_steered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = {"workers=1)": f"workers=1, master={MASTER!r}, progress=False)"}
    run = program("docs/guides/run-from-python.md", 0, here)["run"]
    assert run.wait().outcome is Outcome.STOPPED and len(run.wait().checkpoints) >= 2
    *_, last = capsys.readouterr().out.splitlines()
    assert last.endswith("after epoch 1")


def test_the_branches_of_the_protocols_page(capsys: pytest.CaptureFixture[str]) -> None:
    program("docs/explanation/protocols.md", 0)["survive"](MASTER)
    assert "went back: ('left:0',)" in capsys.readouterr().out


def test_the_loop_of_the_protocols_page() -> None:
    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    fewer = {"es.Range(1, 1000)": "es.Range(1, 200)"}
    pipeline = program("docs/explanation/protocols.md", 1, fewer)["pipeline"]
    result = pipeline.run(checkpoint=everstream.CommunicationInduced(every="1s"), master=MASTER)
    assert Counter(result.collected("steps")) == Counter((n, steps(n)) for n in range(1, 200))


def test_the_operator_of_the_guide_decides_when_it_checkpoints() -> None:
    sums = program("docs/guides/choose-a-checkpoint-protocol.md", 0)["sums"]
    checkpoint = everstream.Uncoordinated(every="1s", every_records=500)
    result = sums.run(checkpoint=checkpoint, master=MASTER)
    assert sum(result.collected("out")) == sum(range(1_050))


@on_all_engines_at_length
def test_the_windows_of_the_event_time_page() -> None:
    (result,) = run_block("docs/explanation/event-time.md", 0).values()
    numbers = range(100_000)
    counts: Counter[tuple[int, int]] = Counter()
    for n in numbers:
        at = n - n * 31 % 500
        for start in range(at // 2000 * 2000 - 8000, at + 1, 2000):
            counts[n % 7, start] += 1
    rows = result.to_polars("per_auction")
    shown = {(row["auction"], row["window_start"]): row["bids"] for row in rows.rows(named=True)}
    assert shown == counts and len(rows) == len(counts)
    assert result.collected("late") == []
    best = {start: max(n for (_, s), n in counts.items() if s == start) for _, start in counts}
    hot = {row["window_end"] - 10_000: row["bids"] for (row,) in _tops(result)}
    assert hot == best


def _tops(result: RunResult) -> list[Any]:
    return [row["top"] for row in result.to_polars("hot").rows(named=True)]


@on_all_engines_at_length
def test_the_running_counts_of_the_reference() -> None:
    (result,) = run_block("docs/reference/streams.md", 0).values()
    changes = result.to_polars("changes")
    words = ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"]
    assert dict(changes.select("word", "count").rows()) == Counter(words)
    assert Counter(result.to_polars("records").rows())["to", 2] == 1


def test_sources_of_the_guide_that_wait_for_each_other_give_all_clicks() -> None:
    *_, aligned = run_blocks("docs/guides/handle-late-data.md")
    (result,) = aligned().values()
    assert sum(row["clicks"] for row in result.collected()) == 14


def test_windows_are_as_the_guide_says() -> None:
    daily, counted, early, corrected = (
        result for run in run_blocks("docs/guides/choose-windows.md") for result in run().values()
    )
    days = sorted(daily.collected(), key=lambda row: row["window_start"])
    assert [row["sales"] for row in days] == [24, 23, 24]
    first = [row for row in counted.collected() if row["sensor"] == 0][:3]
    assert [(row["window_start"], row["window_end"], row["mean"]) for row in first] == [
        (0, 2, 1.0),
        (0, 4, 3.0),
        (2, 6, 7.0),
    ]
    assert [row["sales"] for row in early.collected() if row["timing"] == "on_time"] == [24, 23, 24]
    found = [tuple(row.values()) for row in corrected.collected()]
    assert found[:2] == [("ada", 1, 6, "on_time", 1), ("ada", 8, 13, "on_time", 1)]
    assert sorted(found[2:4]) == [("ada", 1, 6, "retracted", 1), ("ada", 8, 13, "retracted", 1)]
    assert found[4:] == [("ada", 1, 13, "late", 3), ("ada", 30, 35, "on_time", 1)]


@on_all_engines_at_length
def test_late_clicks_of_the_guide_are_kept_or_corrected() -> None:
    runs = list(run_blocks("docs/guides/handle-late-data.md"))
    runs[0]()
    lines = {
        name: [json.loads(n) for f in Path(name).glob("*.jsonl") for n in f.open()]
        for name in ("counts", "late")
    }
    assert sorted(row["at"] for row in lines["late"]) == [8, 14]
    counted = {row["window_start"]: row["clicks"] for row in lines["counts"]}
    assert counted == {0: 2, 10: 2, 20: 1}
    (live,) = runs[2]().values()
    assert sum(row["clicks"] for row in live.collected()) == 5
    (result,) = runs[1]().values()
    last = {row["window_start"]: row["clicks"] for row in result.collected()}
    assert last == {0: 3, 10: 3, 20: 1}


def test_keys_time_out_as_the_guide_says() -> None:
    by_life, _, by_event_time, by_timer = run_blocks("docs/guides/time-out-a-key.md")
    (counted,) = by_life().values()
    assert [row["count"] for row in counted.collected()] == [1, 2, 3, 1]
    (silent,) = by_event_time().values()
    assert silent.collected() == [{"device": "a", "last": 0}]
    (idle,) = by_timer().values()
    assert idle.collected() == []


@on_all_engines_at_length
def test_duplicates_are_removed_as_the_guide_says() -> None:
    for run in run_blocks("docs/guides/deduplicate.md"):
        (result,) = run().values()
        assert sorted(order["id"] for order in result.collected()) == list(range(40))
        assert {order["at"] for order in result.collected()} == set(range(40))


def test_typed_rows_are_as_the_guide_says() -> None:
    *_, names = each_program("docs/guides/use-typed-rows.md")
    assert names["prices"].schema == {"customer": pl.String, "euros": pl.Float64}


def test_columns_are_added_to_an_output_as_the_guide_says() -> None:
    *_, names = each_program("docs/guides/upgrade-a-running-pipeline.md")
    rows = names["read"].run(engine="local").to_polars().sort("n").rows()
    assert rows == [(1, None), (2, "new")]


@on_all_engines_at_length
def test_the_bids_of_the_guide_are_ranked() -> None:
    best, placed, running = (
        next(iter(run().values())).to_polars() for run in run_blocks("docs/guides/rank-records.md")
    )
    bids = [(n % 4, n * 7919 % 1000, n) for n in range(600)]
    windows = {
        n: [b for b in bids if b[0] == bids[n][0] and b[2] // 60 == n // 60] for n in range(600)
    }
    place = {n: 1 + sum(b[1] > bids[n][1] for b in windows[n]) for n in range(600)}
    assert Counter(best["at"].to_list()) == Counter(n for n in place if place[n] <= 10)
    assert dict(placed.select("at", "place").rows()) == place
    earlier = {n: bids[n - 4][1] if n >= 4 else None for n in range(600)}
    assert dict(running.select("at", "before").rows()) == earlier
    later = {n: bids[n + 4][1] if n + 4 < 600 else None for n in range(600)}
    assert dict(running.select("at", "after").rows()) == later
    so_far = {n: [b[1] for b in bids[n % 4 : n + 1 : 4]] for n in range(600)}
    totals = {n: (1 + sum(p > bids[n][1] for p in s), sum(s)) for n, s in so_far.items()}
    found = {
        at: (where, total) for at, where, total in running.select("at", "place", "total").rows()
    }
    assert found == totals


def three_jobs(engine: EngineName) -> Iterator[tuple[dict[str, Any], RunResult]]:
    """The three programs on orders, on engine "local" with two kills each."""
    names = ("unpaid", "enriched", "largest")
    kills = (
        ["unpaid:0@700", "unpaid:1@1200"],
        ["risk:0@300", "risk:1@600"],
        ["deduplicate:0@300", "interval_join:0@600"],
    )
    programs = each_program("docs/guides/three-jobs-on-orders.md")
    for name, kill, found in zip(names, kills, programs, strict=True):
        options: dict[str, Any] = {"checkpoint": everstream.Coordinated(every="100ms")}
        if engine == "local":
            options |= {"workers": 2, "kill": kill, "max_restarts": 10}
        result = found[name].run(**options)
        assert len(result.recoveries) == (2 if engine == "local" else 0)
        yield found, result


@on_all_engines_at_length
def test_three_jobs_on_orders_give_what_sequential_programs_give(
    default_engine: EngineName,
) -> None:
    jobs = three_jobs(default_engine)

    names, result = next(jobs)
    orders = names["orders"]
    paid = {payment["id"]: payment["at"] for payment in names["payments"]}
    unpaid = [o for o in orders if o["id"] not in paid or paid[o["id"]] > o["at"] + 600]
    assert 0 < len(unpaid) < len(orders)
    assert sorted(result.collected(), key=lambda order: order["id"]) == unpaid

    names, result = next(jobs)
    risky = [{**o, "risk": o["id"] % 10} for o in orders if o["id"] % 10 >= 5]
    assert sorted(result.collected(), key=lambda order: order["id"]) == risky
    again = names["answered"].total() - len(orders)
    # What was under way at a kill, in each of two shards, or answered and not yet written.
    assert names["answered"].keys() == {order["id"] for order in orders}
    assert again <= len(result.recoveries) * 2 * 4 * 50

    names, result = next(jobs)
    first = {order["id"]: order for order in reversed(names["bought"])}
    minutes: dict[int, list[dict[str, Any]]] = {}
    for order in first.values():
        valid = [
            c
            for c in names["customers"]
            if c["customer"] == order["customer"] and c["since"] <= order["at"]
        ]
        city = valid[-1] if valid else {"city": None, "since": None}
        receipts = [
            r
            for r in names["receipts"]
            if r["id"] == order["id"] and 0 <= r["paid_at"] - order["at"] <= 120
        ]
        receipt = receipts[0] if receipts else {"paid": None, "paid_at": None}
        minute = order["at"] // 60 * 60
        row = {**order, **city, **receipt, "customer": order["customer"]}
        window = {"window_start": minute, "window_end": minute + 60}
        minutes.setdefault(minute, []).append(row | window)
    largest = [
        tuple(row.values())
        for rows in minutes.values()
        for row in sorted(rows, key=lambda row: (-row["amount"], -row["id"]))[:10]
    ]
    found = result.to_polars()
    assert Counter(found.rows()) == Counter(largest)
    whole = {name: pl.Int64 for name in found.columns if name != "city"}
    assert found.schema == pl.Schema({n: whole.get(n, pl.String) for n in found.columns})


def test_what_will_run_is_as_the_guide_says() -> None:
    *_, names = each_program("docs/guides/explain-a-pipeline.md")
    assert list(names["large"].schema) == ["customer", "cents", "at"]
    assert "from totals-local: one row per key and batch" in names["pipeline"].explain()
    assert Path("shop.svg").read_text().startswith("<svg")


def test_records_wait_for_others_as_the_guide_on_latency_shows() -> None:
    (result,) = run_block("docs/guides/trade-latency-for-processor-time.md", 0).values()
    assert sorted(row["n"] for row in result.collected("counts")) == [333, 333, 333, 333, 334, 334]


@on_all_engines_at_length
def test_a_processor_of_spark_counts_the_visits_of_the_guide() -> None:
    (result,) = run_block("docs/guides/run-a-spark-processor.md", 0).values()
    counts = sorted((row["user"], row["visits"]) for row in result.collected())
    assert counts == [("ada", 1), ("ada", 2), ("bob", 1), ("eve", 1)]


@on_all_engines_at_length
def test_items_get_the_prices_of_the_guide() -> None:
    priced = next(run_blocks("docs/guides/call-a-service.md"))
    (result,) = priced().values()
    assert result.collected() == [{"item": n, "price": n % 100} for n in range(200)]


@on_all_engines_at_length
def test_orders_get_the_cities_of_the_guide() -> None:
    (result,) = run_block("docs/guides/enrich-from-a-database.md", 0).values()
    cities = {0: "Rome", 1: "Oslo", 2: "Rome", 3: None}
    found = Counter((row["order"], row["city"]) for row in result.collected())
    assert found == Counter((n, cities[n % 4]) for n in range(1_000))


@on_all_engines_at_length
def test_the_joins_of_the_guide() -> None:
    (result,) = run_block("docs/guides/join-streams.md", 0).values()
    ads, clicks = [(n % 3, n * 10) for n in range(20)], [(n % 3, n * 15 + 2) for n in range(12)]
    pairs = [(a, c) for user, a in ads for other, c in clicks if user == other]
    soon = result.to_polars("soon").select("at", "at_right").rows()
    assert Counter(soon) == Counter((a, c) for a, c in pairs if 0 <= c - a <= 30)
    minutes = result.to_polars("minutes").select("at", "at_right", "window_start").rows()
    together = Counter((a, c, a // 60 * 60) for a, c in pairs if a // 60 == c // 60)
    assert Counter(minutes) == together


@on_all_engines_at_length
def test_the_sources_of_the_page_on_python_write_what_they_say() -> None:
    run_block("docs/guides/connectors/python.md", 0)
    lines = [json.loads(line) for part in Path("readings").glob("*.jsonl") for line in part.open()]
    assert sorted(line["value"] for line in lines) == list(range(10_000))
    assert sorted(pl.read_parquet("numbers/*.parquet")["n"]) == list(range(1_000))


@on_all_engines_at_length
def test_the_journal_of_its_page_takes_in_a_socket() -> None:
    def serve() -> None:
        caller, _ = server.accept()
        caller.sendall(b"one\ntwo\nthree\n")
        caller.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        speaker = threading.Thread(target=serve, daemon=True)
        speaker.start()
        port = str(server.getsockname()[1])
        (result,) = run_block("docs/guides/connectors/journal.md", 0, {"9999": port}).values()
    assert result.collected() == ["one", "two", "three"]


@on_all_engines_at_length
def test_bad_records_of_their_guide_are_kept_or_counted() -> None:
    Path("events").mkdir()
    Path("events/a.jsonl").write_text('{"value": 4}\n{"value": \n{"value": 0}\n{"value": 50}\n')
    (result,) = run_block("docs/guides/handle-bad-records.md", 0).values()
    assert sorted(result.collected()) == [2, 25]
    assert sum(result.skipped.values()) == 2


@on_all_engines_at_length
def test_column_types_of_their_page_are_kept_and_other_values_left_out() -> None:
    run_block("docs/guides/connectors/column-types.md", 0)
    assert sorted(pl.read_parquet("prices/*.parquet")["price"]) == [2.5, 4.0]
    (result,) = run_block("docs/guides/connectors/column-types.md", 1).values()
    assert sorted(pl.read_parquet("celsius/*.parquet")["celsius"]) == [19.0, 21.5]
    assert sum(result.skipped.values()) == 1


@on_all_engines_at_length
def test_the_files_of_their_page_hold_what_was_written() -> None:
    run_block("docs/guides/connectors/files.md", 0)
    words = [word for book in Path("books").glob("*.txt") for word in book.read_text().split()]
    written = pl.read_csv("words/*.csv", schema={"word": pl.String, "length": pl.Int64})
    assert Counter(written.rows()) == Counter((word, len(word)) for word in words)
    run_block("docs/guides/connectors/files.md", 2)
    assert b"".join(everstream.Binary("letters/").pieces()) == b"to be"
    lines = [json.loads(line) for part in Path("lines").glob("*.jsonl") for line in part.open()]
    assert lines == [{"word": "to"}, {"word": "be"}]


@on_all_engines_at_length
def test_the_counts_of_the_page_on_sqlite_are_those_of_the_books() -> None:
    run_block("docs/guides/connectors/sqlite.md", 0)
    words = [word for book in Path("books").glob("*.txt") for word in book.read_text().split()]
    with closing(sqlite3.connect("counts.db")) as database:
        rows = database.execute("SELECT word, count FROM counts").fetchall()
    assert dict(rows) == Counter(words) and len(rows) == len(set(words))


def test_the_connectors_of_their_guide_pass_the_suites() -> None:
    names = program("docs/guides/write-a-connector.md", 0)
    names["test_the_sink"]()
    names["test_a_source"]()


@pytest.mark.spark("a DataFrame of Spark is read too")
def test_the_store_of_its_guide_is_read_as_a_table(tmp_path: Path) -> None:
    make_context(MASTER, "documents")  # with this Python, which a reader's own shell would choose
    # Spark was started elsewhere, and looks up relative folders from there.
    here = {f"{name}-store/": f"{tmp_path}/{name}-store/" for name in ("visits", "shop")}
    pages = each_program("docs/guides/read-state-as-a-table.md", here)
    names = next(pages)
    kept = [n for n in range(1000) if n % 100]
    slow = Counter(n % 7 for n in kept if 7000 // (n % 100) > 1000)
    assert {row["page"]: row["count"] for row in names["slow"]} == slow
    (busiest,) = names["busiest"]
    assert busiest.visits == max(Counter(n % 7 for n in kept).values())
    assert sorted(int(row.record) for row in names["failed"]) == list(range(0, 1000, 100))
    assert names["newest"].status == "current"
    names = next(pages)
    visits = names["table"].select("key", pl.col("value").cast(pl.Int64)).rows()
    assert {int(page): count for page, count in visits} == Counter(n % 7 for n in kept)
    totals = [(0, 9), (1, 12), (2, 15)]
    assert next(pages)["totals"].select("page", "total").rows() == totals
    assert [(row.page, row.total) for row in next(pages)["rows"]] == totals


@pytest.mark.spark("Spark feeds the pipeline")
def test_spark_feeds_a_pipeline_and_reads_its_output_on_their_page(tmp_path: Path) -> None:
    make_context(MASTER, "documents")
    folders = ("words-store/", "words-query/", "clicks/", "clicks-store/")
    folders += ("clicks-query/", "clicks-topic/")
    Path("clicks").mkdir()
    for n in (50, 150, 250):
        Path(f"clicks/{n}.json").write_text(json.dumps({"page": 1, "ms": n}))
    here = {f'"{name}"': f'"{tmp_path}/{name}"' for name in folders}
    pages = each_program("docs/guides/connectors/spark.md", here)
    names = next(pages)
    assert sorted(row["ms"] for row in names["result"].collected("slow")) == [150, 250]
    names = next(pages)
    words = [word for book in Path("books").glob("*.txt") for word in book.read_text().split()]
    (often,) = names["often"]
    assert often["count"] == Counter(words)[often["value"]] == max(Counter(words).values())
    names = next(pages)
    assert [(row["page"], row["count"]) for row in names["pages"]] == [(1, 3)]


@on_all_engines_at_length
def test_the_annotated_programs_of_their_page_return_what_they_return_when_called() -> None:
    (result,) = run_block("docs/explanation/annotations.md", 0).values()
    assert result.returned == 303
    (result,) = run_block("docs/explanation/annotations.md", 2).values()
    assert result.collected("output") == [(0, 2), (1, -2), (3, 2)]


@pytest.mark.spark("its last program recovers on Spark's executors")
def test_the_ledger_of_the_transactions_page_and_its_recoveries(tmp_path: Path) -> None:
    shared = f"file://{tmp_path}/shared/"
    pages = each_program("docs/explanation/transactions.md", {"file:///shared/": shared})
    balances = {7: 1_000_030, 8: 1_000_020}

    names = next(pages)  # tables and transactions
    next(pages)  # a pipeline
    outcomes = names["pipeline"].run(master=MASTER, store="checkpoints/").to_polars()
    assert outcomes["committed"].to_list() == [True, True, False]
    next(pages)  # the same in two shards
    apart = names["result"].to_polars().sort("position")
    assert apart["committed"].to_list() == [True, True, False]
    next(pages)  # its tables
    assert dict(names["balances"].iter_rows()) == balances
    next(pages)  # an engine without a pipeline
    assert names["outcomes"]["committed"].to_list() == [True, True]
    names["engine"].close()
    next(pages)  # recovered from its log
    assert names["report"].next_event == 2
    assert dict(names["engine"].table("accounts").items()) == balances
    names["engine"].close()
    engine = names["TransactionEngine"](
        tables=[names["accounts"]],
        transactions=[names["transfer"], names["deposit"]],
        recovery="fast",
        log=f"{shared}ledger-log/",
    )
    engine.process_batch(names["events"])
    engine.end_epoch()
    engine.close()
    names["spark"] = SparkSession.builder.getOrCreate()
    next(pages)  # recovered by Spark tasks
    assert names["report"].next_event == 2
    assert dict(names["engine"].table("accounts").items()) == balances


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_that_are_there(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if not link.startswith("https://"):
            assert (document.parent / link).exists(), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_have_the_options_the_documents_use(document: Path) -> None:
    commands: Any = typer.main.get_command(app)
    simulator: Any = typer.main.get_command(simulation.app)
    for block in blocks(document, "sh"):
        lines = block.replace("\\\n", " ").splitlines()
        for line in lines:
            words = line.split("#")[0].split()
            if words[:1] == ["everstream"]:
                command, rest = commands, words[1:]
                while hasattr(command, "commands"):
                    command, rest = command.commands[rest[0]], rest[1:]
            elif words[:3] == ["python", "-m", "everstream.simulation"]:
                command, rest = simulator, words[3:]
            else:
                continue
            known = {n for option in command.params for n in option.opts + option.secondary_opts}
            used = {word for word in rest if word.startswith("--")} - {"--"}
            assert used <= known, line


def rows_under(document: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    text = (ROOT / document).read_text().partition(f"\n## {heading}\n")[2]
    table = re.findall(r"^\| (.+) \|$", text.partition("\n## ")[0], re.MULTILINE)
    return [row.split(" | ") for row in table[2:]]


def test_the_sinks_are_promised_what_they_say_themselves() -> None:
    promised = {
        name: row[0]
        for row in rows_under("docs/reference/guarantees.md", "Sinks")
        for name in re.findall(r"`(\w+)`", row[1])
        if "upsert_on" not in row[1] and "delivery=" not in row[1]
    }
    sinks = [
        kind
        for kind in (getattr(connectors, name) for name in connectors.__all__)
        if isinstance(kind, type) and issubclass(kind, everstream.Sink)
    ]
    assert promised == {
        kind.__name__: kind.delivery.value for kind in sinks if kind is not everstream.Sink
    }


def test_the_steps_of_a_recovery_are_those_that_are_reported() -> None:
    assert [row[0] for row in rows_under("docs/reference/guarantees.md", "Recovery")] == list(STEPS)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_in_the_documents_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / document).read_text(), re.MULTILINE)
    assert {"test"} <= set(named) <= targets


@on_all_engines_at_length
def test_the_sink_of_the_kafka_page_copies_the_large_orders(
    kafka: KafkaServer, default_engine: EngineName
) -> None:
    source, output = f"orders-{default_engine}", f"large-{default_engine}"
    for topic in (source, output):
        make_topic(kafka, topic)
    orders = [{"customer": f"c{n % 7}", "amount": n} for n in range(300)]
    kafka.produce(source, ({"value": json.dumps(order)} for order in orders))
    here = {"localhost:9092": kafka.bootstrap, '"orders"': f'"{source}"'}
    there = {**here, '"large-orders", key': f'"{output}", key'}
    run_block("docs/guides/connectors/kafka.md", 1, there)
    reading = Reading(kafka)
    found = [(json.loads(m.value()), m.key()) for m in reading.messages(output)]
    reading.close()
    assert found == [
        (order, order["customer"].encode()) for order in orders if order["amount"] > 100
    ]
