"""`everstream bench load`: how near paced sources come to their load, live."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from everstream.cli.json_file import JsonFile, write_json

console = Console()
TARGET = 0.01


def register(bench: typer.Typer) -> None:
    """Add the command to the `bench` group."""
    bench.command("load")(load)


def load(
    rate: Annotated[
        list[float] | None,
        typer.Option(help="Highest rate; repeat for several. Default: 10, 1,000 and 100,000."),
    ] = None,
    period: Annotated[float, typer.Option(help="Seconds a pattern takes.")] = 3.0,
    periods: Annotated[int, typer.Option(min=1, help="How many of them to run.")] = 2,
    json_file: JsonFile = None,
) -> None:
    """Every pattern of load through a pipeline on Spark, held against its closed form.

    "off by" is the worst period's share, beyond the one item that may be due at its very end; "stall"
    how long the machine made an idle thread wait at worst, which no source can make up for. Then a
    pipeline that stands still for a second, with catching up and without: who does not catch up
    hides the backlog, and forfeits it.

    Example: everstream bench load --json load.json
    """
    from everstream.bench.load import compare_waiting, measure, to_json

    rates = rate or [10.0, 1_000.0, 100_000.0]
    with console.status("starting Spark") as status:
        kept = measure(rates, period, periods, status.update)
        held_up = compare_waiting(1_000.0, status.update)
    table = Table("load", "items due per period", "arrived", "off by", "latency", "stall", "target")
    for one in kept:
        table.add_row(
            one.load,
            ", ".join(f"{count:,.0f}" for count in one.items),
            ", ".join(f"{count:,.0f}" for count in one.given),
            f"{one.error:.2%}",
            f"{one.latency_ms:.1f} ms",
            f"{one.longest_stall_ms:.0f} ms",
            f"within {TARGET:.0%}",
        )
    console.print(table)
    waiting = Table("held up for a second", "mean latency", "largest", "records forfeited")
    for case in held_up:
        waiting.add_row(
            "catches up" if case.catch_up else "does not catch up",
            f"{case.latency_average_ms:.1f} ms",
            f"{case.latency_largest_ms:.1f} ms",
            f"{case.forfeited:,.0f}",
        )
    console.print(waiting)
    if json_file is not None:
        write_json(json_file, to_json(kept, held_up))
        console.print(f"figures written to {json_file}")
