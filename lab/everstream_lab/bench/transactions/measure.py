"""Starts, kills and restarts processes, and checks that what comes back is the truth.

Ratios count, not absolute times: the configurations compared run in one go on one
machine and the fastest of several counts, since whatever else runs on the machine can
only make one slower. The kernel says how long a process stood waiting for a core; those
that did so for long are repeated.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from everstream.transactions.interpreter import Interpreter
from everstream_lab.bench.transactions.config import Configuration
from everstream_lab.bench.transactions.sink import read_outcomes
from everstream_lab.recovery.fast import FastOptions
from everstream_lab.workloads.transactions import Workload

_CALM = 0.05

Facts = dict[str, Any]
Progress = Callable[[str], None]


class Untrue(AssertionError):
    """A recovered state or its outcomes differ from the sequential interpreter's."""


@dataclass
class Truth:
    """State at the crash and verdicts of all events, from the plain interpreter."""

    tables: dict[str, dict[int | str, Any]]
    verdicts: npt.NDArray[np.bool_]


def truth_of(workload: Workload, events: pl.DataFrame, crash_event: int) -> Truth:
    interpreter = Interpreter(workload.tables, workload.transactions)
    verdicts: list[bool] = []
    tables: dict[str, dict[int | str, Any]] = {}
    for first, last in ((0, crash_event), (crash_event, len(events))):
        for at in range(first, last, 20_000):
            part = events[at : min(last, at + 20_000)]
            verdicts.extend(
                outcome.committed for outcome in interpreter.run(part.iter_rows(named=True))
            )
        if last == crash_event:
            tables = {name: dict(content) for name, content in interpreter.tables.items()}
    return Truth(tables, np.array(verdicts, np.bool_))


class Bench:
    """Measures configurations of one workload over one input, in its own folder."""

    def __init__(
        self,
        base: Configuration,
        verify: bool,
        progress: Progress,
        spare: bool = False,
        patience: int = 1,
    ) -> None:
        self.base = base
        self._patience = patience
        self._spare = spare
        self._progress = progress
        self._folder = Path(base.folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        workload = base.build()
        events = workload.events(base.events, base.seed)
        events.write_ipc(base.inputs_path, compression="uncompressed")
        self._truth = truth_of(workload, events, base.crash_event) if verify else None
        self._workload = workload
        self._warmed: set[tuple[str, FastOptions]] = set()

    def measure(self, config: Configuration, recoveries: int, runs: int = 1) -> Facts:
        """Run to the crash, then recover as often as asked; the fastest of each counts."""
        self._warm(config)
        ran: list[Facts] = []
        while _more(ran, runs, "elapsed_s", self._patience):
            self._progress(f"{config.workload} / {config.scheme}: run {len(ran) + 1}")
            ran.append(self._crash(config))
        facts: Facts = {"scheme": config.scheme, "threads": config.threads}
        best = max(ran, key=lambda one: one["events"] / one["elapsed_s"])
        facts.update(
            throughput_per_s=best["events"] / best["elapsed_s"],
            run_cpu_s=best["cpu_s"],
            run=best,
            disturbed=_disturbance(best, "elapsed_s"),
        )
        recovered: list[Facts] = []
        saved = self._folder / "crashed"
        shutil.rmtree(saved, ignore_errors=True)
        shutil.copytree(self._own(config), saved)
        while _more(recovered, recoveries, "total_s", self._patience):
            self._progress(f"{config.workload} / {config.scheme}: recovery {len(recovered) + 1}")
            shutil.rmtree(self._own(config))
            shutil.copytree(saved, self._own(config))
            recovered.append(self._recover(config))
        if recovered:
            facts["recovery"] = min(recovered, key=lambda one: float(one["total_s"]))
            facts["recovery"]["disturbed"] = _disturbance(facts["recovery"], "total_s")
            facts["detection_s"] = min(one["detection_s"] for one in ran)
            facts["recovery_s"] = facts["detection_s"] + facts["recovery"]["total_s"]
        return facts

    def _own(self, config: Configuration) -> Path:
        return self._folder / "own"

    def _placed(self, config: Configuration) -> Configuration:
        own = self._own(config)
        own.mkdir(exist_ok=True)
        inputs = own / "inputs.arrow"
        if not inputs.exists():
            inputs.symlink_to(self.base.inputs_path.resolve())
        return replace(config, folder=str(own))

    def _warm(self, config: Configuration) -> None:
        """Fill the kernel cache, so that no measured process compiles."""
        if (config.scheme, config.fast) in self._warmed:
            return
        self._warmed.add((config.scheme, config.fast))
        self._progress(f"{config.workload} / {config.scheme}: compiling")
        shutil.rmtree(self._own(config), ignore_errors=True)
        if self._start("warm", self._placed(config), self._folder / "warm.json").wait() != 0:
            raise RuntimeError("the kernels could not be compiled; the message is above")

    def _ready_spare(self, config: Configuration, report: Path) -> "subprocess.Popen[bytes]":
        process = self._start("spare", self._placed(config), report, piped=True)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def _crash(self, config: Configuration) -> Facts:
        shutil.rmtree(self._own(config), ignore_errors=True)
        report = self._folder / "run.json"
        process = self._start("run", self._placed(config), report)
        code = process.wait()
        noticed_s = time.monotonic()
        if code != -signal.SIGKILL:
            raise RuntimeError(f"the process ended with {code} instead of being killed")
        facts: Facts = json.loads(report.read_text())
        facts["detection_s"] = noticed_s - facts["killed_s"]
        return facts

    def _recover(self, config: Configuration) -> Facts:
        report = self._folder / "recover.json"
        if self._spare:
            process = self._ready_spare(config, report)
            process.communicate(f"{time.monotonic()!r}\n".encode())
            code = process.returncode
        else:
            code = self._start("recover", self._placed(config), report).wait()
        if code != 0:
            raise RuntimeError(f"recovery with {config.scheme} ended with {code}")
        facts: Facts = json.loads(report.read_text())
        if self._truth is not None:
            self._check(config, report)
            facts["true"] = True
        return facts

    def _start(
        self, mode: str, config: Configuration, report: Path, piped: bool = False
    ) -> "subprocess.Popen[bytes]":
        path = self._folder / f"{mode}-config.json"
        config.save(path)
        module = "everstream_lab.bench.transactions.child"
        arguments = [mode, str(path), str(report), repr(time.monotonic())]
        pipe = subprocess.PIPE if piped else None
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.Popen(command, stdin=pipe, stdout=pipe)

    def _check(self, config: Configuration, report: Path) -> None:
        """State at the crash, bit for bit, and every event's verdict once and in order."""
        assert self._truth is not None
        what = f"{config.workload} / {config.scheme} on {config.threads} threads"
        images = np.load(report.with_suffix(".npz"), allow_pickle=True)
        for table in self._workload.tables:
            expected = self._truth.tables[table.name]
            written = images[f"{table.name}/written"] != 0
            keys = images[f"{table.name}/keys"][written].tolist()
            columns = [
                images[f"{table.name}/column{position}"][written].tolist()
                for position in range(len(table.fields))
            ]
            values = zip(*columns, strict=True) if table.is_record else columns[0]
            if dict(zip(keys, values, strict=True)) != expected:
                raise Untrue(f"{what}: table {table.name} is not what the interpreter has")
        placed = self._placed(config)
        events, verdicts = read_outcomes(placed.sink_path)
        whole = len(self._truth.verdicts) // config.epoch_events * config.epoch_events
        if not np.array_equal(events, np.arange(whole)):
            raise Untrue(f"{what}: outcomes are lost or doubled")
        if not np.array_equal(verdicts, self._truth.verdicts[:whole]):
            raise Untrue(f"{what}: outcomes differ from the interpreter's")


def _disturbance(facts: Facts, duration: str) -> float:
    """The share of time that threads waited for a core that other programs used."""
    return float(facts["waited_for_core_s"] / facts[duration])


def _more(attempts: list[Facts], wanted: int, duration: str, patience: int) -> bool:
    """Whether to measure again: until `wanted` runs were undisturbed, up to a limit."""
    calm = sum(_disturbance(one, duration) < _CALM for one in attempts)
    return calm < wanted and len(attempts) < patience * wanted


@contextmanager
def scratch(keep: Path | None) -> Iterator[Path]:
    """A folder for logs: the given one, or a temporary one that goes away."""
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="everstream-transactions-") as folder:
        yield Path(folder)
