"""`everstream run`: run a pipeline from a file or a module, supervised."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from everstream.cli.runs.arguments import RunCommand
from everstream.cli.runs.flags import Given, settings_for, store_key_flag, with_flags
from everstream.errors import EnvironmentFault, UserError

console = Console()
errors = Console(stderr=True)


Target = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="FILE.py, FILE.py:NAME or module:NAME; a pipeline, or a function with @es.annotated",
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- NAME=VALUE ...]",
        help="For a function with @es.annotated: its arguments, as in -- limit=500000",
        show_default=False,
    ),
]
StoreKeyFile = Annotated[str | None, store_key_flag()]


@with_flags
def run(
    given: Given,
    target: Target,
    arguments: Arguments = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --fresh: do not ask before deleting.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the result here.")
    ] = None,
    load: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[SOURCE=]PATTERN",
            help="Pace the sources: 500, wave,10s,100,1000 or another pattern of es.Load. Can be "
            "given several times, for one source each.",
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            metavar="RUN.json",
            help="With --load wave: from 0.1 to 1.1 of the throughput of a run at full speed, "
            "whose --json this is.",
        ),
    ] = None,
    catch_up: Annotated[
        bool,
        typer.Option(
            "--catch-up/--no-catch-up",
            help="With --load: make up for what could not be given in time; or, as SPBench, do not.",
        ),
    ] = True,
    monitor_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the samples of --monitor go: a .csv or a .parquet.",
            show_default="monitor.csv",
        ),
    ] = None,
    log_json: Annotated[
        bool,
        typer.Option(
            "--log-json",
            help="Write the log of the run and its operators to standard error as lines of JSON, with "
            "pipeline, operator and shard.",
        ),
    ] = False,
) -> None:
    """Run a pipeline on Spark until its sources end, Ctrl-C or --timeout.

    Stopping takes a checkpoint, and the same command resumes from it. If the driver process is
    killed, it is started again and resumes from the last checkpoint as well.

    Options can also be set in everstream.toml, in the table tool.everstream of pyproject.toml, and
    in EVERSTREAM_* environment variables; "everstream config PIPELINE" shows what applies.

    With --until caught-up the run ends once everything that was there when it started has been
    processed. Run the same command again, for example every hour, to process what is new; if there
    is nothing new, it ends at once without starting Spark.

    Example: everstream run examples/word_count.py --every 1s --kill fold@5000

    Exit codes: 0 finished, caught up, or stopped with a checkpoint; 1 failed; 2 wrong usage;
    124 stopped by --timeout; 130 killed by a second Ctrl-C.
    """
    from everstream.cli.runs.supervise import FAILED, USAGE

    try:
        command = RunCommand(
            target=target,
            settings=settings_for(target, given),
            load=tuple(load or ()),
            calibrate=calibrate,
            catch_up=catch_up,
            monitor_file=None if monitor_file is None else str(monitor_file),
            log_json=log_json,
            arguments=tuple(arguments or ()),
        )
        command.check()
        ui = command.options.ui
        if ui is not False:
            from everstream.observability.ui.serving import address_of

            address_of(None if ui is True else ui)
        may_start = not command.options.fresh or may_delete(command, yes)
    except UserError as error:
        say_error(error.message)
        raise typer.Exit(USAGE) from None
    if not may_start:
        errors.print("nothing was deleted", style="dim")
        raise typer.Exit(FAILED)
    raise typer.Exit(run_supervised(command, json_file))


def may_delete(command: RunCommand, yes: bool) -> bool:
    from everstream.cli.runs.fresh import agreed

    return agreed(command, yes)


def run_supervised(command: RunCommand, json_file: Path | None) -> int:
    from everstream.cli.runs.supervise import FAILED, Supervisor
    from everstream.cli.views.messages import Failed, Fault, Finished, Message
    from everstream.cli.views.page import Page, served
    from everstream.cli.views.screen import make_screen
    from everstream.cli.views.summary import show_recoveries, show_summary
    from everstream.events import Note

    with make_screen(console) as screen:

        def show(message: Message) -> None:
            page.hear(message)
            screen.show(message)

        def console_note(text: str) -> None:
            screen.note(Note("history", text, True))

        passing = screen.passing if console.is_terminal else None
        supervisor = Supervisor(command, show, passing)
        page = Page(supervisor, command, console_note)
        screen.sees(page.live.view)
        try:
            with page, served(page, command.options.ui) as texts:
                for text in texts:
                    console.print(text, markup=False, highlight=False, soft_wrap=True)
                code = supervisor.run()
        except EnvironmentFault as error:
            say_error(error.message)
            return FAILED
    log, end = supervisor.log, supervisor.log.end
    if isinstance(end, Finished):
        show_summary(console, end.result, log.checkpoints, log.recoveries)
    elif isinstance(end, Failed) and end.fault is Fault.USAGE:
        say_error(end.text)
    elif isinstance(end, Failed) and end.fault is not Fault.STOPPED:
        show_recoveries(console, log.recoveries)
        say_error(end.text)
    say_end(supervisor.outcome, code, command)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        result = log.to_json(supervisor.outcome, code)
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    return code


def say_error(text: str) -> None:
    first, _, rest = text.partition("\n")
    errors.print(
        f"[bold red]everstream:[/bold red] {escape(first)}", highlight=False, soft_wrap=True
    )
    if rest:
        errors.print(rest, markup=False, highlight=False, soft_wrap=True)


def say_end(outcome: str, code: int, command: RunCommand) -> None:
    from everstream.cli.runs.supervise import TIMED_OUT

    saved = command.options.checkpoint is not None
    resume = "the same command goes on from " + ("here" if saved else "the last checkpoint")
    if outcome == "finished":
        text = "[bold green]finished[/bold green]"
    elif outcome == "caught up":
        text = "[bold green]caught up[/bold green]; the same command processes what arrives later"
    elif outcome == "stopped":
        by_time = " by --timeout" if code == TIMED_OUT else ""
        text = f"[bold]stopped{by_time}[/bold]; {resume if saved else 'nothing was saved'}"
    elif outcome == "killed":
        text = "[bold]killed[/bold]; the same command goes on from the last checkpoint"
    else:
        return
    console.print(text, highlight=False, soft_wrap=True)
