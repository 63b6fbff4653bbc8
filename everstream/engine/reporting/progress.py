"""The progress of `pipeline.run()` in a script: a live line on a terminal, a few lines elsewhere.

It is written to standard error, because standard output belongs to the program. A run with a
listener shows nothing; `progress=False` or EVERSTREAM_PROGRESS=0 silences any run.
"""

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

from everstream.core.orders import Phase
from everstream.engine.reporting.listener import Listener, Listeners
from everstream.events import Progressed, RunEvent, RunStarted, RunStatus, is_warning, sentence

RATE_OVER_S = 2.0
FIRST_LINE_S = 2.0
LONGEST_S = 60.0
GROWTH = 1.5


class RateMeter:
    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, at_s: float, records: int) -> None:
        if self._seen and records < self._seen[-1][1]:
            self._seen.clear()  # a rollback: the rate would be negative
        self._seen.append((at_s, records))
        while at_s - self._seen[0][0] > RATE_OVER_S:
            self._seen.popleft()

    def per_s(self) -> float:
        if len(self._seen) < 2:
            return 0.0
        (from_s, before), (to_s, now) = self._seen[0], self._seen[-1]
        return (now - before) / (to_s - from_s) if to_s > from_s else 0.0


class LinePace:
    """When a line is due: at each new phase, and otherwise only if new records have been read.

    The longer a phase lasts, the fewer lines: after some minutes there is one a minute.
    """

    def __init__(self) -> None:
        self._phase: Phase | None = None
        self._records = 0
        self._every_s = FIRST_LINE_S
        self._due_s = 0.0

    def is_due(self, run_status: RunStatus, now_s: float) -> bool:
        if run_status.phase is not self._phase:
            self._phase, self._every_s = run_status.phase, FIRST_LINE_S
        elif now_s < self._due_s or run_status.records_read == self._records:
            return False
        else:
            self._every_s = min(self._every_s * GROWTH, LONGEST_S)
        self._records, self._due_s = run_status.records_read, now_s + self._every_s
        return True


def status(run_status: RunStatus, rate: RateMeter, total: int | None) -> str:
    words = [run_status.phase.value, f"{run_status.records_read:,} records"]
    if total:
        words.append(f"{run_status.records_read / total:.0%}")
    words += [f"{rate.per_s():,.0f} records/s", f"epoch {run_status.epoch}"]
    return ", ".join(words)


class ProgressLines(Listener):
    """Plain lines with the time."""

    marks = ("·", "!")
    """What notes and warnings begin with."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rate = RateMeter()
        self.total: int | None = None
        self._pace = LinePace()

    def on_event(self, event: RunEvent) -> None:
        self.take(event, time.monotonic())

    def take(self, event: RunEvent, at_s: float) -> None:
        """An event that was sent at this time, on the monotonic clock."""
        match event:
            case RunStarted():
                self.started(event)
            case Progressed(status=run_status):
                self.rate.add(at_s, run_status.records_read)
                self.progressed(run_status)
            case _:
                self.note(event)

    def started(self, event: RunStarted) -> None:
        self.total = event.total_records
        self.line(
            f"{len(event.operators)} operators in {len(event.shards)} shard(s) on "
            f"{event.workers} worker(s)"
        )

    def progressed(self, run_status: RunStatus) -> None:
        if self._pace.is_due(run_status, time.monotonic()):
            self.line(status(run_status, self.rate, self.total))

    def note(self, event: RunEvent) -> None:
        text = sentence(event)
        if text is not None:
            self.line(f"{self.marks[is_warning(event)]} {escape(text)}")

    def line(self, markup: str) -> None:
        stamp = time.strftime("%H:%M:%S" if self.console.is_terminal else "%Y-%m-%d %H:%M:%S")
        self.console.print(f"[dim]{stamp}[/dim] {markup}", highlight=False, soft_wrap=True)


class ProgressBar(ProgressLines):
    """A live line at the bottom; notes and the program's own output scroll above it."""

    def __init__(self, console: Console) -> None:
        from rich.progress import Progress, SpinnerColumn, TextColumn

        super().__init__(console)
        self.live = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True
        )
        self._task = self.live.add_task("starting")

    def progressed(self, run_status: RunStatus) -> None:
        self.live.update(self._task, description=status(run_status, self.rate, self.total))


def heard_early(listener: Listener, progress: bool) -> Listener:
    shown = (ProgressLines(Console(file=sys.stderr)),) if progress else ()
    return Listeners(listener, *shown)


@contextmanager
def watching(
    pipeline: str,
    listener: Listener,
    progress: bool,
    console: Console | None = None,
    *,
    live: bool = True,
) -> Iterator[Listener]:
    """The listener of a run; with `progress`, it also writes to standard error.

    live: it may reserve a line of the terminal, which only one run at a time can do.
    """
    if not progress:
        yield listener
        return
    console = console or Console(file=sys.stderr)
    shown = ProgressBar(console) if console.is_terminal and live else ProgressLines(console)
    shown.line(f"{escape(pipeline)}: starting")
    both = Listeners(listener, shown)
    if not isinstance(shown, ProgressBar):
        yield both
        return
    with shown.live:
        yield both
