"""What a user sees while a pipeline runs: a progress bar on a terminal, plain lines elsewhere.

Screens are told events and show them. They never decide anything, and nothing waits for them.
"""

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from everstream.cli.events import EpochStable, Event, Noted, Opened, Progressed, Started
from everstream.spark.progress import LinePace, Rate, stamp, status


class Screen:
    """Plain lines, for files, pipes and continuous integration."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rate = Rate()
        self.total: int | None = None
        self._pace = LinePace()

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *failure: object) -> None:
        """Leave the screen as a later command expects it."""

    def show(self, event: Event) -> None:
        match event:
            case Opened(pipeline=pipeline, store=store, checkpoints=checkpoints):
                where = f", checkpoints in {store}" if checkpoints != "none" else ""
                self.line(f"[bold]{escape(pipeline)}[/bold]: starting Spark{escape(where)}")
            case Started():
                self.started(event)
            case Progressed(snapshot=snapshot, at_s=at_s):
                self.rate.add(at_s, snapshot.records_read)
                self.progressed(event)
            case Noted(text=text, warning=warning):
                style = "yellow" if warning else "cyan"
                self.line(f"[{style}]{'!' if warning else '·'}[/{style}] {escape(text)}")
            case EpochStable():
                self.epoch(event)

    def line(self, markup: str) -> None:
        stamped = f"[dim]{stamp(self.console)}[/dim] {markup}"
        self.console.print(stamped, highlight=False, soft_wrap=True)

    def passing(self, text: str) -> None:
        """A line that the user's own program printed."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def started(self, event: Started) -> None:
        self.total = event.total_records
        operators, shards = len(event.operators), event.shards
        self.line(f"{operators} operators in {shards} shard(s) on {event.hosts} host(s)")

    def epoch(self, event: EpochStable) -> None:
        pass

    def progressed(self, event: Progressed) -> None:
        if self._pace.is_due(event.snapshot, time.monotonic()):
            self.line(status(event.snapshot, self.rate, self.total))


class _Percentage(ProgressColumn):
    """Nothing where the total is not known."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.percentage:3.0f}%" if task.total else "", style="bold")


class TerminalScreen(Screen):
    """A bar that moves; notes and what the program prints scroll by above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            _Percentage(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("starting Spark", total=None, figures="")

    def __enter__(self) -> "TerminalScreen":
        self._progress.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._progress.stop()

    def started(self, event: Started) -> None:
        super().started(event)
        self._progress.update(self._task, total=event.total_records)

    def progressed(self, event: Progressed) -> None:
        snapshot = event.snapshot
        figures = (
            f"{snapshot.records_read:,} records  {self.rate.per_s():,.0f}/s  epoch {snapshot.epoch}"
        )
        self._progress.update(
            self._task,
            description=snapshot.phase.value,
            completed=snapshot.records_read,
            figures=figures,
        )


def make_screen(console: Console) -> Screen:
    return TerminalScreen(console) if console.is_terminal else Screen(console)
