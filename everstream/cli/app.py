"""Puts the subcommands together into one `everstream` command."""

import typer

from everstream.cli import advise, simulate

app = typer.Typer(
    name="everstream",
    help="Stream processing on Spark that survives failure, and can prove it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def everstream() -> None:
    """Stream processing on Spark that survives failure, and can prove it."""


advise.register(app)
simulate.register(app)


def main() -> None:
    app()
