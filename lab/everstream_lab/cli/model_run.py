"""`everstream model run`: a queueing model of a pipeline with checkpoints and failures."""

from __future__ import annotations

import dataclasses
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

from everstream.cli.options import option, write_json

if TYPE_CHECKING:
    from everstream_lab.queueing.model import Behaviour, Model, Result

FAULTS, OUTPUT = "Checkpoints and failures", "Output"
"""Panels of `--help`."""
model_app = typer.Typer(
    help="Model checkpoints and failures as a queueing network, before you run anything.",
    no_args_is_help=True,
)


def progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


@model_app.command("run")
def run(
    operators: Annotated[int, option("Operators in a row, one per node.", min=1)] = 4,
    cpus: Annotated[int, option("CPUs per node.", min=1)] = 3,
    sources: Annotated[int, option("Number of sources.", min=1)] = 4,
    gap: Annotated[str, option("Gap between arrivals at a source.", "TIMES")] = "normal:3.2ms,50us",
    entities: Annotated[int, option("Tuples per arrival.", min=1)] = 4,
    service: Annotated[str, option("Service time of a tuple.", "TIMES")] = "normal:80us,10us",
    graph: Annotated[
        Path | None, option("JSON with operators and sources, instead of a line.", "FILE")
    ] = None,
    load: Annotated[
        str | None,
        option("Load of each source in place of a gap, such as wave,60s,500,5000.", "LOAD"),
    ] = None,
    tuples: Annotated[int, option("Size of the window, in tuples.", min=1)] = 1_000_000,
    window: Annotated[
        str | None, option("Size of the window as a time, in place of tuples.", "TIME")
    ] = None,
    interval: Annotated[
        str | None, option("Checkpoint interval, such as 74s.", "TIME", FAULTS)
    ] = None,
    commit: Annotated[str, option("How long input stops for a checkpoint.", "TIME", FAULTS)] = "1s",
    upload: Annotated[
        str, option("Time until a checkpoint is stable; work continues (backlog).", "TIME", FAULTS)
    ] = "0s",
    between_failures: Annotated[
        str | None, option("Gap between failures, such as exponential:600s.", "TIMES", FAULTS)
    ] = None,
    failing: Annotated[
        str, option("Operators that fail, separated by commas.", "NAMES", FAULTS)
    ] = "operator 1",
    recovery: Annotated[str, option("Duration of a recovery.", "TIME", FAULTS)] = "60s",
    detection: Annotated[
        str, option("Time until a failure is detected (backlog).", "TIME", FAULTS)
    ] = "0s",
    behaviour: Annotated[
        str, option("What happens to arrivals during a pause.", "discard|backlog|both", FAULTS)
    ] = "both",
    target: Annotated[str, option("Count tuples later than this.", "TIME", OUTPUT)] = "1s",
    replications: Annotated[int, option("Independent windows.", panel=OUTPUT, min=1)] = 5,
    seed: Annotated[int, option("The same seed gives the same result.", panel=OUTPUT)] = 0,
    figure: Annotated[
        Path | None, option("Draw the latency curve into this PNG.", "FILE", OUTPUT)
    ] = None,
    json_file: Annotated[
        Path | None, option("Write the results to this file.", "FILE", OUTPUT, "--json")
    ] = None,
) -> None:
    """Simulate a line or graph of operators with checkpoints and failures.

    `discard` loses tuples that arrive during a pause, as the CCRR study does. `backlog` keeps them
    at a replayable source, as Everstream does: nothing is lost, and catching up takes time.

    Example: everstream model run --interval 74s --between-failures poisson:600s --recovery 60s
    """
    from everstream.connectors.generate.load import Load
    from everstream.planning.units import QuantityError, parse_duration_s
    from everstream_lab.queueing import model as m
    from everstream_lab.queueing.graphs import read_graph

    if figure is not None:
        from everstream_lab.queueing import figures
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
            source = m.SourceModel(names[0], m.parse_distribution(gap), entities)
            if load is not None:
                source = m.SourceModel(names[0], entities=entities, load=Load.parse(load))
            feeds = (source,) * sources
        checkpoints = failures = None
        if interval is not None:
            checkpoints = m.Checkpoints(*map(parse_duration_s, (interval, commit, upload)))
        if between_failures is not None:
            failures = m.Failures(
                tuple(name.strip() for name in failing.split(",")),
                m.parse_distribution(between_failures),
                parse_duration_s(recovery),
                parse_duration_s(detection),
            )
        target_s = parse_duration_s(target)
        window_s = None if window is None else parse_duration_s(window)
        model = m.Model(
            nodes,
            feeds,
            tuples if window_s is None else 0,
            checkpoints,
            failures,
            latency_target_s=target_s,
            window_s=window_s,
        )
        both: tuple[Behaviour, ...] = ("discard", "backlog")
        models: dict[str, Model] = {
            name: model.with_behaviour(name) for name in both if behaviour in (name, "both")
        }
    except (m.ModelError, QuantityError) as error:
        raise typer.BadParameter(str(error)) from error
    results = _replicated(models, replications, seed, console)
    console.print(_results_table(model, results))
    if figure is not None:
        path = figures.behaviours(results["discard"][0], results["backlog"][0], figure)
        console.print(f"Figure: {path}")
    if json_file is not None:
        plain = {name: [dataclasses.asdict(r) for r in runs] for name, runs in results.items()}
        write_json(json_file, plain)
        console.print(f"JSON: {json_file}")


def _replicated(
    models: dict[str, Model], replications: int, seed: int, console: Console
) -> dict[str, list[Result]]:
    from everstream_lab.queueing.simulation import replicate

    results: dict[str, list[Result]] = {}
    with progress_bar(console) as progress:
        for name, model in models.items():
            bar = progress.add_task(name, total=replications * model.expected_tuples)

            def advance(done: int, bar: Any = bar) -> None:
                progress.update(bar, completed=done)

            results[name] = replicate(model, replications, seed, advance)
    return results


def _results_table(model: Model, results: dict[str, list[Result]]) -> Table:
    from everstream_lab.queueing.simulation import estimate

    table = Table(
        title=f"{model.rate_per_s:,.0f} tuples/s arriving, {model.capacity_per_s:,.0f}/s possible"
    )
    table.add_column("mean of the replications, +- 95 %")
    for name in results:
        table.add_column(name, justify="right")

    def add(label: str, take: Any, unit: str = "", scale: float = 1.0) -> None:
        cells = []
        for runs in results.values():
            values = [take(result) for result in runs]
            if not values or any(value is None for value in values):
                cells.append("-")
                continue
            middle = estimate([value * scale for value in values])
            width = "" if len(values) == 1 else f" +- {middle.half_width:,.4g}"
            cells.append(f"{middle.mean:,.6g}{width} {unit}".rstrip())
        table.add_row(label, *cells)

    def catch_up_s(result: Result) -> float | None:
        recoveries = [pause for pause in result.pauses if pause.kind == "recovery"]
        values = [one.catch_up_s for one in recoveries if one.catch_up_s is not None]
        return sum(values) / len(values) if values else None

    add("latency of the window", lambda r: r.window_s, "s")
    add("throughput", lambda r: r.throughput_per_s, "/s")
    add("tuples lost", lambda r: r.lost)
    add("tuples unprocessed", lambda r: r.unprocessed)
    add("tuples replayed", lambda r: r.replayed)
    add("checkpoints", lambda r: r.checkpoints)
    add("recoveries", lambda r: r.recoveries)
    add("catch-up after a recovery", catch_up_s, "s")
    add("latency of a tuple, mean", lambda r: r.mean_latency_s, "ms", 1e3)
    for name in ("p50", "p99", "p999"):
        add(f"latency of a tuple, {name}", lambda r, n=name: r.latency_quantiles_s[n], "ms", 1e3)
    add("tuples later than the target", lambda r: r.above_target_fraction, "%", 100)
    for i, operator in enumerate(model.operators):
        add(f"mean wait, {operator.name}", lambda r, i=i: r.mean_wait_s[i], "us", 1e6)
    return table
