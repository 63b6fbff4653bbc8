"""`everstream check`: would this pipeline, as it is written now, go on from that store?

Needs no Spark and only reads, so it can be asked before a new version is rolled out, and while
the old one still runs.
"""

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from everstream.cli.options import RunOptions
from everstream.cli.run import Arguments, DropState, Renamed, StoreKeyFile, Target, say_error
from everstream.errors import EverstreamError, UserError

FITS, REFUSED, UNREADABLE = 0, 1, 2


def register(app: typer.Typer) -> None:
    """Add the command to the `everstream` app."""
    app.command("check")(check)


def check(
    target: Target,
    arguments: Arguments = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder or fsspec URL of the checkpoints; default .everstream/<pipeline's name>.",
        ),
    ] = None,
    renamed: Renamed = None,
    drop_state: DropState = None,
    store_key: StoreKeyFile = None,
) -> None:
    """Compare a pipeline with the checkpoint in a store: what goes on, and what would be refused.

    State is found by the operator's name, and belongs to what stood there: its class, its key,
    its window, its aggregates, its `es.Keyed` fields, a source's folder or table. If a run would
    lose state, or give it to another operator, it is refused; this says so beforehand, and what
    to do. Starts no Spark and changes nothing.

    Example: everstream check app.py --store .everstream/word-count --renamed count=total

    Exit codes: 0 a run would go on; 1 it would be refused; 2 wrong usage, or the pipeline or the
    store cannot be read.
    """
    options = RunOptions(
        target,
        renamed=tuple(renamed or ()),
        drop_state=tuple(drop_state or ()),
        store_key=store_key,
        arguments=tuple(arguments or ()),
    )
    try:
        raise typer.Exit(FITS if compared(options, store) else REFUSED)
    except EverstreamError as error:
        say_error(str(error))
        raise typer.Exit(UNREADABLE) from None


def compared(options: RunOptions, store: str | None) -> bool:
    """Say what becomes of each operator's state; whether a run would go on."""
    from everstream.cli.finding import load_pipeline
    from everstream.core.changes import Wishes, fates, going_on
    from everstream.core.manifest import EpochManifest
    from everstream.core.plan import make_plan
    from everstream.inspection import open_store
    from everstream.pipeline.describing import check_names

    wishes = Wishes(options.renamings(), frozenset(options.drop_state))
    pipeline = load_pipeline(options.target, options.arguments)
    where = store if store is not None else options.store_of(pipeline.name)
    plan = make_plan(pipeline, 1)
    found = [
        EpochManifest.from_json(entry.body)
        for entry in open_store(where, options.store_key).manifests()
    ]
    console = Console()
    if not found:
        console.print(f"No checkpoint in {where} yet: a run begins with nothing.", markup=False)
        return True
    try:
        check_names(plan.graph)
        notes = going_on(found, plan, found[0].log, wishes).notes
    except UserError as error:
        if found[0].pipeline == pipeline.name:
            console.print(_table(fates(found[0], plan, wishes), found[0].epoch))
        say_error(error.message)
        return False
    console.print(_table(fates(found[0], plan, wishes), found[0].epoch))
    for note in notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    end = "it has finished: there is nothing left to do" if found[0].final else "a run goes on"
    console.print(f"Fits: {end} from epoch {found[0].epoch}.", markup=False, highlight=False)
    return True


def _table(rows: dict[str, str], epoch: int) -> Table:
    table = Table(title=f"epoch {epoch}", title_justify="left")
    table.add_column("operator", no_wrap=True)
    table.add_column("its state", overflow="fold")
    for operator, fate in rows.items():
        table.add_row(escape(operator), escape(fate))
    return table
