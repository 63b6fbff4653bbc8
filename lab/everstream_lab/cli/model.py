"""`everstream model paper` and `everstream model bench`: the CCRR study, and the kernel's speed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from everstream.cli.options import JsonFile, write_json
from everstream_lab.cli.model_run import model_app, progress_bar
from everstream_lab.cli.showing import run_benchmark

if TYPE_CHECKING:
    from everstream_lab.queueing.grid import Row, Task


def register(app: typer.Typer) -> None:
    """Add `model`, with its commands."""
    app.add_typer(model_app, name="model")
    model_app.command("paper")(paper)
    model_app.command("bench")(bench)


def paper(
    tuples: Annotated[int, typer.Option(min=10_000, help="Size of the window.")] = 10_000_000,
    replications: Annotated[int, typer.Option(min=2, help="Windows per case and rate.")] = 10,
    coarse: Annotated[
        int,
        typer.Option(min=1, help="Tuples that one tuple represents: same times, no waiting times."),
    ] = 1,
    results: Annotated[
        str, typer.Option(help="Folder or fsspec address for the results of each window.")
    ] = "reports/planning/grid",
    out: Annotated[Path, typer.Option(help="Folder for figures and the JSON.")] = Path(
        "reports/planning"
    ),
    master: Annotated[str, typer.Option(help="Spark master to run the grid on.")] = "local[*]",
) -> None:
    """Reproduce figures 6 to 9 and tables 2 to 5 of the CCRR study, its numbers next to ours.

    The grid (4 cases, 8 arrival rates, 10 replications of 10 million tuples, and more) is one
    Spark job. Stop it and start it again: it resumes where it was.

    Examples: the whole thing, and a quick version without the tables of waiting times:

      everstream model paper

      everstream model paper --coarse 100
    """
    from everstream_lab.queueing import grid, report

    console = Console(width=max(110, Console().width))
    tasks = grid.paper_tasks(replications, tuples, coarse)
    todo = len(tasks) - len(grid.finished(tasks, results))
    console.print(f"{len(tasks)} tasks, {todo} to run, results in {results}")
    try:
        rows = _run_grid(tasks, results, master, console) if todo else grid.load(tasks, results)
    except grid.GridError as error:
        console.print(f"[red]{error}[/red]", highlight=False)
        raise typer.Exit(1) from error
    report.show(rows, tuples, waits=coarse == 1, console=console)
    for path in report.draw(rows, tuples, out):
        console.print(f"Figure: {path}")
    write_json(out / "paper.json", report.as_json(rows, tuples))
    console.print(f"JSON: {out / 'paper.json'}")


def _run_grid(tasks: list[Task], results: str, master: str, console: Console) -> list[Row]:
    from pyspark.sql import SparkSession

    from everstream_lab.queueing import grid

    builder = SparkSession.builder.master(master).appName("everstream model paper")
    builder = builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    if master.startswith("local"):
        # Nothing to listen for outside this machine.
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.driver.host", "127.0.0.1")
        # Workers on this machine must find the same packages as this process.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = builder.getOrCreate()
    # A failed task is reported below in one line; Spark would print its stack four times.
    spark.sparkContext.setLogLevel("OFF")
    try:
        with progress_bar(console) as progress:
            bar = progress.add_task("simulating", total=len(tasks))
            return grid.run(
                tasks, results, spark, lambda done, _: progress.update(bar, completed=done)
            )
    finally:
        spark.stop()


def bench(
    tuples: Annotated[int, typer.Option(min=1000, help="Tuples for the kernel.")] = 10_000_000,
    simpy_tuples: Annotated[int, typer.Option(min=1000, help="Tuples for SimPy.")] = 50_000,
    rate: Annotated[int, typer.Option(help="Arrival rate, a multiple of 1250.")] = 5000,
    json_file: JsonFile = None,
) -> None:
    """Measure the compiled kernel and the same model in SimPy, in one run.

    Example: everstream model bench --json reports/planning/bench.json
    """
    from everstream_lab.queueing import speed

    run_benchmark(
        lambda progress: speed.measure(tuples, simpy_tuples, rate, progress=progress), json_file
    )
