"""`everstream savepoint`: keep a checkpoint under a name, list, delete, export and import them."""

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from everstream.cli.runs.command import StoreKeyFile
from everstream.cli.stores.checkpoints import StoreArgument, errors_in_one_line, in_words
from everstream.errors import UserError

if TYPE_CHECKING:
    from everstream.state.objects import ObjectRef
    from everstream.state.savepoints import Savepoint

savepoint = typer.Typer(
    help="Checkpoints with a name, kept until they are deleted: take, list, move and delete them.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, '.', '_' and '-'.")]
Place = Annotated[str, typer.Argument(metavar="STORE@NAME", help="Which savepoint.")]


@savepoint.command()
def take(store: StoreArgument, name: Name, store_key: StoreKeyFile = None) -> None:
    """Keep the newest checkpoint of a store under a name. A run may be going on there.

    It is copied, so whatever happens to the store's checkpoints, --fresh included, it stays. A later
    run goes back to it with 'everstream rewind STORE --to NAME', or begins with it elsewhere, with
    output of its own: 'everstream run app.py --store OTHER --start-from STORE@NAME'.

    Example: everstream savepoint take .everstream/word-count before-upgrade
    """
    from everstream.inspection import open_store
    from everstream.state.savepoints import take_savepoint

    with errors_in_one_line():
        taken = take_savepoint(open_store(store, store_key), name, time.time())
    typer.echo(f"Savepoint '{name}' is epoch {taken.epoch}, {in_words(taken.size_bytes)}.")


@savepoint.command("list")
def list_all(store: StoreArgument, store_key: StoreKeyFile = None) -> None:
    """Show the savepoints of a store.

    Example: everstream savepoint list .everstream/word-count
    """
    from everstream.inspection import open_store
    from everstream.state.savepoints import savepoints_in

    with errors_in_one_line():
        found = savepoints_in(open_store(store, store_key))
    if not found:
        typer.echo("No savepoints. 'everstream savepoint take STORE NAME' takes one.")
        return
    table = Table("name", "epoch", "taken", "size", "from")
    for kept in sorted(found, key=lambda kept: kept.taken_at):
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
    """Delete a savepoint. Runs that began with it are not touched: they have copies of their own.

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
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A tar archive, to be made.")],
    store_key: StoreKeyFile = None,
) -> None:
    """Write a savepoint into one file, to be carried elsewhere.

    The file holds the state as it is: whoever can read it can read all that the pipeline knows, and
    whoever can change it can run code where it is restored. Keep it like the store.

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
        with _shown("exporting", kept) as told:
            export_savepoint(opened, kept, file, told)
    typer.echo(f"{file}: savepoint '{name}', epoch {kept.epoch}, {in_words(kept.size_bytes)}.")


@savepoint.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What export has written.")],
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="Folder or fsspec URL; made if it is not there.")
    ],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Another name than the one it had.")
    ] = None,
    store_key: StoreKeyFile = None,
) -> None:
    """Put an exported savepoint into a store, where runs can begin with it.

    Example: everstream savepoint import upgrade.tar stores/archive

    and then: everstream run app.py --store stores/new --start-from stores/archive@before-upgrade
    """
    from everstream.state.savepoints import import_savepoint
    from everstream.state.signing import StoreKey
    from everstream.state.store import CheckpointStore

    with errors_in_one_line():
        opened = CheckpointStore.at(store, StoreKey.given(store_key))
        with _shown("importing", None) as told:
            kept = import_savepoint(opened, file, name, told)
    typer.echo(f"Savepoint '{kept.name}' is epoch {kept.epoch} of pipeline '{kept.pipeline}'.")


class _shown:
    """A bar for what may take long, on a terminal."""

    def __init__(self, what: str, kept: "Savepoint | None") -> None:
        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(what, total=kept.size_bytes if kept is not None else None)

    def __enter__(self) -> "_shown":
        self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()

    def __call__(self, ref: "ObjectRef") -> None:
        self._bar.advance(self._task, ref.size_bytes)
