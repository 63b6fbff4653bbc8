"""`everstream check`: can this pipeline, as it is written now, resume from that store?"""

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from everstream.cli.runs.arguments import RunCommand
from everstream.cli.runs.command import Arguments, StoreKeyFile, Target
from everstream.cli.runs.flags import flag, settings_for
from everstream.cli.say import say, say_error
from everstream.errors import EverstreamError, StoreError, UserError

FITS, REFUSED, UNREADABLE = 0, 1, 2


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(
    target: Target,
    arguments: Arguments = None,
    store: Annotated[str | None, flag("store")] = None,
    renamed: Annotated[list[str] | None, flag("renamed")] = None,
    drop_state: Annotated[list[str] | None, flag("drop_state")] = None,
    store_key: StoreKeyFile = None,
) -> None:
    """Check whether a pipeline can resume from the checkpoint in a store.

    State is found by the operator's name. It fits if the operator still has the same class, key,
    window, aggregates, `es.Keyed` fields and, for a source, folder or table. A run that would lose
    state, or give it to another operator, is refused; this command tells you beforehand, and what
    to do. If numbers of shards have changed (also by `everstream scale`), all state is read to
    check that it can be redistributed. Does not start Spark and changes nothing.

    Example: everstream check app.py --store .everstream/word-count --renamed count=total

    Exit codes: 0 a run would resume; 1 it would be refused; 2 wrong usage, or the pipeline or the
    store cannot be read.
    """
    given = {"store": store, "renamed": renamed, "drop_state": drop_state, "store_key": store_key}
    try:
        command = RunCommand(
            target, settings_for(target, given, given), arguments=tuple(arguments or ())
        )
        raise typer.Exit(FITS if compared(command) else REFUSED)
    except EverstreamError as error:
        say_error(str(error))
        raise typer.Exit(UNREADABLE) from None


def compared(command: RunCommand) -> bool:
    """Print the fate of each operator's state; returns whether a run would resume."""
    from everstream.cli.runs.finding import load_pipeline
    from everstream.core.checkpointing.manifest import EpochManifest
    from everstream.core.plan import make_plan
    from everstream.core.upgrade.compatibility import UpgradeOverrides, fates, going_on
    from everstream.engine.rescaling import as_wanted, earlier_requests
    from everstream.events import sentence
    from everstream.inspection import open_store
    from everstream.pipeline.describing import check_names
    from everstream.runtime.redistributed_state import check_shares
    from everstream.state.signing import StoreKey, StoreUrl, known_identity

    upgrade = command.options.upgrade
    overrides = UpgradeOverrides(dict(upgrade.renamed or {}), frozenset(upgrade.drop_state))
    pipeline = load_pipeline(command.target, command.arguments)
    where = command.store_of(pipeline.name)
    plan = make_plan(pipeline, 1)
    opened = open_store(where, command.settings.get("store_key"))
    manifests = [EpochManifest.from_json(entry.body) for entry in opened.manifests()]
    console = Console()
    if not manifests:
        say(f"No checkpoint in {where} yet: a run starts with empty state.")
        return True
    try:
        known_identity(StoreUrl(where, StoreKey.given(command.settings.get("store_key"))))
    except StoreError as error:
        say_error(error.message)
        return False
    try:
        check_names(plan.graph)
        requests = [sentence(request) for request in earlier_requests(plan, opened)]
        plan = as_wanted(plan, opened, manifests[0], None)  # with the requests of `scale`
        begins = going_on(manifests, plan, manifests[0].log, overrides)
        if begins.unwritten:
            check_shares(begins.manifests[0], plan, lambda refs: [opened.get(ref) for ref in refs])
    except UserError as error:
        if manifests[0].pipeline == pipeline.name:
            console.print(_table(fates(manifests[0], plan, overrides), manifests[0].epoch))
        say_error(error.message)
        return False
    console.print(_table(fates(manifests[0], plan, overrides), manifests[0].epoch))
    for note in (*requests, *begins.notes):
        say(str(note))
    end = "it has finished: there is nothing left to do" if manifests[0].final else "a run resumes"
    say(f"Fits: {end} from epoch {manifests[0].epoch}.")
    return True


def _table(rows: dict[str, str], epoch: int) -> Table:
    table = Table(title=f"epoch {epoch}", title_justify="left")
    table.add_column("operator", no_wrap=True)
    table.add_column("its state", overflow="fold")
    for operator, fate in rows.items():
        table.add_row(escape(operator), escape(fate))
    return table
