"""`everstream tune`: show and change the settings of a running pipeline."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from everstream.cli.runs.command import StoreKeyFile
from everstream.cli.say import errors_in_one_line
from everstream.cli.stores.checkpoints import JsonFlag, StoreArgument
from everstream.errors import UserError
from everstream.pipeline.operators.batching import WRITTEN


def register(app: typer.Typer) -> None:
    app.command("tune")(tune)


def tune(
    store: StoreArgument,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OPERATOR.]NAME=VALUE",
            help="frequency=500, pattern=wave,10s,100,1000, batch=10 or interval=50ms; without any: "
            "show the current settings.",
        ),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="First restore the settings in the program.")
    ] = False,
    as_json: JsonFlag = False,
    store_key: StoreKeyFile = None,
) -> None:
    """Change load and batches of a pipeline while it runs; changes survive a restart.

    A name alone applies to every operator with such a setting, OPERATOR.NAME to one operator. The
    change is recorded in the store, where the run finds it within a second. Anyone who can write to
    the store can tune the run. If no run is active, the change applies from the next one on.

    Example: everstream tune .everstream/word-count frequency=500 batch=10

    Exit codes: 0 changed, or shown; 1 the store cannot be used; 2 wrong usage, or no such store,
    operator or setting.
    """
    from everstream.inspection import open_store
    from everstream.pipeline.tuning import merged, resolved
    from everstream.state.control import read_settings, read_tunable, record_settings

    with errors_in_one_line():
        blobs = open_store(store, store_key).blobs
        tunable = read_tunable(blobs)
        if tunable is None:
            raise UserError(
                f"nothing can be tuned in {store}: no run there has had a source that is paced "
                "(es.Paced) or a batch (stream.batch)."
            )
        changes = resolved(_parsed(settings or []), tunable)
        if reset:
            as_written = {name: dict.fromkeys(values, WRITTEN) for name, values in tunable.items()}
            changes = merged(as_written, changes)
        if changes:
            record_settings(blobs, changes)
        recorded = read_settings(blobs).settings
    now = {name: _now(values, recorded.get(name, {})) for name, values in tunable.items()}
    if as_json:
        typer.echo(json.dumps({"settings": now, "tuned": recorded}, indent=2))
        return
    table = Table("operator", "setting", "value", "written as")
    for name, values in now.items():
        for setting, value in values.items():
            written = tunable[name][setting]
            table.add_row(name, setting, value, "" if written == value else written)
    Console().print(table)


def _now(written: dict[str, str], tuned: dict[str, str]) -> dict[str, str]:
    changed = {name: value for name, value in tuned.items() if value != WRITTEN}
    return {**written, **changed}


def _parsed(texts: list[str]) -> dict[str, str]:
    wishes = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise UserError(f"'{text}': write NAME=VALUE, as in frequency=500.")
        wishes[name] = value
    return wishes
