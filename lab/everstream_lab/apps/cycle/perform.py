"""Performs planned runs in a process of their own: `python -m everstream_lab.apps.cycle.perform FD`.

What it measures is then its own, not that of the command that started it. It reads one run after
the other from its standard input, tells what happens as lines of JSON on the given descriptor, and
ends when its input does: a killed command leaves nothing running.
"""

import json
import multiprocessing
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from everstream.errors import EverstreamError, InternalError
from everstream.observability.monitoring.sampler import Monitor
from everstream_lab.apps.application import Tell, checksum
from everstream_lab.apps.cycle.benchmarks import Planned
from everstream_lab.apps.cycle.outcome import Outcome, latency_table, outcome_of, watched_table
from everstream_lab.apps.inputs import expected_checksum, input_folder
from everstream_lab.apps.interfaces.job import Job
from everstream_lab.apps.interfaces.registry import driver_of
from everstream_lab.apps.lookup import application_at


def perform(planned: Planned, results: Path, tell: Callable[[str], Tell]) -> Outcome:
    """Run it, hold its result against the sequential program's, keep what was measured."""
    application = application_at(planned.application)
    folder = input_folder(application, planned.size, tell("making the input"))
    settings = planned.settings
    expected = None
    if settings.check:
        tell("the sequential result")(0, 1)
        expected = expected_checksum(application, folder)
    output = results / "output" / application.result
    output.parent.mkdir(parents=True, exist_ok=True)
    period_s = settings.monitor_s()
    job = Job(
        application,
        planned.application,
        folder,
        output,
        workers=planned.workers,
        batch=planned.batch,
        stages=settings.stages,
        clutter=settings.clutter,
        batch_to=settings.batch_to(),
        whole=settings.batch != "auto",
        interval_s=settings.interval_s(),
        load=settings.load(),
        catch_up=settings.catch_up,
        in_memory=settings.in_memory,
        clocked=settings.latency,
        monitor=Monitor(period_s) if period_s is not None else None,
        progress=tell("running"),
        checkpoint=settings.checkpointing(),
        kills=settings.kills,
    )
    done = driver_of(planned.interface)(job)
    exact = None if expected is None else checksum(output) == expected
    if done.stamps is not None:
        table = latency_table(planned.number, done.stamps, int(done.stamps.began.min()))
        table.write_parquet(results / f"latency-{planned.number:04d}.parquet")
    if done.monitored.height:
        table = watched_table(planned.number, done)
        table.write_parquet(results / f"monitor-{planned.number:04d}.parquet")
    return outcome_of(planned, done, exact)


def main() -> int:
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as pipe:
        teller = _Teller(pipe)
        while True:
            wanted = json.loads(asked.get())
            planned = Planned.from_json(wanted["run"])
            teller.run = planned.number
            try:
                outcome = perform(planned, Path(wanted["results"]), teller.step)
            except EverstreamError as error:
                bug = isinstance(error, InternalError)
                teller.tell("failed", text=traceback.format_exc() if bug else str(error))
            except Exception:
                teller.tell("failed", text=traceback.format_exc())
            else:
                teller.tell("outcome", body=outcome.to_json())


def _listen(asked: "queue.SimpleQueue[str]") -> None:
    # Not through sys.stdin: its lock, held here, would be torn if a library forks.
    left = b""
    while data := os.read(0, 65536):
        *lines, left = (left + data).split(b"\n")
        for line in lines:
            asked.put(line.decode())
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(0)


class _Teller:
    def __init__(self, pipe: IO[str]) -> None:
        self._pipe = pipe
        self.run = 0

    def tell(self, event: str, **what: Any) -> None:
        self._pipe.write(json.dumps({"event": event, "run": self.run, **what}) + "\n")

    def step(self, name: str) -> Tell:
        def progress(done: int, total: int) -> None:
            # About a hundred lines a run, however many items there are.
            share = done * 100 // max(total, 1)
            if share != shares[0]:
                shares[0] = share
                self.tell("progress", step=name, done=done, total=total)

        shares = [-1]
        return progress


if __name__ == "__main__":
    sys.exit(main())
