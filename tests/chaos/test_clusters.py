"""Spark's own clusters on this machine: executors and whole workers are killed."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

from .conftest import expected, open_gate, pid_of, shown
from .drivers import start, wait_for_line

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


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
    started: list[subprocess.Popen[str]] = []
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}

    def launch(kind: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(SPARK_CLASS), f"org.apache.spark.deploy.{kind.lower()}.{kind}", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=tmp_path,
            text=True,
            errors="replace",
        )
        started.append(process)
        return process

    master = launch("Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    address = said_by(master, "Starting Spark master at ").split()[0]
    workers = []
    for number in range(2):
        options = ("--cores", "2", "--memory", "1g", "--webui-port", "0")
        process = launch(
            "Worker", "--host", "127.0.0.1", *options, "-d", str(tmp_path / f"w{number}"), address
        )
        said_by(process, "Successfully registered with master")
        workers.append(psutil.Process(process.pid))
    yield address, workers
    for process in started:
        end_tree(psutil.Process(process.pid)) if process.poll() is None else None
        process.wait()


def said_by(process: "subprocess.Popen[str]", words: str) -> str:
    """What follows these words in what a process says, once it does; the rest is let pass."""
    assert process.stdout is not None
    heard = ""
    for line in process.stdout:
        heard += line
        if words in line:
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return line.split(words, 1)[1]
    raise AssertionError(f"never said {words!r}:\n{heard}")


def end_tree(process: psutil.Process) -> None:
    """A whole machine gone: the process and everything it started."""
    for member in [process, *process.children(recursive=True)]:
        try:
            member.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


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
