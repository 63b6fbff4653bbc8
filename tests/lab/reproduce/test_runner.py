"""A run of experiments can be stopped in any way, and continues after its last finished step."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from everstream_lab.reproduce.experiments import Effort
from everstream_lab.reproduce.results import Results
from everstream_lab.reproduce.runner import Progressing, run_missing
from tests.lab.reproduce.tiny import inventory, performed, processes

QUICK = Effort(quick=True)
COMMAND = """
import sys
from pathlib import Path
from everstream_lab.reproduce.experiments import Effort
from everstream_lab.reproduce.results import Results
from everstream_lab.reproduce.runner import run_missing
from tests.lab.reproduce.tiny import inventory

if __name__ == "__main__":
    trace = Path(sys.argv[1])
    try:
        run_missing(inventory(trace).experiments, Results(trace, Effort(quick=True)))
    except KeyboardInterrupt:
        sys.exit(130)
"""


def wait_until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.01)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_finished_steps_are_not_run_again_unless_they_are_forgotten(tmp_path: Path) -> None:
    experiments, results = inventory(tmp_path).experiments, Results(tmp_path, QUICK)
    heard: list[Progressing] = []
    assert run_missing(experiments, results, heard.append) == []
    assert performed(tmp_path) == [0, 1, 2]
    assert [one.done for one in heard if one.begins] == [0, 1, 2]
    assert (heard[-1].done, heard[-1].steps, heard[-1].remaining_s) == (3, 3, 0.0)
    assert any(one.text.endswith("measuring") for one in heard)
    found = results.found(experiments[0])
    assert found.value("speed", "ours", "one") == 11.0 and len(found.apart()) == 3
    run_missing(experiments, results)
    assert performed(tmp_path) == [0, 1, 2]
    results.forget(experiments)
    run_missing(experiments, results)
    assert performed(tmp_path) == [0, 1, 2, 0, 1, 2]


def test_a_step_that_fails_is_told_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "fail-1").touch()
    experiments, results = inventory(tmp_path).experiments, Results(tmp_path, QUICK)
    [failed] = run_missing(experiments, results)
    assert failed.text == "ValueError: as it was told" and failed.experiment == "tiny-speed"
    assert performed(tmp_path) == [0, 1, 2]
    assert "Traceback" in (results.folder / "log.txt").read_text()
    (tmp_path / "fail-1").unlink()
    assert run_missing(experiments, results) == []
    assert performed(tmp_path) == [0, 1, 2, 1]


def test_a_torn_result_does_not_count(tmp_path: Path) -> None:
    experiments, results = inventory(tmp_path).experiments, Results(tmp_path, QUICK)
    run_missing(experiments, results)
    step = experiments[0].steps(QUICK)[1]
    path = results.path(experiments[0], step)
    path.write_text(path.read_text()[:20])
    assert [one.repetition for one in results.missing(experiments[0])] == [1]
    run_missing(experiments, results)
    assert performed(tmp_path) == [0, 1, 2, 1]


def test_results_of_a_quick_run_are_none_of_a_full_one(tmp_path: Path) -> None:
    experiments = inventory(tmp_path).experiments
    run_missing(experiments, Results(tmp_path, QUICK))
    assert len(Results(tmp_path, Effort()).missing(experiments[0])) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_leaves_no_process_and_continues(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "wait-1").touch()
    experiments, results = inventory(tmp_path).experiments, Results(tmp_path, QUICK)
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment) as command:
        trace = tmp_path / "performed"
        wait_until(lambda: trace.exists() and performed(tmp_path) == [0, 1])
        command.send_signal(number)
        code = command.wait()
    assert code == (130 if number is signal.SIGINT else -signal.SIGKILL)
    wait_until(lambda: not alive(processes(tmp_path)[1]))
    assert len(results.missing(experiments[0])) == 2
    (tmp_path / "wait-1").unlink()
    assert run_missing(experiments, results) == []
    assert performed(tmp_path) == [0, 1, 1, 2]
