"""`everstream bench takeover`: from the death of one machine to the output of the next."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from everstream.cli.json_file import JsonFile, write_json

console = Console()


def register(bench: typer.Typer) -> None:
    """Add the command to the `bench` group."""
    bench.command("takeover")(takeover)


def takeover(
    rounds: Annotated[int, typer.Option(min=1, help="Takeovers.")] = 3,
    after: Annotated[str, typer.Option(help="So long a silence is taken for death.")] = "1.5s",
    json_file: JsonFile = None,
) -> None:
    """How fast a standby goes on when monitor, driver and Java of the first are killed at once.

    Two `everstream run` on one store, the second with --standby and Spark warm. Prints the time
    from SIGKILL to the second's first output, how much of it was spent waiting for a sign of life,
    and checks that what both have shown is exact.

    Example: everstream bench takeover --json takeover.json
    """
    from everstream.bench.takeover import measure

    with console.status("starting") as status:
        runs = [measure(after=after, progress=status.update) for _ in range(rounds)]
    table = Table("figure", "best", "median", "target")
    for name, target in (("takeover_s", "at most 3.0"), ("silent_s", "")):
        values = sorted(getattr(run, name) for run in runs)
        table.add_row(name, f"{values[0]:.3f}", f"{values[len(values) // 2]:.3f}", target)
    lost, duplicated = (sum(getattr(run, n) for run in runs) for n in ("lost", "duplicated"))
    table.add_row("lost", str(lost), str(lost), "0")
    table.add_row("duplicated", str(duplicated), str(duplicated), "0")
    console.print(table)
    if json_file is not None:
        runs.sort(key=lambda run: run.takeover_s)
        middle = runs[len(runs) // 2]
        figures = {"takeover_s": middle.takeover_s, "silent_s": middle.silent_s}
        counts = {"lost": lost, "duplicated": duplicated}
        write_json(json_file, {**figures, **counts, "runs": [vars(run) for run in runs]})
        console.print(f"figures written to {json_file}")
    if lost or duplicated:
        raise typer.Exit(1)
