"""The driver itself is killed: nothing of it stays behind, and the next one goes on exactly."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.processes import wait_until_gone

from .conftest import MASTER, expected, open_gate, pid_of, shown

SCRIPT = """
import sys
from pathlib import Path
import everstream as es
from everstream.spark.listener import Listener
from tests.chaos.conftest import killable

class Tell(Listener):
    def epoch(self, manifest):
        print("epoch", manifest.epoch, flush=True)

folder = Path(sys.argv[1])
result = killable(folder).run(
    checkpoint=es.Coordinated(every="200ms"), store=folder / "store", max_restarts=50,
    master=sys.argv[2], workers=int(sys.argv[3]), listener=Tell(), kill=sys.argv[4:],
)
print("outcome", result.outcome.value, "from", result.resumed_from, flush=True)
"""


def start(
    folder: Path, *kills: str, master: str = MASTER, workers: int = 6
) -> "subprocess.Popen[str]":
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), master, str(workers), *kills],
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_line(process: "subprocess.Popen[str]", start: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line
    raise AssertionError(f"the driver ended without saying {start!r}")


def test_a_killed_driver_leaves_no_process_behind_and_the_next_goes_on_exactly(
    tmp_path: Path,
) -> None:
    driver = start(tmp_path)
    wait_for_line(driver, "epoch 4")
    hosts = [pid_of(tmp_path, name) for name in ("front", "middle", "back")]
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_until_gone(hosts)
    open_gate(tmp_path)
    again = start(tmp_path)
    line = wait_for_line(again, "outcome")
    assert again.wait() == 0
    outcome, resumed_from = line.split()[1], int(line.split()[3])
    assert outcome == "finished"
    assert resumed_from >= 4
    want, got = expected(), shown(tmp_path)
    assert (sum((want - got).values()), sum((got - want).values())) == (0, 0)


def test_of_two_drivers_with_one_store_only_the_later_one_can_commit(tmp_path: Path) -> None:
    """The first is paused, the second takes over and finishes, then the first wakes up."""
    first = start(tmp_path)
    wait_for_line(first, "epoch 3")
    first.send_signal(signal.SIGSTOP)
    open_gate(tmp_path)
    second = start(tmp_path)
    assert wait_for_line(second, "outcome").split()[1] == "finished"
    assert second.wait() == 0
    first.send_signal(signal.SIGCONT)
    assert first.wait() == 1
    assert first.stderr is not None
    assert "was replaced" in first.stderr.read()
    assert shown(tmp_path) == expected()


def test_ctrl_c_stops_with_a_checkpoint_and_the_next_run_goes_on_exactly(tmp_path: Path) -> None:
    driver = start(tmp_path)
    wait_for_line(driver, "epoch 2")
    driver.send_signal(signal.SIGINT)
    assert wait_for_line(driver, "outcome").split()[1] == "stopped"
    assert driver.wait() == 0
    part_way = shown(tmp_path)
    assert 0 < sum(part_way.values()) < sum(expected().values())
    open_gate(tmp_path)
    again = start(tmp_path)
    assert wait_for_line(again, "outcome").split()[1] == "finished"
    assert again.wait() == 0
    assert shown(tmp_path) == expected()
