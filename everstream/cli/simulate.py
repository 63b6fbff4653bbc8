"""`everstream simulate`: the engine itself in virtual time, with everything going wrong."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def simulate(
    protocol: Annotated[
        list[str] | None,
        typer.Option(help="Only this protocol; repeat it for several.", show_default="all"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each protocol.")] = 200,
    first: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
) -> None:
    """Run checkpoint protocols in virtual time while everything goes wrong, and check the output.

    Shards, coordinator, protocols and store are those of a real run; time, network and disk are
    simulated. Each seed is another pipeline and another history: processes are killed or only
    thought dead, the power is cut and takes what was not synced, objects and prepared output rot,
    puts time out and land later, clocks are set back and forth, and operators, sinks and the store
    raise errors of every kind.

    A run is exact, or it is refused because what it needs is damaged beyond help. Anything else is
    wrong, is shown with the command that replays it, and makes the exit code 1.

    Example: what every release must pass:

      everstream simulate --seeds 2000
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
