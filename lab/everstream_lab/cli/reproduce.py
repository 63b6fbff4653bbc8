"""`everstream reproduce`: the tables and figures of the papers, ours beside theirs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

if TYPE_CHECKING:
    from everstream_lab.reproduce.experiments import Experiment, Inventory
    from everstream_lab.reproduce.results import Results
    from everstream_lab.reproduce.runner import FailedStep, Progressing

console = Console()
PAPERS = ("resipipe", "ferdis", "spbench", "queueing", "morphstream", "all")


def register(app: typer.Typer) -> None:
    app.command("reproduce")(reproduce)


def reproduce(
    paper: Annotated[
        str,
        typer.Argument(metavar="PAPER", help=f"One of {', '.join(PAPERS)}.",
                       autocompletion=lambda: list(PAPERS)),
    ] = "all",
    quick: Annotated[
        bool, typer.Option("--quick", help="Less of everything: about 25 minutes for all papers.")
    ] = False,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the pages.")
    ] = Path("reports/evidence"),
    results_folder: Annotated[
        Path | None,
        typer.Option("--results", metavar="DIR", help="Folder for the results of steps. Default: "
                     "results in the folder for the pages."),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Repetitions of what is measured, in a full run.")
    ] = 3,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget earlier results and run everything again.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="EXPERIMENT", help="Run only this experiment; repeat for several."),
    ] = None,
    pages: Annotated[
        bool, typer.Option("--pages", help="Write the pages from the results that there are; run "
                           "nothing.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--list", help="Show the tables and figures, their experiments and what "
                           "is left to run; run nothing.")
    ] = False,
) -> None:  # fmt: skip
    """Regenerate the tables and figures of the papers, ours beside theirs, as Markdown pages.

    You can stop it at any time, with Ctrl-C or otherwise: each step's result is a file, and the
    same command continues after the last one that was finished. `index.md` lists every table and
    figure with its command and verdict.

    Example: everstream reproduce queueing --quick --out evidence
    """
    from everstream.errors import UserError
    from everstream_lab.reproduce.experiments import Effort
    from everstream_lab.reproduce.inventory import INVENTORY
    from everstream_lab.reproduce.pages import write_pages
    from everstream_lab.reproduce.results import Results

    inventory = INVENTORY.of(paper)
    results = Results(results_folder or out / "results", Effort(quick, repeats))
    chosen = [one for one in inventory.experiments if not only or one.name in only]
    unknown = set(only or ()) - {one.name for one in chosen}
    if unknown:
        raise UserError(f"there is no experiment {', '.join(sorted(unknown))}; --list shows all.")
    if show:
        _list(inventory, results)
        return
    if fresh and not pages:
        results.forget(chosen)
    try:
        failed = [] if pages else _run(chosen, results)
    except KeyboardInterrupt:
        console.print("\nstopped; the same command continues here", style="yellow")
        raise typer.Exit(130) from None
    finally:
        index = write_pages(inventory, results, out)[0]
        console.print(f"pages: {index}", highlight=False, soft_wrap=True)
    for one in failed:
        text = f"{one.experiment}, {one.step} failed: {one.text}"
        console.print(text, style="red", markup=False, highlight=False)
    if failed:
        raise typer.Exit(1)


def _run(chosen: "list[Experiment]", results: "Results") -> "list[FailedStep]":
    from everstream_lab.reproduce.runner import run_missing

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def tell(at: "Progressing") -> None:
            text = f"{remaining(at.remaining_s)} remain, {at.text}"
            progress.update(task, completed=at.done, total=at.steps, description=text)
            if not console.is_terminal and at.begins:
                console.print(f"{at.done}/{at.steps} {text}", highlight=False, soft_wrap=True)

        return run_missing(chosen, results, tell)


def remaining(seconds: float) -> str:
    """A time to wait, in words.

    >>> remaining(42.3), remaining(600), remaining(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _list(inventory: "Inventory", results: "Results") -> None:
    table = Table("table or figure", "shows", "experiments", "steps left", box=None)
    for exhibit in inventory.exhibits:
        experiments = inventory.experiments_of(exhibit)
        left = sum(len(results.missing(one)) for one in experiments)
        names = ", ".join(one.name for one in experiments)
        table.add_row(exhibit.name, exhibit.title, names or "none", str(left))
    console.print(table)
