"""`everstream simulate`: the real protocol code in virtual time, under injected faults."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def register(app: typer.Typer) -> None:
    """Add the command to the `everstream` app."""
    app.command("simulate")(simulate)


def simulate(
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROTOCOL", help="Simulate only this protocol; repeatable.", show_default="all"
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs of each protocol.")] = 200,
    first: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
) -> None:
    """Simulate the checkpoint protocols under random faults, and check the output.

    Shards, coordinator, protocols and store are those of a real run; time, network and disk are
    simulated. Each seed is another pipeline with another sequence of faults: processes are killed
    or wrongly declared dead, power cuts lose data that was not synced, objects and prepared output
    are corrupted, writes time out and arrive later, clocks jump, and operators, sinks and the store
    raise errors.

    A run must be exact, or refused because data it needs is damaged beyond repair. Any other run
    is wrong and is printed with the command that replays it.

    Example: everstream simulate --seeds 2000

    Exit codes: 0 no run is wrong; 1 a run is wrong; 2 wrong usage.
    """
    from everstream.core.registry import PROTOCOLS
    from everstream.simulation.storm import VERDICTS, histories, replay_command, verdict_on

    unknown = [name for name in protocol or () if name not in PROTOCOLS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(PROTOCOLS)}")
    console = Console()
    table = Table(title=f"{seeds} runs of each protocol")
    for column in ("protocol", *VERDICTS, "recoveries", "faults"):
        table.add_column(column, justify="left" if column == "protocol" else "right")
    wrong = 0
    with console.status("simulating") as status:
        for name in protocol or PROTOCOLS:
            counts: Counter[str] = Counter()
            for history in histories(name, range(first, first + seeds)):
                verdict = verdict_on(history)
                counts.update([verdict])
                counts.update(recoveries=history.recoveries, faults=len(history.faults))
                if verdict == "wrong":
                    why = "; ".join(history.violations or history.notes[-1:])
                    console.print(f"seed {history.seed} is wrong: {why}", highlight=False)
                    console.print(f"  {replay_command(name, history.seed)}", highlight=False)
                status.update(f"{name}, seed {history.seed}")
            table.add_row(
                name, *(f"{counts[column]:,}" for column in (*VERDICTS, "recoveries", "faults"))
            )
            wrong += counts["wrong"]
    console.print(table)
    raise typer.Exit(1 if wrong else 0)
