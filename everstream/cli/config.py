"""`everstream config`: the options that apply to a run, and where each value comes from."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from everstream.cli.optional import WithOptionalValues
from everstream.cli.runs.flags import Given, configured_for, in_words, with_flags
from everstream.cli.say import errors_in_one_line
from everstream.engine.settings.configuration import Configured
from everstream.hiding import hidden_in, without_secret
from everstream.pipeline.options import SETTINGS, RunOptions

DEFAULT = "default"


def register(app: typer.Typer) -> None:
    """Add the command to the `everstream` app."""
    app.command("config", cls=WithOptionalValues)(config)


@with_flags
def config(
    given: Given,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[PIPELINE]",
            help="As for everstream run; everstream.toml is searched from its folder upwards.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the options that apply to a run, and where each value comes from.

    A flag overrides an environment variable (EVERSTREAM_WORKERS), which overrides everstream.toml or
    the table tool.everstream of pyproject.toml, which overrides the default. Accepts all flags of
    everstream run, so you can try them. User names and passwords in URLs are hidden.

    Example: everstream config examples/word_count.py --workers 2

    Exit codes: 0 all values are valid; 2 one is not, or there is no such option.
    """
    with errors_in_one_line():
        configured = configured_for(target)
        for name, value in in_words(given).items():
            configured[name] = Configured(value, f"flag {SETTINGS[name].flag}")
        RunOptions.from_settings({name: one.value for name, one in configured.items()})
    if as_json:
        typer.echo(json.dumps(_in_json(configured), indent=2))
    else:
        Console().print(_table(configured))


def _in_json(configured: dict[str, Configured]) -> dict[str, dict[str, Any]]:
    return {
        name: {"value": _shown(configured[name].value), "origin": configured[name].origin}
        if name in configured
        else {"value": setting.default, "origin": DEFAULT}
        for name, setting in SETTINGS.items()
    }


def _shown(value: Any) -> Any:
    """A value without its secrets."""
    return without_secret(value) if isinstance(value, str) and "://" in value else hidden_in(value)


def _table(configured: dict[str, Configured]) -> Table:
    table = Table("option", "value", "origin")
    for name, row in _in_json(configured).items():
        style = "dim" if row["origin"] == DEFAULT else None
        value = row["value"] if isinstance(row["value"], str) else json.dumps(row["value"])
        table.add_row(name, escape(value), escape(row["origin"]), style=style)
    return table
