"""`everstream ui`: the page of a past run, or of one on another machine, from its store."""

import time
from typing import Annotated

import typer
from rich.console import Console

from everstream.cli.runs.command import StoreKeyFile
from everstream.cli.say import errors_in_one_line
from everstream.cli.stores.checkpoints import StoreArgument

LOOK_EVERY_S = 1.0
REMOTE_EVERY_S = 3.0


def register(app: typer.Typer) -> None:
    app.command("ui")(ui)


def ui(
    store: StoreArgument,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="HOST:PORT",
            help="Address to serve on; default: 127.0.0.1:4120, or a free port.",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to serve on; 0: any free one.")
    ] = None,
    store_key: StoreKeyFile = None,
) -> None:
    """Serve a page with the runs of a store: events, checkpoints, failures, state, metrics.

    A store keeps a history of its runs, at most 16 MB and two weeks. The page follows an active run,
    here or on another machine, a few seconds behind. It is read-only; for actions use
    everstream run --ui.

    Example: everstream ui .everstream/word-count

    Exit codes: 0 ended by Ctrl-C; 1 the store or the address cannot be used; 2 wrong usage, or no
    such store.
    """
    from everstream.inspection import open_store
    from everstream.observability.history.run_view import Live
    from everstream.observability.history.stored import StoredHistory
    from everstream.observability.ui.serving import HOST, Serving
    from everstream.observability.ui.views import Shown

    console = Console()
    with errors_in_one_line():
        live = Live()
        history = StoredHistory(open_store(store, store_key).blobs)
        taken = live.take_all(history.new_events())
        shown = Shown(live, store=store)
        shown.store_key = store_key
        where = at if port is None else f"{(at or HOST).rpartition(':')[0] or at or HOST}:{port}"
        every_s = REMOTE_EVERY_S if "://" in store else LOOK_EVERY_S
        with Serving(shown, where) as serving:
            console.print(f"page: {serving.link}", highlight=False, soft_wrap=True)
            if serving.warning is not None:
                console.print(f"! {serving.warning}", highlight=False, soft_wrap=True)
            if not taken:
                console.print("no run has left a history there yet", style="dim")
            try:
                while True:
                    time.sleep(every_s)
                    live.take_all(history.new_events())
            except KeyboardInterrupt:
                return
