"""The comparison of protocols: its grid, one real run of it, its tables and its report."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everstream.cli.app import app, main
from everstream.connectors.collect import Collect
from everstream.connectors.generate.sources import Range
from everstream.core.registry import PROTOCOLS
from everstream.core.scheme import scheme_of
from everstream.errors import UserError
from everstream.pipeline.stream import Pipeline
from everstream_lab.bench.protocols import calibration
from everstream_lab.bench.protocols.costs import Costs
from everstream_lab.bench.protocols.grid import (
    PAPER_QUERIES,
    Cell,
    Setting,
    cells,
    checkpointing,
)
from everstream_lab.bench.protocols.measure import Measured, lost_messages, measure
from everstream_lab.bench.protocols.report import write_report
from everstream_lab.bench.protocols.results import Results
from everstream_lab.bench.protocols.summary import calm_table, killed_table, rows_of, verdicts
from everstream_lab.bench.workloads.catalogue import QUERIES

SHORT = Setting(run_s=4.0, kill_s=2.0, warm_up_s=0.5, speed=0.1)


def measured(cell: Cell, **more: object) -> Measured:
    calm = Measured(cell, 1e4, 5e3, 30.0, 60.0, 90.0, 9.0, 20, 0, 10_000, 0, 5.0, 0, 0, 0, 0)
    killed = {
        "recovery_s": 1.5,
        "restore_s": 0.8,
        "rollback_s": 0.9,
        "checkpoints_back": 0,
        "went_back": 2,
        "shards": 5,
        "replayed": 900,
        "curve": {
            "at_s": [-0.1, 0.0, 0.1],
            "records_per_s": [5e3, 0.0, 9e3],
            "mean_ms": [30.0, None, 700.0],
            "p99_ms": [40.0, None, 900.0],
        },
    }
    return replace(calm, **{**(killed if cell.failure else {}), **more})  # type: ignore[arg-type]


def test_the_grid_leaves_out_what_cannot_run_and_begins_with_something_of_everything() -> None:
    grid = cells(PAPER_QUERIES, list(PROTOCOLS), (1.0, 1.5), (False, True), repeats=3)
    checkpointing, without = 3 * 2 * 2 * (9 * 9 + 7), 3 * 2 * 10
    assert len({cell.key for cell in grid}) == len(grid) == checkpointing + without
    assert {cell.repeat for cell in grid[: len(grid) // 3]} == {0}
    cyclic = {cell.protocol for cell in grid if cell.query == "nhop"}
    assert cyclic == set(PROTOCOLS) - {"aligned", "at-least-once"}
    assert {c.protocol for c in grid if c.log == "memory"} == {"uncoordinated", "hmnr", "bcs"}
    bare = cells(PAPER_QUERIES, list(PROTOCOLS), (1.0,), (True,), 1, memory=False)
    assert {cell.log for cell in bare} == {"durable"}
    with pytest.raises(UserError, match="query 'nexmark-99' is not one of nexmark-1"):
        cells(["nexmark-99"], ["aligned"], (1.0,), (True,), 1)


def test_micro_batches_are_one_more_column_also_where_records_go_round() -> None:
    grid = cells(PAPER_QUERIES, ["aligned", "hmnr"], (1.0,), (True,), 1, microbatch=True)
    mine = [cell for cell in grid if cell.way == "microbatch"]
    assert {cell.query for cell in mine} == {*PAPER_QUERIES}
    assert all(cell.exact and cell.key.split("/")[1] == "microbatch" for cell in mine)


@pytest.mark.long
def test_a_run_of_micro_batches_with_a_kill_is_exact_and_tells_how_it_came_back() -> None:
    cell = Cell("nexmark-2-half", "aligned", 0.5, failure=True, engine="microbatch")
    found = measure(cell, SHORT, "local[2]")
    assert (found.lost, found.duplicated, found.untrue, found.forced) == (0, 0, 0, 0)
    assert found.regular > 0
    assert not found.mean_ms <= 0, "it is no number if the kill came before any output"
    assert found.restore_s is not None and found.went_back == 1
    assert Measured.from_json(found.to_json()) == found


def test_every_protocol_is_what_it_says() -> None:
    for cell in cells(["nexmark-2-half"], list(PROTOCOLS), (1.5,), (True,), 1):
        chosen = checkpointing(cell.protocol, cell.interval_s, cell.log)
        assert chosen is None or chosen.every_s == 1.5
        scheme = scheme_of(chosen)
        assert (scheme.name, scheme.exactly_once) == (cell.protocol, cell.exact)
        assert (scheme.log == "memory") == cell.way.endswith(" (memory)")
    grid = cells(["nexmark-2-half"], list(PROTOCOLS), (1.5,), (True,), 1)
    in_memory = {cell.protocol for cell in grid if cell.log == "memory"}
    assert in_memory == {"uncoordinated", "hmnr", "bcs"}


def test_a_real_run_with_a_kill_is_exact_and_tells_how_it_came_back() -> None:
    found = measure(Cell("nexmark-2-half", "uncoordinated", 0.5, failure=True), SHORT, "local[2]")
    assert (found.lost, found.duplicated, found.untrue, found.forced) == (0, 0, 0, 0)
    assert found.regular > 0
    assert not found.mean_ms <= 0, "it is no number if the kill came before any output"
    assert found.restore_s is not None and found.went_back is not None
    assert 0 < found.went_back <= (found.shards or 0)
    assert len(found.curve["at_s"]) == len(found.curve["mean_ms"]) > 50
    assert Measured.from_json(found.to_json()) == found


def test_a_run_without_a_kill_has_its_curve_from_the_end_of_the_warm_up() -> None:
    found = measure(Cell("nexmark-2-half", "uncoordinated", 0.5, failure=False), SHORT, "local[2]")
    assert found.curve["at_s"][0] == SHORT.warm_up_s and found.restore_s is None
    assert max(value or 0.0 for value in found.curve["records_per_s"]) > 0
    assert any(value is not None for value in found.curve["mean_ms"])


def test_a_load_is_a_share_of_what_a_query_takes_at_a_steady_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if a query took 600,000 of a million records a second: the rest waits ever longer."""
    cell = Cell("nexmark-2-half", "uncoordinated", 1.0, failure=False)
    offered: list[float] = []

    def behind(cell: Cell, setting: Setting, master: str, *, verify: bool) -> Measured:
        offered.append(setting.rate(QUERIES[cell.query]))
        late: list[float | None] = [400.0 * second for second in range(4)]
        curve = {"at_s": [float(second) for second in range(4)], "mean_ms": late}
        return measured(cell, curve={**curve, "records_per_s": late, "p99_ms": late})

    monkeypatch.setattr(calibration, "_full_speed", lambda *given: 1e6)
    monkeypatch.setattr(calibration, "measure", behind)
    setting = Setting(speed=0.5)
    most = calibration.most_per_s(cell, setting)
    assert offered == [pytest.approx(1e6)] and most == pytest.approx(600_000)
    eighty = calibration.loaded(cell, setting, calibration.SHARE * most)
    assert eighty.rate(QUERIES[cell.query]) == pytest.approx(480_000)
    assert calibration.growth_ms_per_s(measured(cell, curve={"at_s": [], "mean_ms": []})) == 0.0


def test_the_tables_put_the_paper_beside_the_medians() -> None:
    cell = Cell("nexmark-2-half", "hmnr", 1.0, failure=False)
    runs = [measured(replace(cell, repeat=n), mean_ms=10.0 * n, forced=0) for n in (1, 2, 6)] + [
        measured(replace(cell, failure=True))
    ]
    (row,) = rows_of(runs)
    head, (line,) = calm_table([row], Setting())
    assert dict(zip(head, line, strict=True))["mean ms"] == "20.0"
    ferdis = ["45", "37", "100", "214", "222", "18", "68", "20"]
    assert line[-8:] == ferdis, "FERDiS: CIC, every 10 s"
    head, (line,) = killed_table([row], Setting())
    told = dict(zip(head, line, strict=True))
    assert (told["back s"], told["went back"], told["paper: back"]) == ("1.50", "2 of 5", "4.2")
    assert line[-7:] == ["4.2", "0.3", "2.6", "0.5", "20,547", "659", "1.0"]


def test_lost_messages_are_counted_as_messages_and_as_seconds_of_output() -> None:
    pipeline = Pipeline("lossy")
    numbers = pipeline.source(Range(10), name="numbers")
    both = numbers.filter(bool, name="first").union(numbers.filter(bool, name="second"))
    both.map(str, name="texts").sink(Collect(), name="out")
    counts = {
        "numbers": (0, 10),
        "first": (9, 5),
        "second": (10, 4),
        "texts": (7, 7),
        "out": (7, 7),
    }
    assert lost_messages(pipeline.graph, counts) == (10 - 9) + (5 + 4 - 7)
    cell = Cell("nexmark-3-large", "hmnr", 1.0, failure=True, log="memory")
    (row,) = rows_of([measured(cell, lost_messages=n, output_per_s=100.0) for n in (20, 40, 90)])
    head, (line,) = killed_table([row], Setting())
    at = head.index("lost messages")
    assert line[at : at + 3] == ["40", "29", "0.40"]
    assert line[-3:] == ["288", "25", "1.8"], "FERDiS: NEXMark 3 L, CIC every 10 s"


def test_the_verdicts_can_fail() -> None:
    cell = Cell("nhop", "hmnr", 1.0, failure=True)
    runs = [
        measured(cell, rollback_s=2.5),
        measured(replace(cell, protocol="uncoordinated"), rollback_s=1.0, lost=3),
        measured(replace(cell, query="nexmark-2-half"), forced=2),
        measured(replace(cell, query="nexmark-2-half", log="memory"), lost=9),
    ]
    told = verdicts(rows_of(runs))
    assert [good for _, good in told] == [False] * len(told)
    assert told[0][0] == "exactly once: 3 rows wrong in 3 runs", "memory says that it is not"
    right = [measured(cell), measured(replace(cell, protocol="uncoordinated"), rollback_s=6.0)]
    assert all(good for _, good in verdicts(rows_of(right)))


def test_the_report_is_one_page_with_curves_and_tables(tmp_path: Path) -> None:
    cell = Cell("nhop", "hmnr", 1.0, failure=True)
    runs = [measured(cell), measured(replace(cell, protocol="bcs"), recovery_s=None)]
    page = tmp_path / "page.html"
    write_report(runs, Setting(), Costs(0.02, 0.2, {}), page)
    text = page.read_text()
    assert text.count("data:image/png") == 1
    assert "durable logs cost 2.0%" in text and 'class="verdict bad">HMNR' in text


def test_runs_that_were_measured_before_are_not_run_again(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    cell = Cell("nhop", "hmnr", 1.0, failure=True)
    results = Results(file)
    assert not results.runs
    results.runs[cell.key], results.costs = measured(cell), Costs(0.02, 0.2, {"hmnr": [5.0]})
    results.save(Setting())
    kept = Results(file)
    assert (kept.runs, kept.costs) == (results.runs, results.costs)
    arguments = ["--query", "nhop", "--protocol", "hmnr", "--interval", "1s", "--repeats", "1"]
    result = CliRunner().invoke(
        app,
        [
            *("bench", "protocols", *arguments, "--failure", "one", "--no-costs", "--no-memory"),
            *("--json", str(file), "--html", str(tmp_path / "page.html")),
        ],
    )
    assert result.exit_code == 0, result.output
    assert "NHop, HMNR every 1 s: rollback 0.90 s" in result.output
    assert (tmp_path / "page.html").exists()


def test_a_typo_is_answered_with_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["everstream", "bench", "protocols", "--query", "nexmrk"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("error: query 'nexmrk' is not one of nexmark-1, ")
    assert "Traceback" not in told
