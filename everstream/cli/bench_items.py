"""`everstream bench items`: what the way from source to sink costs an item."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from everstream.cli.json_file import JsonFile, write_json

console = Console()


def register(bench: typer.Typer) -> None:
    """Add the command to the `bench` group."""
    bench.command("items")(items)


def items(
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Items that travel together; repeat. Default: 1 and 100."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="About how long each run is.")] = 3.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the best one counts.")] = 3,
    json_file: JsonFile = None,
) -> None:
    """What an item takes from source to sink when nothing is done to it, checkpoints on.

    In one process, over a channel to another, and through a farm of two shards into an ordered sink;
    in microseconds per item, from the first one's arrival at the sink to the last one's.

    Example: everstream bench items --json items.json
    """
    from everstream.bench.items import measure, to_json

    with console.status("starting Spark") as status:
        costs = measure(batch or [1, 100], seconds, rounds, status.update)
    table = Table("pipeline", "batch", "items", "per item", "rounds", "target")
    for one in costs:
        table.add_row(
            one.shape,
            f"{one.batch:,}",
            f"{one.items:,}",
            f"{one.best_us:.2f} µs",
            ", ".join(f"{took_us:.2f}" for took_us in one.rounds_us),
            "" if one.target_us is None else f"below {one.target_us:g} µs",
        )
    console.print(table)
    if json_file is not None:
        write_json(json_file, to_json(costs))
        console.print(f"figures written to {json_file}")
