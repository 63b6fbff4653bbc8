"""The tables of `everstream apps list`."""

from rich.console import Console
from rich.table import Table

from everstream.errors import UserError
from everstream_lab.apps.application import CLASSES
from everstream_lab.apps.catalogue import applications
from everstream_lab.apps.cycle.benchmarks import made, ready_made
from everstream_lab.apps.inputs import MANIFEST, inputs_root
from everstream_lab.apps.interfaces.job import stage_names
from everstream_lab.apps.interfaces.registry import interfaces

console = Console()
KINDS = ("applications", "interfaces", "operators", "inputs", "benchmarks")


def show_list(what: str, application: str | None, interface: str | None) -> None:
    """Print one kind of thing, or all kinds."""
    kinds = KINDS if what == "all" else (what,)
    if not set(kinds) <= set(KINDS):
        raise UserError(f"'{what}': say one of {', '.join(KINDS)}.")
    for kind in kinds:
        if what == "all":
            if kind in ("operators", "inputs"):
                continue
            console.print(f"[bold]{kind}[/bold]")
        if kind == "applications" or kind == "operators":
            _applications(application, operators=kind == "operators")
        elif kind == "interfaces":
            console.print("  " + ", ".join(interfaces()))
        elif kind == "inputs":
            _inputs(application)
        else:
            _benchmarks(application, interface, every=what == kind)


def _applications(only: str | None, *, operators: bool) -> None:
    table = Table("application", "what", "stages" if operators else "classes", box=None)
    for one in applications():
        if only in (None, one.name):
            last = " → ".join(stage_names(one)) if operators else ", ".join(CLASSES)
            table.add_row(one.name, one.title, last)
    console.print(table)


def _inputs(only: str | None) -> None:
    root = inputs_root()
    table = Table("input", "size", box=None)
    for manifest in sorted(root.glob(f"*/*/{MANIFEST}")):
        folder = manifest.parent
        if only in (None, folder.parent.name):
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            table.add_row(f"{folder.parent.name}/{folder.name}", f"{size / 1e6:,.1f} MB")
    console.print(f"in {root}:", highlight=False, soft_wrap=True)
    console.print(table)


def _benchmarks(application: str | None, interface: str | None, *, every: bool) -> None:
    table = Table("benchmark", "application", "interface", "input", "workers", box=None)
    benchmarks = [*made(), *(ready_made() if every or application or interface else ())]
    for one in benchmarks:
        if application in (None, one.application) and interface in (None, one.interface):
            row = (one.name, one.application, one.interface, one.size, one.settings.workers)
            table.add_row(*row)
    console.print(table)
    if not every and not benchmarks:
        console.print("  none of your own; every application has one for every interface")
