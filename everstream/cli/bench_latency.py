"""`everstream bench latency`: from due time to sink, at rates of choice."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from everstream.cli.json_file import JsonFile, write_json
from everstream.errors import UserError

console = Console()


def register(bench: typer.Typer) -> None:
    """Add the command to the `bench` group."""
    bench.command("latency")(latency)


def latency(
    rate: Annotated[
        str, typer.Option(help="Records per second; several with commas between them.")
    ] = "1000,10000,100000",
    seconds: Annotated[float, typer.Option(min=1, help="How long each rate is measured.")] = 10.0,
    json_file: JsonFile = None,
) -> None:
    """How long a record takes from when it was due to an at-least-once sink, at steady rates.

    A paced source in one process, a count per key and the sink in another, checkpoints every second.
    Waiting counts, be it for the rest of a frame. "standstill" is the longest time in which nothing
    came; "machine" how long the machine made an idle thread wait at worst, in the same run.

    Example: everstream bench latency --rate 1000,100000 --json latency.json
    """
    from everstream.bench.delays import measure, to_json

    rates = _rates(rate)
    with console.status("starting Spark") as status:
        found = measure(rates, seconds, status.update)
    head = ("records/s", "p50", "p99", "p99.9", "longest", "standstill", "machine")
    table = Table(*head, title="milliseconds; targets: p50 at most 0.7, p99.9 at most 5")
    for one in found:
        table.add_row(
            f"{one.rate:,.0f}",
            f"{one.p50_ms:.2f}",
            f"{one.p99_ms:.2f}",
            f"{one.p999_ms:.2f}",
            f"{one.longest_ms:.1f}",
            f"{one.standstill_ms:.1f}",
            f"{one.machine_stall_ms:.1f}",
        )
    console.print(table)
    if json_file is not None:
        write_json(json_file, to_json(found))
        console.print(f"figures written to {json_file}")


def _rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or any(not rate > 0 for rate in rates):
        raise UserError(f"--rate {text}: give positive numbers, as in --rate 1000,100000.")
    return rates
