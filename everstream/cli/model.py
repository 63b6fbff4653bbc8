"""`everstream model`: a queueing model of a pipeline with checkpoints and failures."""

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

from everstream.cli.json_file import write_json

if TYPE_CHECKING:
    from everstream.planning.model import Behaviour, Checkpoints, Failures, Model, Result

model_app = typer.Typer(
    help="Model checkpoints and failures as a queueing network, before you run anything.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the group to the `everstream` app."""
    app.add_typer(model_app, name="model")


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
    operators: Annotated[int, typer.Option(min=1, help="Operators in a row, one per node.")] = 4,
    cpus: Annotated[int, typer.Option(min=1, help="CPUs per node.")] = 3,
    sources: Annotated[int, typer.Option(min=1, help="Number of sources.")] = 4,
    gap: Annotated[
        str, typer.Option(metavar="TIMES", help="Gap between arrivals at a source.")
    ] = "normal:3.2ms,50us",
    entities: Annotated[int, typer.Option(min=1, help="Tuples per arrival.")] = 4,
    service: Annotated[
        str, typer.Option(metavar="TIMES", help="Service time of a tuple.")
    ] = "normal:80us,10us",
    graph: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON with operators and sources, instead of a line."),
    ] = None,
    tuples: Annotated[int, typer.Option(min=1, help="Size of the window.")] = 1_000_000,
    interval: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Checkpoint interval, such as 74s.",
            rich_help_panel="Checkpoints and failures",
        ),
    ] = None,
    commit: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How long input stops for a checkpoint.",
            rich_help_panel="Checkpoints and failures",
        ),
    ] = "1s",
    upload: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Time until a checkpoint is stable; work continues (backlog).",
            rich_help_panel="Checkpoints and failures",
        ),
    ] = "0s",
    between_failures: Annotated[
        str | None,
        typer.Option(
            metavar="TIMES",
            help="Gap between failures, such as exponential:600s.",
            rich_help_panel="Checkpoints and failures",
        ),
    ] = None,
    failing: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Operators that fail, separated by commas.",
            rich_help_panel="Checkpoints and failures",
        ),
    ] = "operator 1",
    recovery: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Duration of a recovery.",
            rich_help_panel="Checkpoints and failures",
        ),
    ] = "60s",
    detection: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Time until a failure is detected (backlog).",
            rich_help_panel="Checkpoints and failures",
        ),
    ] = "0s",
    behaviour: Annotated[
        str,
        typer.Option(
            metavar="discard|backlog|both",
            help="What happens to arrivals during a pause.",
            rich_help_panel="Checkpoints and failures",
        ),
    ] = "both",
    target: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Count tuples later than this.", rich_help_panel="Output"
        ),
    ] = "1s",
    replications: Annotated[
        int, typer.Option(min=1, help="Independent windows.", rich_help_panel="Output")
    ] = 5,
    seed: Annotated[
        int, typer.Option(help="The same seed gives the same result.", rich_help_panel="Output")
    ] = 0,
    figure: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw the latency curve into this PNG.", rich_help_panel="Output"
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write the results to this file.",
            rich_help_panel="Output",
        ),
    ] = None,
) -> None:
    """Simulate a line or graph of operators with checkpoints and failures.

    `discard` loses tuples that arrive during a pause, as the CCRR study does. `backlog` keeps them
    at a replayable source, as Everstream does: nothing is lost, and catching up takes time.

    Example: everstream model run --interval 74s --between-failures poisson:600s --recovery 60s
    """
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
            feeds = (m.SourceModel(names[0], m.parse_distribution(gap), entities),) * sources
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
    results = _replicated(models, replications, seed, console)
    console.print(_results_table(model, results))
    if figure is not None:
        path = figures.behaviours(results["discard"][0], results["backlog"][0], figure)
        console.print(f"Figure: {path}")
    if json_file is not None:
        write_json(
            json_file,
            {name: [dataclasses.asdict(r) for r in runs] for name, runs in results.items()},
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
    """The model with one behaviour, or with both side by side."""
    both: tuple[Behaviour, ...] = ("discard", "backlog")
    return {name: model.with_behaviour(name) for name in both if behaviour in (name, "both")}


def _replicated(
    models: dict[str, Model], replications: int, seed: int, console: Console
) -> dict[str, list[Result]]:
    from everstream.planning.queueing import replicate

    results: dict[str, list[Result]] = {}
    with progress_bar(console) as progress:
        for name, model in models.items():
            bar = progress.add_task(name, total=replications * model.window_tuples)

            def advance(done: int, bar: Any = bar) -> None:
                progress.update(bar, completed=done)

            results[name] = replicate(model, replications, seed, advance)
    return results


def _results_table(model: Model, results: dict[str, list[Result]]) -> Table:
    from everstream.planning.queueing import estimate

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

    def recoveries(result: Result, field: str) -> float | None:
        values = [
            getattr(pause, field)
            for pause in result.pauses
            if pause.kind == "recovery" and getattr(pause, field) is not None
        ]
        return sum(values) / len(values) if values else None

    add("latency of the window", lambda r: r.window_s, "s")
    add("throughput", lambda r: r.throughput_per_s, "/s")
    add("tuples lost", lambda r: r.lost)
    add("tuples unprocessed", lambda r: r.unprocessed)
    add("tuples replayed", lambda r: r.replayed)
    add("checkpoints", lambda r: r.checkpoints)
    add("recoveries", lambda r: r.recoveries)
    add("catch-up after a recovery", lambda r: recoveries(r, "catch_up_s"), "s")
    add("latency of a tuple, mean", lambda r: r.mean_latency_s, "ms", 1e3)
    for quantile in ("p50", "p99", "p999"):
        add(
            f"latency of a tuple, {quantile}",
            lambda r, quantile=quantile: r.latency_quantiles_s[quantile],
            "ms",
            1e3,
        )
    add("tuples later than the target", lambda r: r.above_target_fraction, "%", 100)
    for i, operator in enumerate(model.operators):
        add(f"mean wait, {operator.name}", lambda r, i=i: r.mean_wait_s[i], "us", 1e6)
    return table
