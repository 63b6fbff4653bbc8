"""Puts the subcommands together into one `everstream` command."""

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from everstream.cli import (
    advise,
    annotate,
    apps_exec,
    apps_reports,
    bench_connectors,
    bench_items,
    bench_latency,
    bench_load,
    bench_protocols,
    bench_takeover,
    bench_transactions,
    check,
    checkpoints,
    scale,
    simulate,
    top,
    tune,
    ui,
)
from everstream.cli.apps import apps
from everstream.cli.audit import audit
from everstream.cli.bench import bench
from everstream.cli.demo import demo
from everstream.cli.optional import WithOptionalValues
from everstream.cli.run import run
from everstream.cli.savepoints import savepoint
from everstream.errors import EverstreamError, InternalError, UserError

app = typer.Typer(
    name="everstream",
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
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Stream processing on Spark that survives failure, and can prove it."""
    os.environ.setdefault("EVERSTREAM_PROGRESS", "0")  # commands have screens of their own


# In the order of `everstream --help`: what one runs, what one looks at, what one asks before.
app.command(cls=WithOptionalValues)(run)
app.command()(demo)
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
simulate.register(app)
bench_transactions.register(bench)
bench_protocols.register(bench)
bench_latency.register(bench)
bench_takeover.register(bench)
bench_load.register(bench)
bench_connectors.register(bench)
bench_items.register(bench)
app.add_typer(bench, name="bench")
apps_exec.register(apps)
apps_reports.register(apps)
app.add_typer(apps, name="apps")


def main() -> None:
    """The command. What goes wrong is said in a sentence, not as a traceback, unless it is a bug."""
    try:
        app()
    except InternalError:
        raise
    except EverstreamError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, UserError) else 1)
