"""`everstream savepoint`: keep a checkpoint under a name, list, delete, export and import them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from everstream.cli.runs.command import StoreKeyFile
from everstream.cli.say import errors_in_one_line, in_words
from everstream.cli.stores.checkpoints import StoreArgument
from everstream.errors import UserError

if TYPE_CHECKING:
    from everstream.state.objects import ObjectRef
    from everstream.state.savepoints import Savepoint

savepoint = typer.Typer(
    help="Take, list, move and delete savepoints: named checkpoints, kept until you delete them.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, '.', '_' and '-'.")]
Place = Annotated[str, typer.Argument(metavar="STORE@NAME", help="Which savepoint.")]


def register(app: typer.Typer) -> None:
    """Add the group to the `everstream` app."""
    app.add_typer(savepoint, name="savepoint")


@savepoint.command()
def take(store: StoreArgument, name: Name, store_key: StoreKeyFile = None) -> None:
    """Copy the newest checkpoint of a store and keep it under a name; works during a run.

    The copy survives everything that happens to the checkpoints of the store, including --fresh. To
    roll back to it, use 'everstream rewind STORE --to NAME'. To start another run from it, with
    separate output, use 'everstream run app.py --store OTHER --start-from STORE@NAME'.

    Example: everstream savepoint take .everstream/word-count before-upgrade
    """
    from everstream.inspection import open_store
    from everstream.state.savepoints import take_savepoint

    with errors_in_one_line():
        taken = take_savepoint(open_store(store, store_key), name, time.time())
    typer.echo(f"Savepoint '{name}' is epoch {taken.epoch}, {in_words(taken.size_bytes)}.")


@savepoint.command("list")
def list_all(store: StoreArgument, store_key: StoreKeyFile = None) -> None:
    """List the savepoints of a store.

    Example: everstream savepoint list .everstream/word-count
    """
    from everstream.inspection import open_store
    from everstream.state.savepoints import savepoints_in

    with errors_in_one_line():
        savepoints = savepoints_in(open_store(store, store_key))
    if not savepoints:
        typer.echo("No savepoints. 'everstream savepoint take STORE NAME' takes one.")
        return
    table = Table("name", "epoch", "taken", "size", "from")
    for kept in sorted(savepoints, key=lambda kept: kept.taken_at):
        table.add_row(
            escape(kept.name),
            str(kept.epoch),
            datetime.fromtimestamp(kept.taken_at).strftime("%Y-%m-%d %H:%M:%S"),
            in_words(kept.size_bytes),
            ("here" if kept.slot is not None else "imported") + (", edited" if kept.edited else ""),
        )
    Console().print(table)


@savepoint.command()
def delete(store: StoreArgument, name: Name, store_key: StoreKeyFile = None) -> None:
    """Delete a savepoint; runs that started from it have their own copy.

    Example: everstream savepoint delete .everstream/word-count before-upgrade
    """
    from everstream.inspection import open_store
    from everstream.state.savepoints import delete_savepoint

    with errors_in_one_line():
        delete_savepoint(open_store(store, store_key), name)
    typer.echo(f"Savepoint '{name}' is deleted.")


@savepoint.command()
def export(
    place: Place,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Tar archive to create.")],
    store_key: StoreKeyFile = None,
) -> None:
    """Export a savepoint to one file, to move it elsewhere.

    Protect the file like the store. It contains the state in plain form: anyone who can read it can
    read all data in it, and anyone who can change it can run code where it is restored.

    Example: everstream savepoint export .everstream/word-count@before-upgrade upgrade.tar
    """
    from everstream.inspection import open_store
    from everstream.state.savepoints import export_savepoint
    from everstream.state.savepoints import savepoint as find

    with errors_in_one_line():
        store, _, name = place.rpartition("@")
        if not store:
            raise UserError(f"'{place}' names no savepoint: write STORE@NAME.")
        opened = open_store(store, store_key)
        kept = find(opened, name)
        with _shown("exporting", kept) as notify:
            export_savepoint(opened, kept, file, notify)
    typer.echo(f"{file}: savepoint '{name}', epoch {kept.epoch}, {in_words(kept.size_bytes)}.")


@savepoint.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that export wrote.")],
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="Folder or fsspec URL; created if missing.")
    ],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="New name; default: the one it had.")
    ] = None,
    store_key: StoreKeyFile = None,
) -> None:
    """Import an exported savepoint into a store, so that runs can start from it.

    Example: everstream savepoint import upgrade.tar stores/archive

    and then: everstream run app.py --store stores/new --start-from stores/archive@before-upgrade
    """
    from everstream.state.savepoints import import_savepoint
    from everstream.state.signing import StoreKey
    from everstream.state.store import CheckpointStore

    with errors_in_one_line():
        opened = CheckpointStore.at(store, StoreKey.given(store_key))
        with _shown("importing", None) as notify:
            kept = import_savepoint(opened, file, name, notify)
    typer.echo(f"Savepoint '{kept.name}' is epoch {kept.epoch} of pipeline '{kept.pipeline}'.")


@contextmanager
def _shown(what: str, kept: "Savepoint | None") -> "Iterator[Callable[[ObjectRef], None]]":
    """A progress bar, on a terminal."""
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=kept.size_bytes if kept is not None else None)
        yield lambda ref: bar.advance(task, ref.size_bytes)
