"""What a pipeline costs that has nothing to do: the processor time of each of its processes.

The pipeline runs as a user would run it, with a store and checkpoints, from the command line; its
source never ends and gives a record every hour. Processes of Python and of Java are counted separately.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from everstream.connectors.generate.paced import Paced
from everstream.connectors.generate.sources import FromFunction
from everstream.connectors.live import Callback
from everstream.errors import RunFailed
from everstream.pipeline.checkpointing import EngineName
from everstream.pipeline.stream import Pipeline

RATE = 1 / 3600
WORKERS = 2
SETTLE_S = 5.0
"""After which everything has started and been loaded."""
PATIENCE_S = 120.0
LOOK_EVERY_S = 0.2


def _numbers(start: int, stop: int) -> list[int]:
    return list(range(start, stop))


def _drop(record: Any) -> None:
    """Discard the record."""


def _same(number: int) -> int:
    return number


idle = Pipeline("idle")
idle.source(Paced(FromFunction(_numbers, batch=1), RATE), name="numbers").key_by(_same).fold(
    int, lambda count, _: count + 1, shards=2
).sink(Callback(_drop), name="out")


@dataclass(frozen=True)
class Process:
    """One of the pipeline's processes."""

    pid: int
    name: str
    cpu_share: float
    """Of a core."""
    memory_mb: float


@dataclass(frozen=True)
class Idle:
    """What an idle pipeline uses."""

    seconds: float
    python_share: float
    """Of a core, all Python processes together."""
    java_share: float
    processes: list[Process]


def measure(
    seconds: float,
    progress: Callable[[str], None] = lambda text: None,
    engine: EngineName = "tasks",
) -> Idle:
    """Start it, wait until it has nothing to do, watch it, stop it."""
    with tempfile.TemporaryDirectory(prefix="everstream-idle-") as folder:
        store = Path(folder) / "store"
        command = [sys.executable, "-m", "everstream", "run", f"{__name__}:idle"]
        options = [
            *("--engine", engine, "--store", str(store), "--master", "local[2]", "--every", "10s"),
            *(() if engine == "microbatch" else ("--workers", str(WORKERS))),
        ]
        progress(f"starting an idle pipeline on {engine}")
        run = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _wait_for_workers(run, 1 if engine == "microbatch" else WORKERS)
            time.sleep(SETTLE_S)
            progress(f"watching an idle pipeline on {engine} for {seconds:g} s")
            return _watched(run.pid, seconds)
        finally:
            _end(run)


def _wait_for_workers(run: "subprocess.Popen[str]", workers: int) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while [_name(process, run.pid) for process in _family(run.pid)].count("worker") < workers:
        if run.poll() is not None or time.monotonic() > until_s:
            raise RunFailed(f"the idle pipeline did not start:\n{_end(run)[-2000:]}")
        time.sleep(LOOK_EVERY_S)


def _end(run: "subprocess.Popen[str]") -> str:
    """Kill all of its processes, since its state is not needed; returns its output."""
    for process in _family(run.pid) if run.poll() is None else ():
        with suppress(Exception):  # gone already
            process.kill()
    return run.communicate()[1]


def _family(pid: int) -> list[Any]:
    root = psutil.Process(pid)
    return [process for process in (root, *root.children(recursive=True)) if _lives(process)]


def _lives(process: Any) -> bool:
    """Those that have ended stay in the list until their parents have asked how."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _watched(pid: int, seconds: float) -> Idle:
    family = _family(pid)
    began_s = time.monotonic()
    before = {process.pid: _cpu_s(process) for process in family}
    time.sleep(seconds)
    passed_s = time.monotonic() - began_s
    processes = [
        Process(
            process.pid,
            _name(process, pid),
            round((_cpu_s(process) - before[process.pid]) / passed_s, 5),
            round(process.memory_info().rss / 1e6, 1),
        )
        for process in family
        if _lives(process)
    ]
    java = sum(one.cpu_share for one in processes if one.name == "java")
    everything = sum(one.cpu_share for one in processes)
    return Idle(round(passed_s, 2), round(everything - java, 5), round(java, 5), processes)


def _cpu_s(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _name(process: Any, root: int) -> str:
    """What it is of the run whose supervisor is `root`; nothing if it has just ended."""
    try:
        return _name_of_living(process, root)
    except psutil.NoSuchProcess:  # zombies are, too
        return ""


def _name_of_living(process: Any, root: int) -> str:
    line = " ".join(process.cmdline())
    if "java" in process.name():
        return "java"
    if "everstream.cli.runs.driver" in line:
        return "driver"
    if "everstream.engine.tasks.daemon" in line:
        return (
            "worker"
            if "everstream.engine.tasks.daemon" in " ".join(process.parent().cmdline())
            else "daemon"
        )
    # Of a local run each process is a fork of the one above it, so only their order tells them apart.
    above = [one.pid for one in process.parents()]
    depth = above.index(root) + 1 if root in above else 0
    return ("supervisor", "driver", "fork server", "worker")[min(depth, 3)]
