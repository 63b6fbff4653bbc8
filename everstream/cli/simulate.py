"""`everstream simulate`: the queueing model, the CCRR study, the kernel, and runs full of faults."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from everstream.cli.json_file import write_json
from everstream.cli.simulate_faults import faults

if TYPE_CHECKING:
    from everstream.planning.grid import Row, Task
    from everstream.planning.model import Checkpoints, Failures, Model, Result

simulate_app = typer.Typer(
    help="Simulate checkpoints and failures before you run them.", no_args_is_help=True
)
simulate_app.command("faults")(faults)


def register(app: typer.Typer) -> None:
    """Add the command group to the `everstream` app."""
    app.add_typer(simulate_app, name="simulate")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


@simulate_app.command("run")
def run(
    operators: Annotated[int, typer.Option(min=1, help="Operators in a row, one per node.")] = 4,
    cpus: Annotated[int, typer.Option(min=1, help="CPUs per node.")] = 3,
    sources: Annotated[int, typer.Option(min=1, help="Sources, each with its own gaps.")] = 4,
    gap: Annotated[
        str, typer.Option(help="Gap between arrivals of a source.")
    ] = "normal:3.2ms,50us",
    entities: Annotated[int, typer.Option(min=1, help="Tuples per arrival.")] = 4,
    service: Annotated[str, typer.Option(help="Service time of a tuple.")] = "normal:80us,10us",
    graph: Annotated[
        Path | None,
        typer.Option(help="JSON with operators and sources instead of a line; see the docs."),
    ] = None,
    tuples: Annotated[int, typer.Option(min=1, help="Size of the window.")] = 1_000_000,
    interval: Annotated[str | None, typer.Option(help="Checkpoint interval, like 74s.")] = None,
    commit: Annotated[str, typer.Option(help="How long input stops for a checkpoint.")] = "1s",
    upload: Annotated[
        str, typer.Option(help="Until the checkpoint is stable, while work goes on (backlog).")
    ] = "0s",
    between_failures: Annotated[
        str | None, typer.Option(help="Gap between failures, like exponential:600s.")
    ] = None,
    failing: Annotated[
        str, typer.Option(help="Which operators fail: names with commas between.")
    ] = "operator 1",
    recovery: Annotated[str, typer.Option(help="How long a recovery takes.")] = "60s",
    detection: Annotated[str, typer.Option(help="Until a failure is noticed (backlog).")] = "0s",
    behaviour: Annotated[
        str, typer.Option(help="During a pause: discard, backlog, or both side by side.")
    ] = "both",
    target: Annotated[str, typer.Option(help="Count tuples later than this.")] = "1s",
    replications: Annotated[int, typer.Option(min=1, help="Independent windows.")] = 5,
    seed: Annotated[int, typer.Option(help="Same seed, same result.")] = 0,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the latency curve into this PNG.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write results as JSON.")] = None,
) -> None:
    """Simulate a line or graph of operators with checkpoints and failures.

    `discard` loses what arrives during a pause, as the CCRR study has it. `backlog` keeps it at a
    replayable source, as Everstream does: nothing is lost, and catching up takes time.

    Example: what does a failure every ten minutes do to 5000 tuples/s?

      everstream simulate run --interval 74s --between-failures poisson:600s --recovery 60s
    """
    from everstream.cli.simulate_results import results_table
    from everstream.planning import model as m
    from everstream.planning.graphs import read_graph
    from everstream.planning.units import QuantityError, parse_duration_s

    if figure is not None:
        from everstream.planning import figures
    console = Console()
    if behaviour not in ("discard", "backlog", "both"):
        raise typer.BadParameter(f"--behaviour is discard, backlog or both, not {behaviour!r}")
    if figure is not None and behaviour != "both":
        raise typer.BadParameter("--figure compares both: leave --behaviour at both")
    try:
        if graph is not None:
            nodes, feeds = read_graph(graph)
        else:
            names = tuple(f"operator {i + 1}" for i in range(operators))
            nodes = m.line(names, m.parse_distribution(service), cpus)
            feeds = (m.Source(names[0], m.parse_distribution(gap), entities),) * sources
        model = m.Model(
            nodes,
            feeds,
            tuples,
            _checkpoints(interval, commit, upload),
            _failures(between_failures, failing, recovery, detection),
            latency_target_s=parse_duration_s(target),
        )
        models = _behaving(model, behaviour)
    except (m.ModelError, QuantityError) as error:
        raise typer.BadParameter(str(error)) from error
    found = _replicated(models, replications, seed, console)
    console.print(results_table(model, found))
    if figure is not None:
        path = figures.behaviours(found["discard"][0], found["backlog"][0], figure)
        console.print(f"Figure: {path}")
    if json_file is not None:
        write_json(
            json_file, {name: [dataclasses.asdict(r) for r in runs] for name, runs in found.items()}
        )
        console.print(f"JSON: {json_file}")


def _checkpoints(interval: str | None, commit: str, upload: str) -> Checkpoints | None:
    from everstream.planning.model import Checkpoints
    from everstream.planning.units import parse_duration_s

    if interval is None:
        return None
    return Checkpoints(*map(parse_duration_s, (interval, commit, upload)))


def _failures(between: str | None, failing: str, recovery: str, detection: str) -> Failures | None:
    from everstream.planning.model import Failures, parse_distribution
    from everstream.planning.units import parse_duration_s

    if between is None:
        return None
    return Failures(
        tuple(name.strip() for name in failing.split(",")),
        parse_distribution(between),
        parse_duration_s(recovery),
        parse_duration_s(detection),
    )


def _behaving(model: Model, behaviour: str) -> dict[str, Model]:
    """The model as it is to be run, once or side by side."""
    found: dict[str, Model] = {}
    if behaviour != "backlog":
        found["discard"] = model.with_behaviour("discard")
    if behaviour != "discard":
        found["backlog"] = model.with_behaviour("backlog")
    return found


def _replicated(
    models: dict[str, Model], replications: int, seed: int, console: Console
) -> dict[str, list[Result]]:
    from everstream.planning.queueing import replicate

    found: dict[str, list[Result]] = {}
    with _progress(console) as progress:
        for name, model in models.items():
            bar = progress.add_task(name, total=replications * model.window_tuples)

            def advance(done: int, bar: Any = bar) -> None:
                progress.update(bar, completed=done)

            found[name] = replicate(model, replications, seed, advance)
    return found


@simulate_app.command("paper")
def paper(
    tuples: Annotated[int, typer.Option(min=10_000, help="Size of the window.")] = 10_000_000,
    replications: Annotated[int, typer.Option(min=2, help="Windows per case and rate.")] = 10,
    coarse: Annotated[
        int,
        typer.Option(min=1, help="Let one tuple stand for so many: same times, no waiting times."),
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
    Spark job. Stop it and start it again: it goes on where it was.

    Examples: the whole thing, and a quick version without the tables of waiting times:

      everstream simulate paper

      everstream simulate paper --coarse 100
    """
    from everstream.planning import grid, report

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

    from everstream.planning import grid

    builder = SparkSession.builder.master(master).appName("everstream simulate paper")
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
        with _progress(console) as progress:
            bar = progress.add_task("simulating", total=len(tasks))
            return grid.run(
                tasks, results, spark, lambda done, _: progress.update(bar, completed=done)
            )
    finally:
        spark.stop()


@simulate_app.command("bench")
def bench(
    tuples: Annotated[int, typer.Option(min=1000, help="Tuples for the kernel.")] = 10_000_000,
    simpy_tuples: Annotated[int, typer.Option(min=1000, help="Tuples for SimPy.")] = 50_000,
    rate: Annotated[int, typer.Option(help="Arrival rate, a multiple of 1250.")] = 5000,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here.")
    ] = None,
) -> None:
    """Measure the compiled kernel and the same model in SimPy, in one run.

    Example: everstream simulate bench --json reports/planning/bench.json
    """
    from everstream.planning import speed

    console = Console()
    with console.status("measuring") as status:
        found = speed.measure(tuples, simpy_tuples, rate, progress=status.update)
    table = Table(title=f"four operators, one node failing, {rate} tuples/s")
    for name in ("", "tuples", "wall s", "cpu s", "tuples/s"):
        table.add_column(name, justify="right")
    table.add_row("kernel", f"{found.kernel_tuples:,}", f"{found.kernel_wall_s:.2f}",
                  f"{found.kernel_cpu_s:.2f}", f"{found.kernel_tuples_per_s:,.0f}")  # fmt: skip
    table.add_row("SimPy", f"{found.simpy_tuples:,}", f"{found.simpy_wall_s:.2f}",
                  f"{found.simpy_cpu_s:.2f}", f"{found.simpy_tuples_per_s:,.0f}")  # fmt: skip
    console.print(table)
    console.print(f"The kernel is {found.ratio:,.0f} times as fast.")
    if json_file is not None:
        write_json(json_file, {**dataclasses.asdict(found), "ratio": found.ratio})
        console.print(f"JSON: {json_file}")
