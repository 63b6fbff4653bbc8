"""The display of a running pipeline: its graph or a bar on a terminal, plain lines elsewhere.

Screens show the messages of a driver. They make no decisions, and nothing waits for them.
"""

import time
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from everstream.cli.say import say
from everstream.cli.views.messages import EventReported, Message, Opened
from everstream.cli.views.terminal_view import Room, View, drawn
from everstream.engine.reporting.progress import ProgressLines
from everstream.events import RunStarted, RunStatus

LOOK_EVERY_S = 0.5
"""How often the view is looked up; it is redrawn more often."""


class Screen(ProgressLines):
    """Plain lines, for files, pipes and continuous integration."""

    marks = ("[cyan]·[/cyan]", "[yellow]![/yellow]")

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *failure: object) -> None:
        """Restore the screen for the next command."""

    def sees(self, look: Callable[[], View]) -> None:
        """Set the function that looks up the view of the run."""

    def show(self, message: Message) -> None:
        match message:
            case Opened(pipeline=pipeline, store=store, checkpoints=checkpoints):
                where = f", checkpoints in {store}" if checkpoints != "none" else ""
                self.line(f"[bold]{escape(pipeline)}[/bold]: starting{escape(where)}")
            case EventReported(event=event, at_s=at_s):
                self.take(event, at_s)

    def passing(self, text: str) -> None:
        """A line that the user's program printed."""
        say(text, self.console)


class _Percentage(ProgressColumn):
    """Empty if the total is not known."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.percentage:3.0f}%" if task.total else "", style="bold")


class TerminalScreen(Screen):
    """The graph with its rates, drawn in place; a bar if there is no room for it, or no graph yet.

    Notes and the output of the program scroll above it.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._look: Callable[[], View] | None = None
        self._seen: View | None = None
        self._looked_s = 0.0
        self._read = 0
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            _Percentage(),
            TextColumn("{task.fields[figures]}"),
            console=console,
        )
        self._task = self._progress.add_task("starting", total=None, figures="")
        self._live = Live(
            get_renderable=self._drawn,
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> "TerminalScreen":
        self._live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._live.stop()

    def sees(self, look: Callable[[], View]) -> None:
        self._look = look

    def _drawn(self) -> RenderableType:
        now_s = time.monotonic()
        if self._look is not None and now_s - self._looked_s >= LOOK_EVERY_S:
            self._seen, self._looked_s = self._look(), now_s
        # One line for the cursor, one for the output that scrolls.
        room = Room(self.console.width, self.console.height - 2)
        if self._seen is None or not room.fits(self._seen):
            return self._progress.get_renderable()
        share = min(1.0, self._read / self.total) if self.total else None
        return drawn(self._seen, room, share=share)

    def started(self, event: RunStarted) -> None:
        super().started(event)
        self._progress.update(self._task, total=event.total_records)

    def progressed(self, run_status: RunStatus) -> None:
        self._read = run_status.records_read
        figures = (
            f"{run_status.records_read:,} records  {self.rate.per_s():,.0f}/s  "
            f"epoch {run_status.epoch}"
        )
        self._progress.update(
            self._task,
            description=run_status.phase.value,
            completed=run_status.records_read,
            figures=figures,
        )


def make_screen(console: Console) -> Screen:
    return TerminalScreen(console) if console.is_terminal else Screen(console)
