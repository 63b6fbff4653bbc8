"""`everstream apps exec`, `check` and `compare`: runs, and what they say."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from everstream.cli.options import JsonFile, write_json
from everstream.errors import UserError

if TYPE_CHECKING:
    from everstream_lab.apps.cycle.benchmarks import Benchmark
    from everstream_lab.apps.cycle.execute import Failure
    from everstream_lab.apps.cycle.outcome import Outcome

console = Console()

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME...", help="Benchmarks or applications; default: all nine."),
]
Interfaces = Annotated[
    str | None,
    typer.Option("--interface", "-i", metavar="A,B", help="Of these interfaces; all: of each."),
]
Input = Annotated[
    str | None, typer.Option("--input", help="Class: test, small, medium, large or huge.")
]
Workers = Annotated[
    str | None, typer.Option("--workers", "-w", help="Parallelism: 4, 1:4 or 1:2:8.")
]
Stages = Annotated[
    str | None,
    typer.Option(
        metavar="farm|pipeline|2,1,3",
        help="One farm, a farm per stage, or the workers of each stage.",
    ),
]
Clutter = Annotated[
    int | None,
    typer.Option(metavar="N", help="Let N items come before the one in front of them; reorder."),
]
Batch = Annotated[
    str | None,
    typer.Option(
        "--batch",
        "--batch-size",
        help="Items that travel together, a range; auto: the application's.",
    ),
]
Interval = Annotated[
    str | None,
    typer.Option(
        "--interval",
        "--batch-interval",
        metavar="50ms",
        help="Send a smaller batch after this time, from when its first item was read or due.",
    ),
]
Frequency = Annotated[float | None, typer.Option(help="The most items a second; 0: all.")]
Pattern = Annotated[
    str | None,
    typer.Option(metavar="wave,10s,100,1000", help="NAME,PERIOD,MIN,MAX[,SPIKE%] of the load."),
]
CatchUp = Annotated[
    bool | None,
    typer.Option("--catch-up/--no-catch-up", help="Make up for what was not given in time."),
]
InMemory = Annotated[
    bool | None, typer.Option("--in-memory/--no-in-memory", help="Keep files out of the time.")
]
Repeats = Annotated[int | None, typer.Option("--repeats", "-r", help="Runs of each setting.")]
Latency = Annotated[
    bool | None, typer.Option("--latency/--no-latency", help="Time each item in each operator.")
]
Monitor = Annotated[
    str | None, typer.Option(metavar="250ms", help="Sample so often, from 50ms on; or off.")
]
Protocol = Annotated[str | None, typer.Option(help="Checkpoint protocol, or none.")]
Every = Annotated[str | None, typer.Option(metavar="1s", help="Time between checkpoints.")]
Kills = Annotated[
    list[str] | None,
    typer.Option("--kill", metavar="OPERATOR@1000", help="Kill a worker; may be repeated."),
]
TestResult = Annotated[
    bool | None,
    typer.Option("--check/--no-check", help="Compare with the sequential program's result."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the tables.")]
Out = Annotated[Path | None, typer.Option(help="Folder for tables and page.")]


def register(apps: typer.Typer) -> None:
    apps.command("exec")(execute)
    apps.command()(check)
    apps.command()(compare)
    apps.command("all")(all_with_kills)


def execute(
    names: Names = None,
    interface: Interfaces = None,
    size: Input = None,
    workers: Workers = None,
    stages: Stages = None,
    clutter: Clutter = None,
    batch: Batch = None,
    interval: Interval = None,
    frequency: Frequency = None,
    pattern: Pattern = None,
    catch_up: CatchUp = None,
    in_memory: InMemory = None,
    repeats: Repeats = None,
    latency: Latency = None,
    monitor: Monitor = None,
    checkpoint: Protocol = None,
    every: Every = None,
    kill: Kills = None,
    check: TestResult = None,
    quiet: Quiet = False,
    json_file: JsonFile = None,
    out: Out = None,
) -> None:
    """Run and measure benchmarks, check their results; write tables (CSV, Parquet) and a page.

    Everything not said here is as the benchmark has it ('apps show'). Every run has a process of
    its own. The page, page.html, has the curves: by workers, by batch, from moment to moment.

    Example: everstream apps exec lane --input small --workers 1:4 --repeats 3
    Example: everstream apps exec prime --kill is_prime@1000 --every 200ms
    Example: everstream apps exec lane --clutter 8 --stages pipeline
    Example: everstream apps exec clicks -i threads,processes --pattern wave,5s,50,500

    Exit codes: 0 all results exact; 1 one differs, or a run failed; 2 wrong usage.
    """
    from everstream_lab.apps.cycle.execute import fresh_results

    chosen = _chosen(names, interface, size)
    values = _given(
        workers=workers, stages=stages, clutter=clutter, batch=batch, interval=interval, frequency=frequency, pattern=pattern,
        catch_up=catch_up, in_memory=in_memory, repeats=repeats, latency=latency, monitor=monitor,
        checkpoint=checkpoint, every=every, kills=None if kill is None else ",".join(kill),
        check=check,
    )  # fmt: skip
    chosen = [_with(one, values) for one in chosen]
    folder = out or fresh_results(chosen[0].name if len(chosen) == 1 else "several")
    failures: list[Failure] = []
    outcomes = _perform(chosen, folder, failures, quiet)
    title = chosen[0].name if len(chosen) == 1 else f"{len(chosen)} benchmarks"
    _conclude(title, outcomes, failures, folder, json_file)


def check(
    names: Names = None,
    interface: Interfaces = None,
    size: Input = None,
    workers: Workers = None,
) -> None:
    """Check benchmarks: run each once and compare its result with the sequential one.

    Example: everstream apps check prime --interface all
    """
    from everstream_lab.apps.cycle.execute import fresh_results

    values = _given(workers=workers, repeats=1, latency=False, monitor="off", check=True)
    chosen = [_with(one, values) for one in _chosen(names, interface, size)]
    failures: list[Failure] = []
    outcomes = _perform(chosen, fresh_results("check"), failures)
    table = Table("benchmark", "input", "items/s", "result", box=None)
    for one in outcomes:
        verdict = "exact" if one.exact else "[red]differs[/red]"
        table.add_row(one.planned.benchmark, one.planned.size, f"{one.items_per_s:,.1f}", verdict)
    console.print(table)
    _tell_failures(failures)
    if failures or not all(one.exact for one in outcomes):
        raise typer.Exit(1)


def compare(
    names: Names = None,
    interface: Interfaces = "sequential,processes,everstream",
    size: Input = None,
    workers: Workers = None,
    stages: Annotated[
        list[str] | None,
        typer.Option(
            metavar="farm|pipeline|2,1,3",
            help="One farm, a farm per stage, or the workers of each stage; repeat to compare.",
        ),
    ] = None,
    batch: Batch = None,
    repeats: Repeats = 5,
    base: Annotated[
        str | None,
        typer.Option(help="What ratios are taken against; default: the first interface."),
    ] = None,
    latency: Latency = False,
    monitor: Monitor = "off",
    checkpoint: Protocol = None,
    every: Every = None,
    in_memory: InMemory = None,
    json_file: JsonFile = None,
    out: Out = None,
) -> None:
    """Compare interfaces or settings, with 95 % confidence intervals and ratios.

    Runs are made in turn, in one go, so that what slows the machine slows all of them. Nothing is
    measured inside the runs unless asked for: the sequential side is the plain program.

    Example: everstream apps compare prime lane --input small --workers 2 --json compared.json
    Example: everstream apps compare lane -i everstream --workers 1:4 --base everstream-1
    Example: everstream apps compare ferret -i threads,everstream --stages farm --stages pipeline
    """
    from everstream_lab.apps.cycle.execute import fresh_results
    from everstream_lab.apps.cycle.page import report
    from everstream_lab.apps.cycle.results import names as side_names
    from everstream_lab.apps.cycle.results import sides, write_tables
    from everstream_lab.apps.interfaces.shape import AUTO

    values = _given(
        workers=workers, batch=batch, repeats=repeats, latency=latency, monitor=monitor,
        checkpoint=checkpoint, every=every, in_memory=in_memory,
    )  # fmt: skip
    chosen = [
        _with(one, values)
        for plain in _chosen(names, interface, size)
        for one in _spread(plain, stages or [AUTO])
    ]
    folder = out or fresh_results("compared")
    outcomes = _perform(chosen, folder)
    compared = sides(outcomes, base)
    report("Everstream applications compared", outcomes, write_tables(outcomes, folder)).write(
        folder / "page.html"
    )
    heads = ("application", "interface", "items/s", "95 %", "ratio", "95 %", "result")
    table = Table(*heads, box=None)
    for side, name in zip(compared, side_names(compared), strict=True):
        form = ",.0f" if side.throughput.mean >= 1000 else ".2f"
        table.add_row(
            Path(side.application).stem,
            name,
            format(side.throughput.mean, form),
            _between(side.throughput.low, side.throughput.high, form),
            "base" if side.is_base else f"{side.against.ratio:.3f}",
            "" if side.is_base else _between(side.against.low, side.against.high, ".3f"),
            {True: "exact", False: "[red]differs[/red]", None: "not compared"}[side.exact],
        )
    console.print(table)
    console.print(f"tables and page in {folder}", highlight=False, soft_wrap=True)
    _write(json_file, {"sides": [side.to_json() for side in compared]})
    if any(side.exact is False for side in compared):
        raise typer.Exit(1)


def all_with_kills(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="APPLICATION...", help="Default: all nine.")
    ] = None,
    size: Annotated[str, typer.Option("--input", help="Class of the inputs.")] = "small",
    interface: Annotated[
        str, typer.Option("--interface", "-i", help="everstream or annotated.")
    ] = "everstream",
    every: Annotated[str, typer.Option(help="Time between checkpoints.")] = "1s",
    json_file: JsonFile = None,
    out: Out = None,
) -> None:
    """Run all applications one after the other, with a kill each, as 'make apps' does.

    The worker of each one's first stage is killed once it is at work. Results must be those of the
    sequential program all the same. One that fails does not keep the others from running.

    Example: everstream apps all --input test --out reports/apps

    Exit codes: 0 all results exact and every kill survived; 1 one is not, or a run failed.
    """
    from everstream_lab.apps.catalogue import NAMES
    from everstream_lab.apps.cycle.benchmarks import with_kills
    from everstream_lab.apps.cycle.execute import Failure, fresh_results, prepare

    wanted = names or list(NAMES)
    ready: list[str] = []
    with console.status("making inputs and sequential results") as status:

        def tell(name: str) -> None:
            ready.append(name)
            status.update(f"inputs and sequential results: {len(ready)} of {len(wanted)} ready")

        missing = prepare(wanted, size, tell)
    failures = [Failure(name, f"{name}: {text}") for name, text in missing.items()]
    chosen = with_kills([name for name in wanted if name in ready], size, interface, every)
    folder = out or fresh_results("all")
    outcomes = _perform(chosen, folder, failures)
    _conclude("all applications, with a kill each", outcomes, failures, folder, json_file, True)


def _conclude(
    title: str,
    outcomes: "Sequence[Outcome]",
    failures: "Sequence[Failure]",
    folder: Path,
    json_file: Path | None,
    needs_kills: bool = False,
) -> None:
    """Tables, page, a table on the screen, the verdict, and the exit code.

    needs_kills: a kill that did not happen is a failure, because nothing was proved.
    """
    from everstream_lab.apps.cycle.page import report, runs_table, verdict
    from everstream_lab.apps.cycle.results import write_tables

    _tell_failures(failures)
    if not outcomes:
        raise typer.Exit(1)
    tables = write_tables(outcomes, folder)
    page = report(f"Everstream applications: {title}", outcomes, tables, failures)
    page.write(folder / "page.html")
    _print_table(*runs_table(outcomes))
    text, good = verdict(outcomes, failures)
    console.print(f"[bold {'green' if good else 'red'}]{text}[/]")
    for one in outcomes:
        missing = len(one.planned.settings.kills) - len(one.recoveries)
        if missing > 0:
            good = good and not needs_kills
            console.print(f"[yellow]{one.planned.benchmark}: {missing} kill(s) did not happen[/]")
    console.print(f"tables and page in {folder}", highlight=False, soft_wrap=True)
    failed = [{"benchmark": one.benchmark, "text": one.text} for one in failures]
    _write(json_file, {"runs": [outcome.to_json() for outcome in outcomes], "failed": failed})
    if not good:
        raise typer.Exit(1)


def _chosen(names: list[str] | None, interface: str | None, size: str | None) -> "list[Benchmark]":
    from everstream_lab.apps.catalogue import NAMES
    from everstream_lab.apps.cycle.benchmarks import find
    from everstream_lab.apps.interfaces.registry import check_interface, interfaces

    wanted = None
    if interface is not None:
        wanted = list(interfaces()) if interface == "all" else interface.split(",")
        for one in wanted:
            check_interface(one)
    benchmarks = []
    for name in names or NAMES:
        benchmark = find(name)
        if size is not None:
            benchmark = replace(benchmark, size=size)
        if wanted is None:
            benchmarks.append(benchmark)
            continue
        stem = name.removesuffix(f"-{benchmark.interface}")
        benchmarks += [replace(benchmark, name=f"{stem}-{one}", interface=one) for one in wanted]
    return benchmarks


def _given(**options: Any) -> dict[str, str]:
    """The options that were given, written as settings."""
    return {
        name: {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }


def _with(benchmark: "Benchmark", values: dict[str, str]) -> "Benchmark":
    changed = replace(benchmark, settings=benchmark.settings.with_values(values))
    changed.check()
    return changed


def _spread(benchmark: "Benchmark", shapes: list[str]) -> "list[Benchmark]":
    """The benchmark with its stages spread in each of these ways; a sequential one only as it is."""
    from everstream_lab.apps.interfaces.shape import AUTO

    if benchmark.interface == "sequential":
        return [benchmark]
    return [
        replace(
            benchmark,
            name=benchmark.name if shape == AUTO else f"{benchmark.name}-{shape.replace(',', '.')}",
            settings=replace(benchmark.settings, stages=shape),
        )
        for shape in dict.fromkeys(shapes)
    ]


def _perform(
    chosen: "Sequence[Benchmark]",
    folder: Path,
    failures: "list[Failure] | None" = None,
    quiet: bool = False,
) -> "list[Outcome]":
    """Make the runs, and show how they go: a line that changes, and one for each that has ended."""
    from everstream_lab.apps.cycle.execute import execute as perform
    from everstream_lab.apps.cycle.execute import planned_runs
    from everstream_lab.apps.cycle.outcome import last_line_of, line_of

    if len({one.name for one in chosen}) < len(chosen):
        raise UserError("a benchmark is named twice.")
    runs = planned_runs(chosen)
    if quiet:
        return perform(chosen, folder, failures=failures)
    with console.status(f"{len(runs)} run(s)") as status:

        def hear(event: dict[str, Any]) -> None:
            if (text := line_of(event, runs)) is not None:
                status.update(text)
            elif (last := last_line_of(event, runs)) is not None:
                style = "dim" if last[1] else "red"
                console.print(last[0], style=style, markup=False, highlight=False)

        return perform(chosen, folder, hear, failures)


def _tell_failures(failures: "Sequence[Failure]") -> None:
    for one in failures:
        console.print(f"failed: {one.text}", style="red", markup=False, highlight=False)


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(*head, box=None)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _between(low: float | None, high: float | None, form: str) -> str:
    return "" if low is None or high is None else f"{format(low, form)} to {format(high, form)}"


def _write(path: Path | None, body: dict[str, Any]) -> None:
    if path is not None:
        write_json(path, body)
        console.print(f"figures written to {path}")
