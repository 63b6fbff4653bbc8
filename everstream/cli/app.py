"""Puts the subcommands together into one `everstream` command."""

import typer

from everstream.cli import bench_transactions

app = typer.Typer(
    name="everstream",
    help="Stream processing on Spark that survives failure, and can prove it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def everstream() -> None:
    """Stream processing on Spark that survives failure, and can prove it."""


bench = typer.Typer(name="bench", help="Measure Everstream.", no_args_is_help=True)
bench_transactions.register(bench)
app.add_typer(bench)


def main() -> None:
    app()
