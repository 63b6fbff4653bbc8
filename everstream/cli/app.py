"""Combines the subcommands into the `everstream` command."""

import os
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from everstream.cli import advise, annotate, guides
from everstream.cli.audit import audit
from everstream.cli.config import config
from everstream.cli.demo import demo
from everstream.cli.optional import WithOptionalValues
from everstream.cli.project.new import new
from everstream.cli.runs.command import run
from everstream.cli.simulate import simulate
from everstream.cli.stores import check, checkpoints, scale, tune
from everstream.cli.stores.savepoints import savepoint
from everstream.cli.views import top, ui
from everstream.errors import EverstreamError, InternalError, UserError
from everstream_command import INTERRUPTED

LABORATORY = {"bench", "apps", "model"}
"""Commands of the distribution `everstream-lab`."""


class Interruptible(TyperGroup):
    """Ends on Ctrl-C with the exit code that a shell expects."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="everstream",
    cls=Interruptible,
    help="Stream processing on Spark that survives failure, and can prove it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
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


# In the order of `everstream --help`: begin and run, observe and change a run, inspect its store, plan.
app.command(cls=WithOptionalValues)(run)
app.command(cls=WithOptionalValues)(config)
app.command()(demo)
app.command()(new)
ui.register(app)
top.register(app)
tune.register(app)
scale.register(app)
check.register(app)
checkpoints.register(app)
app.add_typer(savepoint, name="savepoint")
app.command()(audit)
advise.register(app)
annotate.register(app)
app.command()(simulate)
guides.register(app)


def _without_laboratory(context: typer.Context) -> None:
    raise UserError(
        f"'{context.command_path}' is part of the laboratory: pip install everstream-lab"
    )


def _point_to_laboratory(group: typer.Typer, names: Iterable[str]) -> None:
    """Make a command that is not installed tell the user how to install it."""
    commands = {command.name for command in group.registered_commands}
    groups = {inner.name for inner in group.registered_groups}
    for name in sorted(set(names) - commands - groups):
        group.command(
            name,
            hidden=True,
            add_help_option=False,
            context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        )(_without_laboratory)


# Other distributions add commands: a function `register(app)` in the group `everstream.commands`.
for _entry in entry_points(group="everstream.commands"):
    _entry.load()(app)
_point_to_laboratory(app, LABORATORY)


def main() -> None:
    """Run the command. An error is reported in one line; only a bug has a traceback."""
    try:
        app()
    except InternalError:
        raise
    except EverstreamError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, UserError) else 1)
