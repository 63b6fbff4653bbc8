"""`everstream apps productivity` and `figures`: what others have published, beside ours."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from everstream.cli.options import JsonFile, write_json
from everstream.errors import RunFailed

if TYPE_CHECKING:
    from everstream_lab.apps.cycle.benchmarks import Planned
    from everstream_lab.apps.figures.catalogue import Figure

console = Console()

RESIPIPE_GOAL, SPAR_GOAL = 0.6, 0.8


def register(apps: typer.Typer) -> None:
    apps.command()(productivity)
    apps.command()(figures)


def productivity(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="APPLICATION...", help="Default: all nine.")
    ] = None,
    measures: Annotated[
        bool, typer.Option("--measures", help="Show volume, difficulty and effort as well.")
    ] = False,
    program: Annotated[
        str | None,
        typer.Option(metavar="INTERFACE", help="Print the programs that were counted."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Count the code of each application on each interface: lines, and Halstead's hours.

    Counted from tokens by the rules of ResiPipe's tables 5.2 and 5.3, which stand beside ours.
    'shared' are lines of modules that several applications use, counted as libraries. Goals:
    Everstream's lines at most 0.6 of ResiPipe's, annotated code's at most 0.8 of SPar's.

    Example: everstream apps productivity prime lane --measures
    """
    from everstream_lab.apps.catalogue import NAMES
    from everstream_lab.apps.lookup import application_at
    from everstream_lab.apps.productivity.measure import counted
    from everstream_lab.apps.productivity.published import HOURS, LINES

    programs = [one for name in names or NAMES for one in counted(application_at(name))]
    if program is not None:
        for one in programs:
            if one.interface == program:
                console.rule(f"{one.application}, {one.interface}")
                console.print(one.program, markup=False, highlight=False)
    more = ("volume", "difficulty", "effort") if measures else ()
    table = Table(
        "application", "interface", "lines", "shared", "hours", *more, "against", box=None
    )
    missed = []
    for application in dict.fromkeys(one.application for one in programs):
        for one in (one for one in programs if one.application == application):
            goal = goal_of(one.application, one.interface, one.measures.lines)
            if goal is not None and not goal[1]:
                missed.append(f"{one.application}, {one.interface}")
            values = [f"{getattr(one.measures, name):,.0f}" for name in more]
            against = "" if goal is None else goal[0] if goal[1] else f"[red]{goal[0]}[/red]"
            table.add_row(
                one.application, one.interface, str(one.measures.lines), str(one.shared_lines),
                f"{one.measures.hours:.2f}", *values, against,
            )  # fmt: skip
        for system, lines in LINES.items():
            if application in lines:
                hours = HOURS[system][application]
                row = (application, system, str(lines[application]), "", f"{hours:.2f}")
                table.add_row(*row, *("" for _ in more), "published", style="dim")
    console.print(table)
    if json_file is not None:
        body: list[dict[str, Any]] = [
            {
                "application": one.application,
                "interface": one.interface,
                "lines": one.measures.lines,
                "shared_lines": one.shared_lines,
                "hours": one.measures.hours,
                "volume": one.measures.volume,
                "difficulty": one.measures.difficulty,
                "effort": one.measures.effort,
            }
            for one in programs
        ]
        published = {"lines": LINES, "hours": HOURS}
        write_json(json_file, {"counted": body, "published": published})
    if missed:
        console.print(f"[red]above their goal: {'; '.join(missed)}[/red]")


def goal_of(application: str, interface: str, lines: int) -> tuple[str, bool] | None:
    """Its lines against those it is measured by, in words, and whether they are few enough."""
    from everstream_lab.apps.productivity.published import LINES

    goals = {"everstream": ("ResiPipe", RESIPIPE_GOAL), "annotated": ("SPar", SPAR_GOAL)}
    system, most = goals.get(interface, ("", 0.0))
    published = LINES.get(system, {}).get(application)
    if published is None:
        return None
    ratio = lines / published
    return f"{ratio:.2f} of {system}'s", ratio <= most


def figures(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="FIGURE...", help="Such as spbench-12; spbench or resipipe: all."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the pages.")] = Path("reports/figures"),
    size: Annotated[
        str, typer.Option("--input", help="Class of the inputs; test has too few items for curves.")
    ] = "small",
    workers: Annotated[str, typer.Option("--workers", "-w", help="Range of workers.")] = "1:2",
    repeats: Annotated[int, typer.Option("--repeats", "-r", min=1)] = 1,
    monitor: Annotated[str, typer.Option(help="Period of the curves over time.")] = "100ms",
    show: Annotated[bool, typer.Option("--list", help="Only show which there are.")] = False,
) -> None:
    """Draw the figures of SPBench (6 to 16) and ResiPipe (5.2 to 5.13, 6.5, 6.6) for this machine.

    Published numbers are shown beside ours. Each figure has its own page. One whose
    runs fail does not keep the others from being drawn; the exit code is 1 then.

    Example: everstream apps figures spbench-12 resipipe-5.2 --workers 1:4 --out figures
    """
    from everstream_lab.apps.cycle.outcome import last_line_of, line_of
    from everstream_lab.apps.figures.catalogue import FIGURES, chosen, draw_figures
    from everstream_lab.apps.figures.runs import Runs

    if show:
        table = Table("figure", "what", box=None)
        for figure in FIGURES:
            table.add_row(figure.name, figure.title)
        console.print(table)
        return
    wanted = chosen(names or [])
    failures: list[tuple[Figure, RunFailed]] = []
    with console.status("running") as status:

        def hear(event: dict[str, Any], runs: "list[Planned]") -> None:
            if (text := line_of(event, runs)) is not None:
                status.update(text)
            elif (last := last_line_of(event, runs)) is not None:
                style = "dim" if last[1] else "red"
                console.print(last[0], style=style, markup=False, highlight=False)

        def drawn(path: Path) -> None:
            console.print(f"drawn: {path}", highlight=False, soft_wrap=True)

        draw_figures(wanted, Runs(out, size, workers, repeats, monitor, hear), drawn, failures)
    for figure, error in failures:
        console.print(f"{figure.name} failed: {error.message}", style="red", markup=False)
    console.print(f"index: {out / 'index.html'}", highlight=False, soft_wrap=True)
    if failures:
        raise typer.Exit(1)
