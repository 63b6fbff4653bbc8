"""`everstream bench protocols`: every checkpoint protocol on the same queries, with a real kill."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from everstream.core.registry import PROTOCOLS

if TYPE_CHECKING:
    from everstream_lab.bench.protocols.grid import Cell, Setting
    from everstream_lab.bench.protocols.results import Results

console = Console()
WIDTH = 200
"""The width that the tables need; a narrower terminal wraps them."""


class Place(StrEnum):
    SINK = "sink"
    KAFKA = "kafka"


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
        list[str] | None,
        typer.Option(
            help=f"A protocol; repeat for several. Default: {', '.join(PROTOCOLS)}.",
            autocompletion=lambda: list(PROTOCOLS),
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option(help="Run protocols with logs also with logs in memory, as FERDiS had them."),
    ] = True,
    microbatch: Annotated[
        bool,
        typer.Option(help='Run aligned also with engine="microbatch", as one more protocol.'),
    ] = True,
    interval: Annotated[
        list[str] | None,
        typer.Option(metavar="1s", help="Time between checkpoints; default: the paper's, scaled."),
    ] = None,
    failure: Annotated[Failure, typer.Option(help="Without a kill, with one, or both.")] = (
        Failure.BOTH
    ),
    measure_at: Annotated[
        Place,
        typer.Option(
            help="Time output in the sink, or outside by a Kafka broker that is started for each run "
            "(scripts/kafka.sh installs it)."
        ),
    ] = Place.SINK,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each kind.")] = 3,
    run_time: Annotated[str, typer.Option(metavar="14s", help="How long a run lasts.")] = "14s",
    speed: Annotated[float, typer.Option(help="Multiplies all input rates.")] = 1.0,
    costs: Annotated[
        bool, typer.Option(help="Also measure at full speed what logs and vectors cost.")
    ] = True,
    rounds: Annotated[int, typer.Option(min=1, help="How often each of these is measured.")] = 3,
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
    is compared with plain SQL. The whole grid takes hours: you can stop it at any time, and the
    same command resumes where it stopped.

    Example: everstream bench protocols --query nhop --protocol uncoordinated --protocol hmnr
    --repeats 1
    """
    from everstream.pipeline.checkpointing import seconds
    from everstream_lab.bench.protocols.grid import (
        KILL_S,
        PAPER_INTERVALS_S,
        PAPER_QUERIES,
        RUN_S,
        Setting,
        cells,
    )
    from everstream_lab.bench.protocols.report import write_report
    from everstream_lab.bench.protocols.results import Results

    run_s = seconds(run_time)
    setting = Setting(run_s=run_s, kill_s=KILL_S * run_s / RUN_S, speed=speed)
    intervals_s = [seconds(given) for given in interval or ()]
    grid = cells(
        query or list(PAPER_QUERIES),
        protocol or list(PROTOCOLS),
        intervals_s or [paper_s / setting.factor for paper_s in PAPER_INTERVALS_S],
        {Failure.NONE: [False], Failure.ONE: [True], Failure.BOTH: [False, True]}[failure],
        repeats,
        memory=memory,
        microbatch=microbatch,
        at=measure_at.value,
    )
    results = Results(json_file)
    _measure_missing(grid, setting, results, rounds if costs else 0)
    runs = [results.runs[cell.key] for cell in grid]
    _print(runs, setting, results.costs)
    write_report(runs, setting, results.costs, html_file)
    console.print(f"results: {json_file}   report: {html_file}")


def _measure_missing(
    grid: "Sequence[Cell]", setting: "Setting", results: "Results", rounds: int
) -> None:
    from everstream_lab.bench.protocols.costs import measure_costs
    from everstream_lab.bench.protocols.measure import measure

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("starting Spark", total=len(grid))
        for cell in grid:
            progress.update(task, description=cell.key)
            if cell.key not in results.runs:
                results.runs[cell.key] = measure(cell, setting)
                results.save(setting)
            progress.advance(task)
        if rounds and results.costs is None:
            results.costs = measure_costs(
                rounds, progress=lambda text: progress.update(task, description=text)
            )
            results.save(setting)


def _print(runs: Any, setting: Any, costs: Any) -> None:
    from everstream_lab.bench.protocols.summary import calm_table, killed_table, rows_of, verdicts

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
