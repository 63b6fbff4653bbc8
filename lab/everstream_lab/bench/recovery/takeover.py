"""How fast a standby takes over after SIGKILL of all processes of the first, seen from its output.

Two commands as a user starts them: one runs, the other is a standby with Spark warm. Supervisor, driver
and Java of the first get SIGKILL at once, as when its machine dies. A probe at the end of the
pipeline writes down when each batch came out; the first one of the second command ends the takeover.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstream.errors import RunFailed
from everstream_lab.bench.recovery.restart import KEYS
from everstream_lab.bench.report import Figure, Progress, Report, at_most, exactness

PROGRAM = """
import everstream as es
from everstream_lab.bench.recovery.restart import KEYS, Probe

pipeline = es.Pipeline("takeover")
numbers = pipeline.source(es.Paced(es.Range(10**9), rate={rate}), name="numbers")
latest = numbers.key_by(lambda n: n % KEYS).reduce(lambda _, n: n, name="last", shards=2)
latest.sink(Probe("probe"), name="probe")
latest.sink(es.JsonLines("out"), name="out")
"""
PATIENCE_S = 120.0
LOOK_EVERY_S = 0.02
BEATS = 4
"""The first has noticed the second, and the second knows: as when it has stood by for a while."""
GOES_ON_S = 3.0


@dataclass
class Takeover:
    """The figures of one takeover."""

    takeover_s: float
    """From the kill to the first output of the second command."""
    silent_s: float
    """From the kill until the second command took the store."""
    lost: int
    duplicated: int


def measure(
    *,
    rate: float = 5_000,
    after: str = "1.5s",
    master: str = "local[2]",
    progress: Progress = lambda text: None,
) -> Takeover:
    """One takeover; what both have shown up to the checkpoint the second stops with must be exact."""
    with tempfile.TemporaryDirectory(prefix="everstream-takeover-") as name:
        folder = Path(name)
        (folder / "probe").mkdir()
        (folder / "takeover.py").write_text(PROGRAM.format(rate=rate))
        progress("starting the first run and a standby")
        with _command(folder, "first", master) as first:
            _until("output of the first", lambda: any(_lines(folder)))
            with _command(folder, "second", master, "--standby", after) as second:
                _until("a standby", lambda: "standing by" in _output_of(folder, "second"))
                for _ in range(BEATS):
                    known = _heartbeat(folder)
                    _until("a sign of life", lambda known=known: _heartbeat(folder) != known)  # type: ignore[misc]
                before = {line["generation"] for line in _lines(folder)}
                killed_s = _kill_all(first.pid)
                progress("killed; waiting for the standby")
                _until("silence", lambda: "taking over" in _output_of(folder, "second"))
                silent_s = time.monotonic() - killed_s

                def later() -> list[float]:
                    new = (line for line in _lines(folder) if line["generation"] not in before)
                    return [line["at_s"] for line in new if line["at_s"] > killed_s]

                _until("output of the second", lambda: bool(later()))
                takeover_s = min(later()) - killed_s
                progress("the standby continues for a while")
                time.sleep(GOES_ON_S)
                second.send_signal(signal.SIGINT)
                if second.wait(timeout=PATIENCE_S) != 0:
                    raise RunFailed(f"the second failed: {_output_of(folder, 'second')[-2000:]}")
        shown = Counter((key, number) for key, number in _rows(folder / "out"))
        expected = Counter((n % KEYS, n) for n in range(1 + max(n for _, n in shown)))
    return Takeover(
        round(takeover_s, 3),
        round(silent_s, 3),
        lost=(expected - shown).total(),
        duplicated=(shown - expected).total(),
    )


def measure_rounds(*, rounds: int, after: str, progress: Progress = lambda text: None) -> Report:
    """Some takeovers."""
    runs = [measure(after=after, progress=progress) for _ in range(rounds)]
    figures = [
        Figure.median("takeover", (run.takeover_s for run in runs), "s", at_most(3.0)),
        Figure.median("silent", (run.silent_s for run in runs), "s"),
        *exactness(sum(run.lost for run in runs), sum(run.duplicated for run in runs)),
    ]
    return Report("takeover", figures, {"after": after})


@contextmanager
def _command(
    folder: Path, name: str, master: str, *more: str
) -> "Iterator[subprocess.Popen[bytes]]":
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "everstream", "run", "takeover.py", "--every", "500ms"),
                *("--master", master, "--store", "store", *more),
            ],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _kill_all(monitor: int) -> float:
    """SIGKILL for a monitor and all below it; when that was."""
    pids = [monitor]
    for pid in pids:
        pids += _children(pid)
    killed_s = time.monotonic()
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return killed_s


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has ended
        return []


def _until(what: str, holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > until_s:
            raise RunFailed(f"there was no {what} within {PATIENCE_S:g} s")
        time.sleep(LOOK_EVERY_S)


def _lines(folder: Path) -> list[dict[str, Any]]:
    """What the probe has written; the last line may be half there."""
    whole = [
        line
        for path in (folder / "probe").glob("*.jsonl")
        for line in path.read_text().splitlines(keepends=True)
    ]
    return [json.loads(line) for line in whole if line.endswith("\n")]


def _rows(folder: Path) -> Iterator[list[int]]:
    for path in folder.glob("part-*.jsonl"):
        yield from map(json.loads, path.read_text().splitlines())


def _output_of(folder: Path, name: str) -> str:
    return (folder / f"{name}.log").read_text(errors="replace")


def _heartbeat(folder: Path) -> bytes:
    return (folder / "store" / "standby" / "pulse").read_bytes()
