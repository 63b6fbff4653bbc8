"""`everstream apps`: the applications, and the benchmarks that are made of them."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from everstream.errors import UserError

apps = typer.Typer(
    help="Run, measure and compare the applications of ResiPipe and SPBench, or your own.",
    no_args_is_help=True,
)
console = Console()

Name = Annotated[str, typer.Argument(metavar="NAME", help="A benchmark; see 'apps list'.")]
Values = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings, as 'apps show' lists them."),
]


@apps.command("list")
def list_all(
    what: Annotated[
        str, typer.Argument(help="applications, interfaces, operators, inputs or benchmarks.")
    ] = "all",
    application: Annotated[
        str | None, typer.Option("--application", "-a", help="Only of this application.")
    ] = None,
    interface: Annotated[
        str | None, typer.Option("--interface", "-i", help="Only of this interface.")
    ] = None,
) -> None:
    """List applications, interfaces, operators, inputs, and the benchmarks you made.

    Every application has a benchmark for every interface, called APPLICATION-INTERFACE; the name of
    an application alone means the one for Everstream.

    Example: everstream apps list benchmarks --interface processes
    """
    from everstream_lab.cli.apps_lists import show_list

    show_list(what, application, interface)


@apps.command()
def show(name: Name) -> None:
    """Show a benchmark: application, stages, interface, input, settings.

    Example: everstream apps show lane-everstream
    """
    from everstream_lab.apps.cycle.benchmarks import find, results_of
    from everstream_lab.apps.interfaces.job import stage_names
    from everstream_lab.apps.lookup import application_at

    benchmark = find(name)
    application = application_at(benchmark.application)
    table = Table(show_header=False, box=None)
    kind = "made" if benchmark.made else "always there"
    settings = {key: str(value) for key, value in benchmark.settings.to_json().items()}
    settings["farms"] = settings.pop("stages")  # how its stages are arranged
    for key, value in {
        "benchmark": f"{benchmark.name} ({kind})",
        "application": f"{benchmark.application}: {application.title}",
        "stages": " → ".join(stage_names(application)),
        "order": "results in the order of the items" if application.ordered else "any order",
        "interface": benchmark.interface,
        "input": benchmark.size,
        **settings,
        "results": str(results_of(benchmark.name)),
    }.items():
        table.add_row(f"[dim]{key}[/dim]", escape(value))
    console.print(table)


@apps.command()
def new(
    name: Annotated[str, typer.Argument(help="What to call it.")],
    values: Values = None,
    application: Annotated[
        str | None, typer.Option("--application", "-a", help="One of 'apps list', or a FILE.py.")
    ] = None,
    like: Annotated[
        str | None, typer.Option("--from", metavar="NAME", help="Copy another benchmark.")
    ] = None,
    stages: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C", help="Make an application of your own with stages of these names."
        ),
    ] = None,
    interface: Annotated[str | None, typer.Option("--interface", "-i")] = None,
    size: Annotated[
        str | None, typer.Option("--input", help="test, small, medium, large or huge.")
    ] = None,
) -> None:
    """Create a benchmark from an application, another benchmark or your own stages.

    --stages writes a file with a working application, which 'apps exec' can run on every interface;
    'apps edit' opens it.

    Example: everstream apps new clicks --stages parse,enrich,score
    Example: everstream apps new fast-lane --application lane --input small workers=1:4 repeats=10
    """
    from dataclasses import replace

    from everstream_lab.apps.cycle.benchmarks import Benchmark, find, home, save
    from everstream_lab.apps.cycle.skeleton import skeleton

    given = [option for option in (application, like, stages) if option is not None]
    if len(given) != 1:
        raise UserError(
            "say what it is made of, one of: --application NAME, --from BENCHMARK, or --stages "
            "A,B,C for an application of your own."
        )
    wanted = pairs(values)
    if stages is not None:
        text = skeleton(name, [stage.strip() for stage in stages.split(",")])
        file = home() / f"{name.replace('-', '_')}.py"
        if file.exists():
            raise UserError(f"there is a file '{file}' already: choose another name.")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        console.print(f"application written to {file}")
        benchmark = Benchmark(name, str(file.absolute()))
    elif like is not None:
        benchmark = replace(find(like), name=name, made=True)
    else:
        benchmark = Benchmark(name, _reference(application or ""))
    benchmark = replace(
        benchmark,
        interface=interface or benchmark.interface,
        size=size or benchmark.size,
        settings=benchmark.settings.with_values(wanted),
    )
    console.print(f"benchmark written to {save(benchmark)}")
    console.print(f"run it: everstream apps exec {name}")


@apps.command()
def edit(name: Name) -> None:
    """Edit the application of a benchmark, if it is your own, or its settings, in $EDITOR.

    Example: EDITOR=nano everstream apps edit clicks
    """
    from everstream_lab.apps.cycle.benchmarks import find, home

    benchmark = find(name)
    if not benchmark.made:
        raise UserError(
            f"'{name}' is always there and has no file. Make one of your own from it: everstream "
            f"apps new my-{name} --from {name}."
        )
    own = benchmark.application.endswith(".py")
    file = Path(benchmark.application) if own else home() / f"{name}.json"
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or shutil.which("nano") or "vi"
    code = subprocess.call(["sh", "-c", f'{editor} "$1"', "editor", str(file)])
    if code:
        raise UserError(f"the editor '{editor}' ended with code {code}; set $EDITOR to another.")
    find(name).check()  # report mistakes now, not in the next run
    console.print(f"{file} is fine")


@apps.command()
def configure(
    name: Name,
    values: Values = None,
    interface: Annotated[str | None, typer.Option("--interface", "-i")] = None,
    size: Annotated[str | None, typer.Option("--input")] = None,
) -> None:
    """Change settings of a benchmark you made; 'apps exec' changes them for one run only.

    Example: everstream apps configure clicks workers=1:2:8 repeats=10 pattern=wave,10s,100,1000
    """
    from dataclasses import replace

    from everstream_lab.apps.cycle.benchmarks import find, save

    benchmark = find(name)
    if not benchmark.made:
        raise UserError(
            f"'{name}' is always there and stays as it is: everstream apps new my-{name} --from "
            f"{name} makes one that can be changed."
        )
    changed = replace(
        benchmark,
        interface=interface or benchmark.interface,
        size=size or benchmark.size,
        settings=benchmark.settings.with_values(pairs(values)),
    )
    save(changed, replacing=True)
    show(name)


@apps.command()
def inputs(
    application: Annotated[
        list[str] | None, typer.Argument(help="Make the inputs of these; default: show all.")
    ] = None,
    size: Annotated[str, typer.Option("--input", help="The class to make.")] = "test",
    expected: Annotated[
        bool,
        typer.Option("--expected", help="Run the sequential program, too, for the right result."),
    ] = False,
) -> None:
    """List the inputs, or generate some; a seed makes them the same everywhere.

    Example: everstream apps inputs prime lane --input small --expected
    """
    from everstream_lab.apps.inputs import expected_checksum, input_folder
    from everstream_lab.apps.lookup import application_at
    from everstream_lab.cli.apps_lists import show_list

    if not application:
        show_list("inputs", None, None)
        return
    for name in application:
        chosen = application_at(_reference(name))
        with console.status(f"{name}: making the input"):
            folder = input_folder(chosen, size)
            checksum = f" → {expected_checksum(chosen, folder)}" if expected else ""
        console.print(f"{name}, {size}: {folder}{checksum}", soft_wrap=True)


@apps.command()
def rename(
    name: Name, to: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")]
) -> None:
    """Rename a benchmark you made, and its results.

    Example: everstream apps rename clicks clicks-2
    """
    from everstream_lab.apps.cycle import benchmarks

    benchmarks.rename(name, to)
    console.print(f"'{name}' is called '{to}' now")


@apps.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Benchmarks you made.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete benchmarks you made, and their results; application files stay.

    Example: everstream apps delete clicks
    """
    from everstream_lab.apps.cycle import benchmarks

    if not yes:
        typer.confirm(f"delete {', '.join(names)} and all results of them?", abort=True)
    for name in names:
        benchmarks.delete(name)
        console.print(f"'{name}' is deleted")


@apps.command()
def clean(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Default: all benchmarks.")
    ] = None,
    outputs: Annotated[
        bool, typer.Option("--outputs", help="Only result files and logs; keep what was measured.")
    ] = False,
    inputs: Annotated[
        bool, typer.Option("--inputs", help="The inputs as well; they are made again when needed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete the results of benchmarks; the benchmarks themselves stay.

    Example: everstream apps clean --outputs
    """
    from everstream_lab.apps.cycle.benchmarks import home, results_of
    from everstream_lab.apps.inputs import inputs_root

    root = home() / "results"
    folders = [results_of(name) for name in names or ()] or sorted(root.glob("*"))
    doomed = [
        path
        for folder in folders
        for path in ([*folder.glob("*/output"), *folder.glob("*/log.txt")] if outputs else [folder])
        if path.exists()
    ]
    doomed += [inputs_root()] if inputs and inputs_root().exists() else []
    if not doomed:
        console.print("there is nothing to delete")
        return
    for path in doomed:
        console.print(f"  {path}", highlight=False, soft_wrap=True)
    if not yes:
        typer.confirm(f"delete these {len(doomed)}?", abort=True)
    for path in doomed:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    console.print(f"{len(doomed)} deleted")


def pairs(values: list[str] | None) -> dict[str, str]:
    """KEY=VALUE, as it was typed."""
    settings: dict[str, str] = {}
    for value in values or ():
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise UserError(f"'{value}': write KEY=VALUE, as in workers=1:4.")
        settings[key] = text
    return settings


def _reference(application: str) -> str:
    """A name from the catalogue, or the path of a file as it is known from anywhere."""
    if application.endswith(".py"):
        return str(Path(application).absolute())
    from everstream_lab.apps.cycle.benchmarks import home

    own = home() / f"{application.replace('-', '_')}.py"
    return str(own.absolute()) if own.exists() else application
