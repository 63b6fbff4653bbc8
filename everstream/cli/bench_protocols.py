"""`everstream bench protocols`: every checkpoint protocol on the same queries, with a real kill."""

import json
import platform
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

console = Console()
WIDTH = 170
"""The tables need so many columns; a narrower terminal wraps them."""


class ProtocolName(StrEnum):
    COORDINATED = "coordinated"
    UNALIGNED = "unaligned"
    AT_LEAST_ONCE = "at-least-once"
    UNCOORDINATED = "uncoordinated"
    HMNR = "hmnr"
    BCS = "bcs"
    MEMORY = "memory"


class Failure(StrEnum):
    NONE = "none"
    ONE = "one"
    BOTH = "both"


def register(bench: typer.Typer) -> None:
    """Add the command to the `bench` group."""
    bench.command("protocols")(protocols)


def protocols(
    query: Annotated[
        list[str] | None,
        typer.Option(help="A query; repeat for several. Default: all of the paper's."),
    ] = None,
    protocol: Annotated[
        list[ProtocolName] | None,
        typer.Option(
            help="A protocol; repeat for several. 'memory': uncoordinated, logs in memory."
        ),
    ] = None,
    interval: Annotated[
        list[str] | None,
        typer.Option(metavar="1s", help="Time between checkpoints; default: the paper's, scaled."),
    ] = None,
    failure: Annotated[Failure, typer.Option(help="Without a kill, with one, or both.")] = (
        Failure.BOTH
    ),
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each kind.")] = 3,
    run_time: Annotated[str, typer.Option(metavar="14s", help="How long a run lasts.")] = "14s",
    speed: Annotated[float, typer.Option(help="Multiplies all input rates.")] = 1.0,
    costs: Annotated[
        bool, typer.Option(help="Also measure at full speed what logs and vectors cost.")
    ] = True,
    json_file: Annotated[
        Path,
        typer.Option(
            "--json", metavar="FILE", help="Results; runs found in here are not run again."
        ),
    ] = Path("reports/protocols.json"),
    html_file: Annotated[
        Path, typer.Option("--html", metavar="FILE", help="The report, with curves and tables.")
    ] = Path("reports/protocols.html"),
) -> None:
    """Compare checkpoint protocols on FERDiS's queries, with and without a SIGKILL.

    Every run is paced, its latency is measured from the moment records were due, and its output
    is held against plain SQL. The whole grid takes hours: it can be stopped at any time, and the
    same command goes on where it was.

    Example: everstream bench protocols --query nhop --protocol uncoordinated --protocol hmnr
    --repeats 1
    """
    from everstream.bench.protocols.costs import Costs, measure_costs
    from everstream.bench.protocols.grid import (
        KILL_S,
        PAPER_INTERVALS_S,
        PAPER_QUERIES,
        PROTOCOLS,
        RUN_S,
        Setting,
        cells,
    )
    from everstream.bench.protocols.measure import measure, results_of
    from everstream.bench.protocols.report import write_report
    from everstream.pipeline.checkpointing import seconds

    run_s = seconds(run_time)
    setting = Setting(run_s=run_s, kill_s=KILL_S * run_s / RUN_S, speed=speed)
    intervals_s = [seconds(given) for given in interval or ()]
    grid = cells(
        query or list(PAPER_QUERIES),
        [name.value for name in protocol or ()] or list(PROTOCOLS),
        intervals_s or [paper_s / setting.factor for paper_s in PAPER_INTERVALS_S],
        {Failure.NONE: [False], Failure.ONE: [True], Failure.BOTH: [False, True]}[failure],
        repeats,
    )
    done = results_of(json_file)
    kept_costs = _costs_in(json_file)
    found_costs = Costs(**kept_costs) if kept_costs is not None else None

    def save() -> None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        body = {
            "machine": {"python": platform.python_version(), "system": platform.platform()},
            "factor": setting.factor,
            "costs": None if found_costs is None else found_costs.to_json(),
            "runs": [measured.to_json() for measured in done.values()],
        }
        partial = json_file.with_suffix(".partial")
        partial.write_text(json.dumps(body))
        partial.replace(json_file)

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("starting Spark", total=len(grid))
        for cell in grid:
            progress.update(task, description=cell.key)
            if cell.key not in done:
                done[cell.key] = measure(cell, setting)
                save()
            progress.advance(task)
        if costs and found_costs is None:
            found_costs = measure_costs(
                progress=lambda text: progress.update(task, description=text)
            )
            save()
    runs = [done[cell.key] for cell in grid]
    _print(runs, setting, found_costs)
    write_report(runs, setting, found_costs, html_file)
    console.print(f"results: {json_file}   report: {html_file}")


def _costs_in(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    found: dict[str, Any] | None = json.loads(file.read_text()).get("costs")
    return found


def _print(runs: Any, setting: Any, costs: Any) -> None:
    from everstream.bench.protocols.summary import calm_table, killed_table, rows_of, verdicts

    rows = rows_of(runs)
    for title, (head, lines) in (
        ("without failures", calm_table(rows, setting)),
        ("with one kill (the paper's seconds are scaled)", killed_table(rows, setting)),
    ):
        if lines:
            table = Table(*head, title=title, title_justify="left", box=None, header_style="bold")
            for line in lines:
                table.add_row(*line)
            Console(width=max(console.width, WIDTH)).print(table)
    for text, good in verdicts(rows):
        console.print(f"[{'green' if good else 'red'}]{'yes' if good else 'NO '}[/] {text}")
    if costs is not None:
        console.print(f"log_cost {costs.log_cost:.3f} (at most 0.10 wanted, NEXMark 2)")
        console.print(f"cic_cost {costs.cic_cost:.3f} (at most 0.05 wanted, NHop)")
