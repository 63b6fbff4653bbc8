"""Spark's own clusters on this machine: executors and whole workers are killed."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from .conftest import expected, open_gate, pid_of, shown
from .drivers import start, wait_for_line
from .standalone import cluster, end_tree

pytestmark = pytest.mark.spark("about Spark's clusters")


def executor_of(pid: int) -> psutil.Process:
    """The executor's Java process behind a host: its parent's parent."""
    daemon = psutil.Process(pid).parent()
    assert daemon is not None
    executor = daemon.parent()
    assert executor is not None and "CoarseGrainedExecutorBackend" in " ".join(executor.cmdline())
    return executor


def finish(folder: Path, driver: "subprocess.Popen[str]") -> None:
    open_gate(folder)
    assert wait_for_line(driver, "outcome").split()[1] == "finished"
    assert driver.wait() == 0
    assert shown(folder) == expected()


def test_a_killed_executor_in_a_local_cluster_loses_and_doubles_nothing(tmp_path: Path) -> None:
    driver = start(tmp_path, master="local-cluster[2,2,1024]", workers=4)
    wait_for_line(driver, "epoch 3")
    executor_of(pid_of(tmp_path, "middle")).kill()
    finish(tmp_path, driver)


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[tuple[str, list[psutil.Process]]]:
    """A master and two workers of two cores each; their address and the workers."""
    with cluster(tmp_path, ["127.0.0.1", "127.0.0.1"]) as found:
        yield found


@pytest.mark.long
def test_a_whole_standalone_worker_killed_loses_and_doubles_nothing(
    tmp_path: Path, standalone: tuple[str, list[psutil.Process]]
) -> None:
    address, workers = standalone
    driver = start(tmp_path, master=address, workers=2)
    wait_for_line(driver, "epoch 3")
    host = pid_of(tmp_path, "middle")
    [hit] = [w for w in workers if host in {child.pid for child in w.children(recursive=True)}]
    end_tree(hit)
    finish(tmp_path, driver)
