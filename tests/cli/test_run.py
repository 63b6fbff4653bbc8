"""`everstream run` with real processes: stopped, timed out, killed, and always exact in the end.

One pipeline is taken through several commands that go on from each other, so that few Spark
processes have to start; the tests look at what each command said and left behind.
"""

import json
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from everstream.observability.monitoring.sheet import read_sheet
from tests.cli.commands import Command
from tests.gated import TOTAL, expected, open_gate, prepare
from tests.output import rows_in

pytestmark = [
    pytest.mark.timeout(900),  # many processes start; on a busy machine that takes long
    pytest.mark.spark("Spark is killed too"),
]


@dataclass
class Ended:
    code: int
    output: str
    result: dict[str, Any]


def ended(command: Command, json_file: Path) -> Ended:
    code = command.end()
    command.wait_until_all_gone()
    return Ended(code, command.output, json.loads(json_file.read_text()))


@dataclass
class Saga:
    timed_out: Ended
    interrupted: Ended
    driver_killed: Ended
    again: Ended
    out: Path


@pytest.fixture(scope="module")
def saga(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saga]:
    """A timeout; Ctrl-C; a killed worker, driver and Spark. Each resumes from where the last one was.

    Only the one whose Spark is killed runs on it: a store goes from one engine to another."""
    folder = tmp_path_factory.mktemp("saga")
    prepare(folder, 5_000)
    out = folder / "out"
    same = ("run", "steady.py", "--every", "200ms")

    def start(name: str, *more: str, engine: str = "local") -> Command:
        options = ("--json", f"{name}.json", "--engine", engine, *more)
        return Command(*same, *options, cwd=folder)

    def output_up_to(records: int) -> Callable[[], bool]:
        return lambda: rows_in(out).total() >= records

    command = start("timed_out", "--timeout", "1s")
    timed_out = ended(command, folder / "timed_out.json")

    open_gate(folder, 10_000)
    command = start("interrupted")
    command.wait_for("output", output_up_to(10_000))
    command.process.send_signal(signal.SIGINT)
    interrupted = ended(command, folder / "interrupted.json")

    open_gate(folder, 40_000)
    command = start("driver_killed", "--kill", "sum:1@500", "--master", "local[3]", engine="tasks")
    command.wait_for("output", output_up_to(40_000))
    command.driver().kill()
    open_gate(folder, 50_000)
    command.wait_for("output of the next driver", output_up_to(50_000))
    (java,) = command.driver().children()
    java.kill()
    # Workers that outlive Spark for a moment could process the rest.
    command.wait_for("the loss of Spark", lambda: command.says("Spark went away"))
    open_gate(folder, TOTAL)
    driver_killed = ended(command, folder / "driver_killed.json")

    again = ended(start("again"), folder / "again.json")
    yield Saga(timed_out, interrupted, driver_killed, again, out)


def test_a_timeout_ends_with_code_124_and_says_how_to_go_on(saga: Saga) -> None:
    assert saga.timed_out.code == 124
    assert "stopped by --timeout" in saga.timed_out.output
    assert "the same command resumes from here" in saga.timed_out.output
    assert saga.timed_out.result["outcome"] == "stopped"
    assert saga.timed_out.result["exit_code"] == 124


def test_ctrl_c_stops_cleanly_with_a_checkpoint(saga: Saga) -> None:
    assert saga.interrupted.code == 0
    assert saga.interrupted.result["outcome"] == "stopped"
    assert saga.interrupted.result["checkpoints"], "it took a checkpoint before it stopped"
    assert "Traceback" not in saga.interrupted.output
    assert "Exception" not in saga.interrupted.output


def test_the_same_command_goes_on_where_the_last_one_stopped(saga: Saga) -> None:
    stopped_at = saga.interrupted.result["checkpoints"][-1]["epoch"]
    assert f"resuming from epoch {stopped_at}" in saga.driver_killed.output
    assert saga.interrupted.result["records_in"] == 10_000
    assert saga.driver_killed.result["resumed_from"] > stopped_at, "where its last driver began"


def test_a_killed_driver_or_spark_is_started_again_and_the_results_are_exact(saga: Saga) -> None:
    assert saga.driver_killed.code == 0
    assert "the driver died (killed by SIGKILL); restarting it (1 of 3)" in (
        saga.driver_killed.output
    )
    assert saga.driver_killed.result["outcome"] == "finished"
    assert "the driver died (Spark went away" in saga.driver_killed.output
    assert saga.driver_killed.result["drivers_lost"] == 2
    assert rows_in(saga.out) == expected()


def recoveries_of(saga: Saga) -> list[Any]:
    """Without a worker that was missed just before its driver ended, too: that one never came back."""
    recoveries = saga.driver_killed.result["recoveries"]
    return [one for one in recoveries if one["restarted_ms"] is not None]


def test_a_kill_that_was_delivered_is_not_repeated_by_the_next_driver(saga: Saga) -> None:
    recoveries = recoveries_of(saga)
    assert [recovery["injected"] for recovery in recoveries] == [True, False, False]
    assert recoveries[1]["what"] == "driver (killed by SIGKILL)"
    assert recoveries[2]["what"].startswith("driver (Spark went away")


def test_every_failure_has_a_timeline_in_order(saga: Saga) -> None:
    steps = ("detected_ms", "restarted_ms", "restored_ms", "replayed_ms", "caught_up_ms")
    for recovery in recoveries_of(saga):
        times = [recovery[step] for step in steps]
        assert None not in times
        assert times == sorted(times)
    assert len(re.findall("detected .* ms, restarted .* ms", saga.driver_killed.output)) == 3


def test_the_json_result_counts_each_record_once(saga: Saga) -> None:
    result = saga.driver_killed.result
    assert result["counts"]["numbers"] == [0, TOTAL]
    assert result["counts"]["sum"] == [TOTAL, TOTAL]
    assert result["counts"]["out"][0] == TOTAL
    assert result["records_in"] == result["records_out"] == TOTAL


def test_a_finished_pipeline_says_so_and_changes_nothing(saga: Saga) -> None:
    assert saga.again.code == 0
    assert "already finished" in saga.again.output
    assert rows_in(saga.out) == expected()


def test_micro_batches_outlive_spark_too(tmp_path: Path) -> None:
    prepare(tmp_path, 30_000)
    same = ("run", "steady.py", "--every", "200ms", "--master", "local[2]")
    command = Command(*same, "--engine", "microbatch", "--json", "killed.json", cwd=tmp_path)
    command.wait_for("output", lambda: rows_in(tmp_path / "out").total() >= 30_000)
    (java,) = command.driver().children()
    java.kill()
    open_gate(tmp_path, TOTAL)
    killed = ended(command, tmp_path / "killed.json")
    assert killed.code == 0, killed.output
    assert "the driver died (Spark went away" in killed.output
    assert killed.result["outcome"] == "finished"
    assert rows_in(tmp_path / "out") == expected()


FAILING = """
import everstream as es

def inverse(number):
    return 1 / (number - 1234)

pipeline = es.Pipeline("failing")
pipeline.source(es.Range(5000, batch=100)).map(inverse, name="inverse").sink(es.JsonLines("bad/"))
"""


def test_an_exception_in_user_code_shows_operator_record_and_traceback(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    command = Command(
        *("run", "failing.py", "--engine", "local", "--max-restarts", "1"),
        *("--json", "result.json"),
        cwd=tmp_path,
    )
    run = ended(command, tmp_path / "result.json")
    assert run.code == 1
    assert "operator 'inverse' (shard 0) failed: ZeroDivisionError" in run.output
    assert "record: 1234" in run.output
    assert "return 1 / (number - 1234)" in run.output
    assert run.result["outcome"] == "failed"
    assert "ZeroDivisionError" in run.result["error"]


def test_a_second_ctrl_c_kills_and_leaves_no_process_behind(tmp_path: Path) -> None:
    prepare(tmp_path, 0)
    command = Command("run", "steady.py", "--engine", "local", cwd=tmp_path)
    command.wait_for("workers", lambda: command.says("worker(s)"))
    command.driver().suspend()  # so that it cannot stop in time by itself
    command.process.send_signal(signal.SIGINT)
    command.wait_for("first Ctrl-C", lambda: command.says("Ctrl-C again to kill"))
    command.process.send_signal(signal.SIGINT)
    assert command.end() == 130
    command.wait_until_all_gone()


def test_a_killed_command_leaves_no_process_behind(tmp_path: Path) -> None:
    prepare(tmp_path, 1000)
    command = Command("run", "steady.py", "--every", "200ms", cwd=tmp_path)
    command.wait_for("output", lambda: any(tmp_path.glob("out/*.jsonl")))
    command.process.kill()
    command.wait_until_all_gone()


@pytest.mark.long
def test_a_monitor_goes_on_in_its_file_when_the_driver_was_killed(tmp_path: Path) -> None:
    program = tmp_path / "watched.py"
    program.write_text(
        "import everstream as es\n"
        "pipeline = es.Pipeline('watched')\n"
        "pipeline.source(es.Paced(es.Range(6_000), rate=4_000)).collect()\n"
    )
    options = ["--monitor", "50ms", "--monitor-file", "run.csv", "--every", "200ms"]
    command = Command("run", "watched.py", *options, "--kill", "driver@500ms", cwd=tmp_path)
    assert command.end() == 0, command.output
    rows = read_sheet(tmp_path / "run.csv")
    assert rows["process"].n_unique() == 2, "one driver after the other"
    assert rows["records"].max() > 0  # type: ignore[operator]
