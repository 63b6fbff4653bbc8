"""The driver itself is killed: nothing of it stays behind, and the next one goes on exactly."""

import signal
from pathlib import Path

import pytest

import everstream as es
from tests.processes import wait_until_gone

from .conftest import expected, open_gate, pid_of, shown
from .drivers import finish, start, wait_for_line

pytestmark = pytest.mark.spark("what a killed driver leaves behind is Spark's")


def test_a_killed_driver_leaves_no_process_behind_and_the_next_goes_on_exactly(
    tmp_path: Path,
) -> None:
    driver = start(tmp_path)
    wait_for_line(driver, "epoch 4")
    workers = [pid_of(tmp_path, name) for name in ("front", "middle", "back")]
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_until_gone(workers)
    open_gate(tmp_path)
    assert finish(tmp_path).resumed_from >= 4
    want, got = expected(), shown(tmp_path)
    assert (sum((want - got).values()), sum((got - want).values())) == (0, 0)


def test_a_driver_that_was_taken_over_can_commit_nothing(tmp_path: Path) -> None:
    """The first is paused, the second takes over and finishes, then the first wakes up."""
    first = start(tmp_path)
    wait_for_line(first, "epoch 3")
    first.send_signal(signal.SIGSTOP)
    open_gate(tmp_path)
    with pytest.raises(es.EverstreamError, match=f"pid {first.pid} on"):
        finish(tmp_path)
    finish(tmp_path, take_over=True)
    first.send_signal(signal.SIGCONT)
    assert first.wait() == 1
    assert first.stderr is not None
    assert "was replaced" in first.stderr.read()
    assert shown(tmp_path) == expected()


@pytest.mark.long  # the command's Ctrl-C is tested in every run
def test_ctrl_c_stops_with_a_checkpoint_and_the_next_run_goes_on_exactly(tmp_path: Path) -> None:
    driver = start(tmp_path)
    wait_for_line(driver, "epoch 2")
    driver.send_signal(signal.SIGINT)
    assert wait_for_line(driver, "outcome").split()[1] == "stopped"
    assert driver.wait() == 0
    part_way = shown(tmp_path)
    assert 0 < sum(part_way.values()) < sum(expected().values())
    open_gate(tmp_path)
    finish(tmp_path)
    assert shown(tmp_path) == expected()
