"""Combines the subcommands into the `everstream` command."""

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from everstream.cli.commands import Commands
from everstream.errors import EverstreamError, InternalError, UserError
from everstream_command import INTERRUPTED


class Everstream(TyperGroup):
    """Loads the subcommand that is called; ends on Ctrl-C with the exit code that a shell expects."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": None})
        self.commands = Commands()

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="everstream",
    cls=Everstream,
    help="Stream processing on Spark that survives failure, and can prove it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"everstream {version('everstream')}")
        raise typer.Exit


@app.callback()
def everstream(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Stream processing on Spark that survives failure, and can prove it."""
    if context.invoked_subcommand != "config":  # it shows the environment unchanged
        os.environ.setdefault("EVERSTREAM_PROGRESS", "0")  # commands have their own screens


def main() -> None:
    """Run the command. An error is reported in one line; only a bug has a traceback."""
    try:
        app()
    except InternalError:
        raise
    except EverstreamError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, UserError) else 1)
