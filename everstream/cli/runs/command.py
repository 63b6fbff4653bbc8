"""`everstream run`: run a pipeline from a file or a module, supervised."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everstream.cli.optional import WithOptionalValues
from everstream.cli.options import option, write_json
from everstream.cli.runs.arguments import RunCommand
from everstream.cli.runs.flags import Given, settings_for, store_key_flag, with_flags
from everstream.cli.say import FAILED, TIMED_OUT, USAGE, console, errors, say, say_error
from everstream.errors import EnvironmentFault, UserError

if TYPE_CHECKING:
    from everstream.cli.runs.supervise import Supervisor
    from everstream.cli.views.messages import Message

LOAD, MONITORING = "Load and faults", "Monitoring"
"""Panels of `--help`."""
Target = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="FILE.py, FILE.py:NAME or module:NAME.")
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- NAME=VALUE ...]",
        help="Arguments of an @es.annotated function.",
        show_default=False,
    ),
]
StoreKeyFile = Annotated[str | None, store_key_flag()]


def register(app: typer.Typer) -> None:
    """Add the command to the `everstream` app."""
    app.command("run", cls=WithOptionalValues)(run)


@with_flags
def run(
    given: Given,
    target: Target,
    arguments: Arguments = None,
    yes: Annotated[bool, option("With --fresh: delete without asking.", name="--yes")] = False,
    json_file: Annotated[
        Path | None, option("Write the result to this file.", "FILE", name="--json")
    ] = None,
    load: Annotated[
        list[str] | None,
        option("Pace sources: 500 or wave,10s,100,1000; repeatable.", "[SOURCE=]PATTERN", LOAD),
    ] = None,
    calibrate: Annotated[
        str | None, option("Scale --load wave to the --json of a full-speed run.", "RUN.json", LOAD)
    ] = None,
    catch_up: Annotated[
        bool,
        option(
            "With --load: emit late records (default: yes)",
            panel="Advanced",
            name="--catch-up/--no-catch-up",
            show_default=False,
        ),
    ] = True,
    monitor_file: Annotated[
        Path | None, option("Write samples to this .csv or .parquet.", "FILE", MONITORING)
    ] = None,
    watch: Annotated[
        bool, option("Continue with each change of the program's file.", name="--watch")
    ] = False,
    log_json: Annotated[
        bool, option("Log to standard error as lines of JSON.", panel=MONITORING, name="--log-json")
    ] = False,
) -> None:
    """Run a pipeline on Spark, or on this machine (--engine local), until its sources end.

    Ctrl-C stops the run with a checkpoint, and the same command resumes from it. If the driver
    dies, it is restarted and resumes from the last checkpoint. With --until caught-up, run the
    same command again, for example every hour, to process new data.

    Every option can also be set in everstream.toml, pyproject.toml or an EVERSTREAM_* environment
    variable; "everstream config" shows what applies, "everstream help configuration" explains all.

    Example: everstream run examples/word_count.py --every 1s --kill fold@5000

    Exit codes: 0 finished, caught up, or stopped with a checkpoint; 1 failed; 2 wrong usage;
    124 stopped by --timeout; 130 killed by a second Ctrl-C.
    """
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
        may_start = True
        if command.options.fresh:
            from everstream.cli.runs.fresh import agreed

            may_start = agreed(command, yes)
    except UserError as error:
        say_error(error.message)
        raise typer.Exit(USAGE) from None
    if not may_start:
        errors.print("nothing was deleted", style="dim")
        raise typer.Exit(FAILED)
    if watch:
        raise typer.Exit(run_watched(command, json_file))
    raise typer.Exit(run_supervised(command, json_file))


def run_watched(command: RunCommand, json_file: Path | None) -> int:
    from everstream.cli.runs.watch import WatchedRun

    try:
        watched = WatchedRun(
            command, lambda command, begin: run_supervised(command, json_file, begin), say
        )
    except UserError as error:
        say_error(error.message)
        return USAGE
    return watched.to_the_end()


def run_supervised(
    command: RunCommand, json_file: Path | None, begin: Callable[["Supervisor"], None] | None = None
) -> int:
    """begin: gets the supervisor before it starts the first driver."""
    from everstream.cli.runs.supervise import Supervisor

    def show(message: "Message") -> None:
        page.hear(message)
        screen.show(message)

    def console_note(text: str) -> None:
        screen.note(Note("history", text, True))

    def passing(line: str) -> None:
        screen.passing(line)

    supervisor = Supervisor(command, show, passing if console.is_terminal else None, may_fork=True)
    # A page that cannot be served is an error before anything runs.
    starts_now = command.options.ui is False and begin is None
    with supervisor.started() if starts_now else nullcontext():
        from everstream.cli.views.messages import DriverFailed, DriverFinished, Fault
        from everstream.cli.views.page import Page, served
        from everstream.cli.views.screen import make_screen
        from everstream.cli.views.summary import show_recoveries, show_summary
        from everstream.events import Note

        with make_screen(console) as screen:
            page = Page(supervisor, command, console_note)
            screen.sees(page.live.view)
            try:
                with page, served(page, command.options.ui) as texts:
                    for text in texts:
                        say(text)
                    if begin is not None:
                        begin(supervisor)
                    code = supervisor.run()
            except EnvironmentFault as error:
                say_error(error.message)
                return FAILED
    log, end = supervisor.log, supervisor.log.end
    if isinstance(end, DriverFinished):
        show_summary(console, end.result, log.checkpoints, log.recoveries)
    elif isinstance(end, DriverFailed) and end.fault is Fault.USAGE:
        say_error(end.text)
    elif isinstance(end, DriverFailed) and end.fault is not Fault.STOPPED:
        show_recoveries(console, log.recoveries)
        say_error(end.text)
    say_end(supervisor.outcome, code, command)
    if json_file is not None:
        write_json(json_file, log.to_json(supervisor.outcome, code))
    return code


def say_end(outcome: str, code: int, command: RunCommand) -> None:
    saved = command.options.checkpoint is not None
    resume = "the same command resumes from " + ("here" if saved else "the last checkpoint")
    by_time = " by --timeout" if code == TIMED_OUT else ""
    texts = {
        "finished": "[bold green]finished[/bold green]",
        "caught up": "[bold green]caught up[/bold green]; "
        "the same command processes what arrives later",
        "stopped": f"[bold]stopped{by_time}[/bold]; {resume if saved else 'nothing was saved'}",
        "killed": "[bold]killed[/bold]; the same command resumes from the last checkpoint",
    }
    if outcome in texts:
        console.print(texts[outcome], highlight=False, soft_wrap=True)
