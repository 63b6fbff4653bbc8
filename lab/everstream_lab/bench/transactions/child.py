"""The process that is killed, and the one that takes over.

`run` feeds the stream and, at the stated event, kills itself with SIGKILL: no handler
runs, nothing is flushed, commits in flight are lost or not as the moment has it.
`recover` starts from nothing but the folder and stops its watch when the last event
before the crash is reflected. `spare` does the same, but has imported and loaded its
kernels before the crash and waits to be told. `warm` fills the kernel cache so that
none of them compiles.
"""

import json
import os
import resource
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

_STARTED_S = time.monotonic()

import numpy as np  # noqa: E402
import polars as pl  # noqa: E402
import pyarrow as pa  # noqa: E402

from everstream.transactions.engine import TransactionEngine  # noqa: E402
from everstream.transactions.execution import Breakdown, cycle_rate  # noqa: E402
from everstream.transactions.recovery import RecoveryScheme  # noqa: E402
from everstream_lab.bench.transactions.config import Configuration  # noqa: E402
from everstream_lab.bench.transactions.journal import InputJournal  # noqa: E402
from everstream_lab.bench.transactions.sink import OutcomeSink  # noqa: E402


class Overheads:
    """What recovery costs while nothing fails: input and output, tracking, synchronization.

    Input and output is on the thread of the log, except for persisting events; it overlaps with
    the rest.
    """

    def __init__(self, engine: TransactionEngine, journal: InputJournal | None) -> None:
        self._s = dict.fromkeys(("journal", "log", "tracking", "blocks", "ends"), 0.0)
        scheme, log = engine.scheme, engine.scheme.log
        self._time(scheme, "record", "tracking")
        self._time(scheme, "blocks", "blocks")
        self._time(engine, "end_epoch", "ends")
        self._time(engine, "save_snapshot", "ends")
        for name in ("append", "sync", "save_snapshot") if log is not None else ():
            self._time(log, name, "log")
        if journal is not None:
            self._time(journal, "append", "journal")

    def _time(self, owner: Any, name: str, part: str) -> None:
        """Let a method of this object count its time."""
        call = getattr(owner, name)

        def timed(*given: Any) -> Any:
            began_s = time.perf_counter()
            try:
                return call(*given)
            finally:
                self._s[part] += time.perf_counter() - began_s

        setattr(owner, name, timed)

    def restart(self) -> None:
        self._s = dict.fromkeys(self._s, 0.0)

    def seconds(self) -> dict[str, float]:
        """By the names of MorphStreamR's figure 12d."""
        return {
            "io_s": self._s["journal"] + self._s["log"],
            "tracking_s": self._s["tracking"] + self._s["blocks"],
            "sync_s": max(0.0, self._s["ends"] - self._s["blocks"]),
        }


class Source:
    """The replayable input: an Arrow file, mapped, cut by event number."""

    def __init__(self, path: Path) -> None:
        self._events = pa.ipc.open_file(pa.memory_map(str(path))).read_all()

    def __call__(self, first: int, last: int) -> pl.DataFrame:
        part = pl.from_arrow(self._events.slice(first, last - first))
        assert isinstance(part, pl.DataFrame)
        return part


class Persisted:
    """The source of a scheme that keeps its input: what is persisted, then what is new."""

    def __init__(self, source: Source, journal: InputJournal | None) -> None:
        self._source = source
        self.journal = journal

    def __call__(self, first: int, last: int) -> pl.DataFrame:
        kept = None if self.journal is None else self.journal.read(first, last)
        return self._source(first, last) if kept is None else kept


def persisted(config: Configuration, scheme: RecoveryScheme, source: Source) -> Persisted:
    """Schemes that process events again keep them; those with logs of commands or values do not."""
    keeps = scheme.replays_events or config.scheme == "checkpoint"
    return Persisted(source, InputJournal(config.journal_path) if keeps else None)


def peak_bytes() -> int:
    """The most memory of this program. (`ru_maxrss` would count its parent's before it was one.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def open_engine(config: Configuration) -> TransactionEngine:
    workload = config.build()
    return TransactionEngine(
        workload.tables,
        workload.transactions,
        parallelism=config.threads,
        recovery=config.scheme,
        log=config.log_folder,
        snapshot_every_epochs=sys.maxsize,
        operation_cost_iterations=config.cost_iterations,
        recovery_options=config.fast if config.scheme == "fast" else None,
        execution=config.execution,
    )


class Feeder:
    """Feeds the stream to an engine, epoch by epoch, and its outcomes to the sink."""

    def __init__(self, engine: TransactionEngine, config: Configuration, source: Persisted) -> None:
        self._engine = engine
        self._config = config
        self._source = source
        self._sink = OutcomeSink(config.sink_path)
        self._sink.keep_until(engine.next_event)
        self._open: list[pl.Series] = []

    def feed(self, stop: int) -> None:
        """Process up to event `stop`, ending epochs and taking the snapshot where they fall."""
        engine, size = self._engine, self._config.epoch_events
        while engine.next_event < stop:
            until = min(stop, (engine.next_event // size + 1) * size)
            events = self._source(engine.next_event, until)
            if self._source.journal is not None:
                self._source.journal.append(engine.next_event, events)
            outcomes = engine.process_batch(events)
            self._open.append(outcomes["committed"])
            if until % size == 0:
                self._end_epoch()

    def _end_epoch(self) -> None:
        verdicts = self._open[0] if len(self._open) == 1 else pl.concat(self._open)
        self._sink.prepare(self._engine.next_event - len(verdicts), verdicts.to_numpy())
        self._open = []
        ended = self._engine.end_epoch()
        if ended == self._config.snapshot_epoch:
            self._engine.save_snapshot()


def waited_for_core_s() -> float:
    """How long this process's threads were ready to run but had no core; 0 where unknown."""
    waited_ns = 0
    for entry in Path("/proc/self/task").glob("*/schedstat"):
        waited_ns += int(entry.read_text().split()[1])
    return waited_ns * 1e-9


def run(config: Configuration, report: Path) -> None:
    engine = open_engine(config)
    source = persisted(config, engine.scheme, Source(config.inputs_path))
    feeder = Feeder(engine, config, source)
    overheads = Overheads(engine, source.journal)
    feeder.feed(config.epoch_events)
    engine.flush()
    cycle_rate()
    overheads.restart()
    before = dict(vars(engine.breakdown))
    began_s = time.monotonic()
    began_cpu_s, began_waited_s = time.process_time(), waited_for_core_s()
    feeder.feed(config.crash_event)
    elapsed_s = time.monotonic() - began_s
    log = engine.scheme.log
    facts = {
        "events": config.crash_event - config.epoch_events,
        "elapsed_s": elapsed_s,
        "cpu_s": time.process_time() - began_cpu_s,
        "waited_for_core_s": waited_for_core_s() - began_waited_s,
        "bytes_logged": log.bytes_written if log is not None else 0,
        "peak_bytes": peak_bytes(),
        "transaction_cost_s": engine.transaction_cost_s,
        "overheads": overheads.seconds(),
        "breakdown": {name: value - before[name] for name, value in vars(engine.breakdown).items()},
        "killed_s": time.monotonic(),
    }
    report.write_text(json.dumps(facts))
    os.kill(os.getpid(), signal.SIGKILL)


def spare(config: Configuration, report: Path) -> None:
    """Wait, warmed up, for the word that the other process is dead, then take over."""
    with tempfile.TemporaryDirectory() as folder:
        _rehearse(replace(config, cost_iterations=0, folder=folder), Source(config.inputs_path))
    print("ready", flush=True)
    recover(config, report, float(sys.stdin.readline()))


def recover(config: Configuration, report: Path, started_s: float) -> None:
    began_s = max(started_s, _STARTED_S)
    waited_before_s = waited_for_core_s()
    engine = open_engine(config)
    engine.load_kernels()
    own = Source(config.inputs_path)
    opened_s = time.monotonic()
    source = persisted(config, engine.scheme, own)
    recovery = engine.recover(source)
    if config.scheme == "none":
        config.sink_path.write_bytes(b"")
    resumed_s = time.monotonic()
    feeder = Feeder(engine, config, source)
    feeder.feed(config.crash_event)
    reflected_s = time.monotonic()
    waited_s = waited_for_core_s() - waited_before_s
    breakdown = _sum(recovery.breakdown, engine.breakdown)
    images = {
        f"{table}/{name}": column
        for table, image in engine.table_images().items()
        for name, column in image.items()
    }
    np.savez(report.with_suffix(".npz"), **images)  # type: ignore[arg-type]
    feeder.feed(config.events)
    engine.flush()
    facts: dict[str, Any] = {
        "start_s": opened_s - started_s,
        "imports_and_kernels_s": opened_s - began_s,
        "recover_s": resumed_s - opened_s,
        "rerun_s": reflected_s - resumed_s,
        "work_s": reflected_s - opened_s,
        "total_s": reflected_s - started_s,
        "waited_for_core_s": waited_s,
        "resumed_at": recovery.next_event,
        "replayed_events": recovery.replayed_events,
        "breakdown": vars(breakdown),
        "peak_bytes": peak_bytes(),
    }
    report.write_text(json.dumps(facts))
    engine.close()


def _sum(first: Breakdown, second: Breakdown) -> Breakdown:
    return Breakdown(**{name: value + getattr(second, name) for name, value in vars(first).items()})


def warm(config: Configuration) -> None:
    """Compile every kernel the other modes may need, on a few events of the same types."""
    source = Source(config.inputs_path)
    variants = [config.fast]
    if config.scheme == "fast":
        variants.append(replace(config.fast, adaptive_replay=False))
    for options in variants:
        for execution in ("serial", "parallel"):
            with tempfile.TemporaryDirectory(dir=config.folder) as folder:
                _rehearse(
                    replace(
                        config,
                        fast=options,
                        execution=execution,
                        cost_iterations=0,
                        folder=folder,
                    ),
                    source,
                )


def _rehearse(config: Configuration, source: Source) -> None:
    engine = open_engine(config)
    for _ in range(2):
        first = engine.next_event
        engine.process_batch(source(first, first + 64))
        engine.end_epoch()
    engine.save_snapshot()
    engine.process_batch(source(128, 192))
    engine.end_epoch()
    engine.flush()
    open_engine(config).recover(source)


def main() -> None:
    mode, config_path, report_path, started_s = sys.argv[1:5]
    config = Configuration.load(Path(config_path))
    if mode == "run":
        run(config, Path(report_path))
    elif mode == "recover":
        recover(config, Path(report_path), float(started_s))
    elif mode == "spare":
        spare(config, Path(report_path))
    elif mode == "warm":
        warm(config)
    else:
        raise SystemExit(f"unknown mode {mode!r}")


if __name__ == "__main__":
    main()
