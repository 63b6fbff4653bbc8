"""Puts the subcommands together into one `everstream` command."""

import typer

from everstream.cli.bench import bench

app = typer.Typer(
    name="everstream",
    help="Stream processing on Spark that survives failure, and can prove it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


app.add_typer(bench, name="bench")


@app.callback()
def everstream() -> None:
    """Stream processing on Spark that survives failure, and can prove it."""


def main() -> None:
    app()
