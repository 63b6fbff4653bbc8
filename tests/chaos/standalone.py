"""A standalone cluster of Spark on this machine, for as long as a test needs it."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyspark

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


@contextmanager
def cluster(folder: Path, hosts: Sequence[str]) -> Iterator[tuple[str, list[psutil.Process]]]:
    """A master, and a worker of two cores at each address; the master's address and the workers."""
    started: list[subprocess.Popen[str]] = []
    try:
        options = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = _launch(folder, "Master", *options)
        started.append(master)
        address = said_by(master, "Starting Spark master at ").split()[0]
        workers = []
        for number, host in enumerate(hosts):
            process = worker(folder, host, address, number)
            started.append(process)
            workers.append(psutil.Process(process.pid))
        yield address, workers
    finally:
        for process in started:
            end_tree(psutil.Process(process.pid)) if process.poll() is None else None
            process.wait()


def worker(folder: Path, host: str, master: str, number: int) -> "subprocess.Popen[str]":
    """One more worker of two cores, which the master knows."""
    options = ("--cores", "2", "--memory", "1g", "--webui-port", "0")
    work = str(folder / f"w{number}")
    process = _launch(folder, "Worker", "--host", host, *options, "-d", work, master)
    said_by(process, "Successfully registered with master")
    return process


def _launch(folder: Path, kind: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [str(SPARK_CLASS), f"org.apache.spark.deploy.{kind.lower()}.{kind}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=folder,
        text=True,
        errors="replace",
    )


def said_by(process: "subprocess.Popen[str]", phrase: str) -> str:
    """What follows these words in what a process says, once it does; the rest is let pass."""
    assert process.stdout is not None
    heard = ""
    for line in process.stdout:
        heard += line
        if phrase in line:
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return line.split(phrase, 1)[1]
    raise AssertionError(f"never said {phrase!r}:\n{heard}")


def end_tree(process: psutil.Process) -> None:
    """A whole machine gone: the process and everything it started."""
    for member in [process, *process.children(recursive=True)]:
        try:
            member.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
