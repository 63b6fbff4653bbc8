"""`everstream top`: watch a run in the terminal, from the history in its store."""

import time
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from everstream.cli.runs.command import StoreKeyFile
from everstream.cli.say import errors_in_one_line
from everstream.cli.stores.checkpoints import StoreArgument
from everstream.cli.views.terminal_view import LEAST_WIDTH, Room, View, drawn

LOOK_EVERY_S = 1.0
REMOTE_EVERY_S = 3.0
NO_LIMIT = 10_000
"""Lines, where the output scrolls instead of filling a screen."""


def register(app: typer.Typer) -> None:
    app.command("top")(top)


def top(
    store: StoreArgument,
    once: Annotated[
        bool, typer.Option("--once", help="Show it once and exit; the default without a terminal.")
    ] = False,
    store_key: StoreKeyFile = None,
) -> None:
    """Watch a run in the terminal: rates, back-pressure, last checkpoint and failure.

    Reads the history in the run's store, so the run can be on another machine, or over. The display
    is a few seconds behind. Ctrl-C ends the display, not the run.

    Example: everstream top .everstream/word-count

    Exit codes: 0 ended by Ctrl-C, or shown once; 1 the store cannot be read; 2 wrong usage, or no
    such store.
    """
    from rich.live import Live as InPlace

    from everstream.inspection import open_store
    from everstream.observability.history.run_view import Live
    from everstream.observability.history.stored import StoredHistory

    console = Console()

    def room() -> Room:
        return Room(console.width, console.height)

    with errors_in_one_line():
        live = Live()
        history = StoredHistory(open_store(store, store_key).blobs)
        live.take_all(history.new_events())
        if once or not console.is_terminal:
            console.print(_shown(live.view(), Room(max(console.width, LEAST_WIDTH), NO_LIMIT)))
            return
        every_s = REMOTE_EVERY_S if "://" in store else LOOK_EVERY_S
        with InPlace(_shown(live.view(), room()), console=console, screen=True) as screen:
            try:
                while True:
                    time.sleep(every_s)
                    live.take_all(history.new_events())
                    screen.update(_shown(live.view(), room()), refresh=True)
            except KeyboardInterrupt:
                return


def _shown(view: View, room: Room) -> RenderableType:
    if not view["operators"]:
        return Text("no run has left a history there yet", style="dim")
    if not room.fits(view):
        return Text("the terminal is too small: make it larger", style="yellow")
    return drawn(view, room)
