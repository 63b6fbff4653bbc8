"""`everstream run`: run a pipeline from a file or a module, supervised."""

import json
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from everstream.cli.options import ALSO_CALLED, RunOptions
from everstream.core.registry import PROTOCOLS
from everstream.errors import EnvironmentFault, UserError

console = Console()
errors = Console(stderr=True)
LOGGING = [protocol.name for protocol in PROTOCOLS.values() if protocol.logs]


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
Renamed = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OLD=NEW",
        help="An operator has another name than in the checkpoint; NAME=NAME: it has changed, and "
        "its state still fits. Can be given several times.",
    ),
]
DropState = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OPERATOR",
        help="Let this operator begin with nothing while the others go on from the checkpoint. "
        "Can be given several times.",
    ),
]
StoreKeyFile = Annotated[
    str | None,
    typer.Option(
        "--store-key",
        metavar="FILE",
        envvar="EVERSTREAM_STORE_KEY_FILE",
        help="File with the key that signs the store: what was not signed with it is refused, so "
        "that who else can write there cannot run code in here.",
    ),
]


class Engines(Enum):
    tasks = "tasks"
    microbatch = "microbatch"


EngineOption = Annotated[
    Engines,
    typer.Option(
        help="tasks: Spark tasks that stay and send each other records; microbatch: one Spark job "
        "per epoch, Spark carries the records."
    ),
]


class Log(Enum):
    durable = "durable"
    memory = "memory"


class Transport(Enum):
    auto = "auto"
    tcp = "tcp"


class State(Enum):
    memory = "memory"
    disk = "disk"


def run(
    target: Target,
    arguments: Arguments = None,
    engine: EngineOption = Engines.tasks,
    master: Annotated[
        str, typer.Option(help="Spark master: local[4], spark://host:7077, ...")
    ] = "local[*]",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Hosts (Spark tasks) to spread the shards over; default: all."),
    ] = None,
    autoscale: Annotated[
        str | None,
        typer.Option(
            metavar="MIN-MAX",
            help="Change numbers of shards while running so that operators are busy 70 % of the time: "
            "1-8, or 1-8@0.6 for another share.",
        ),
    ] = None,
    spares: Annotated[
        int,
        typer.Option(
            min=0,
            help="Further Spark tasks that stand by: one takes the place of a host that dies at once.",
        ),
    ] = 0,
    checkpoint: Annotated[
        str,
        typer.Option(
            metavar="PROTOCOL",
            help="How to checkpoint. "
            + "; ".join(f"{p.name}: {p.says}" for p in PROTOCOLS.values()),
            autocompletion=lambda: list(PROTOCOLS),
        ),
    ] = "aligned",
    every: Annotated[
        str | None,
        typer.Option(
            metavar="30s",
            help="Time between checkpoints; default 30s; 'auto': the best for what this run sees.",
        ),
    ] = None,
    every_records: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Checkpoint after N records read.")
    ] = None,
    log: Annotated[
        Log | None,
        typer.Option(
            help=f"{', '.join(LOGGING)}: keep what was sent in the store (the default), or in "
            "memory, where it is lost with its process."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder or fsspec URL for checkpoints; default .everstream/<pipeline's name>.",
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Delete earlier checkpoints and output, start over. Asks."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --fresh: do not ask before deleting.")
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Run even if another run uses this store; that one then ends."
        ),
    ] = False,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby",
            help="Wait, with Spark warm, until whoever runs on this store dies or falls silent; then "
            "take over. With nobody there: run.",
        ),
    ] = False,
    standby_after: Annotated[
        str,
        typer.Option(
            metavar="1.5s",
            help="With --standby: so long a silence is taken for death. Longer costs fewer writes to "
            "the store.",
        ),
    ] = "1.5s",
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="STORE@NAME",
            help="Begin with the state of this savepoint, if the run's own store has no checkpoint "
            "yet; output before it is not repeated.",
        ),
    ] = None,
    renamed: Renamed = None,
    drop_state: DropState = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Failures to recover from before giving up.")
    ] = 3,
    timeout: Annotated[
        str | None, typer.Option(metavar="10m", help="Stop with a checkpoint after so long.")
    ] = None,
    checkpoint_timeout: Annotated[
        str,
        typer.Option(metavar="10m", help="Give up a checkpoint that takes longer, and go on."),
    ] = "10m",
    pack_after: Annotated[
        str,
        typer.Option(
            metavar="30s",
            help="A host that does not come back for so long leaves its shards to the others.",
        ),
    ] = "30s",
    heartbeat_timeout: Annotated[
        str,
        typer.Option(
            metavar="10s",
            help="Take a host for dead that is silent for so long, and start it again. Longer where "
            "functions hold Python's interpreter lock for seconds, shorter to notice a dead machine "
            "sooner.",
        ),
    ] = "10s",
    kill: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPERATOR[:SHARD]@WHEN",
            help="Kill the process of a shard with SIGKILL, after a time (@5s) or so many of its "
            "records (@10000). Can be given several times.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the result here.")
    ] = None,
    transport: Annotated[
        Transport,
        typer.Option(help="auto: unix sockets on one machine, encrypted TCP between machines."),
    ] = Transport.auto,
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
    store_key: StoreKeyFile = None,
    monitor: Annotated[
        str | None,
        typer.Option(
            metavar="100ms",
            help="Sample throughput, latency, CPU and memory so often, from 50ms on; into "
            "monitor.csv unless --monitor-file says where.",
        ),
    ] = None,
    monitor_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the samples go: a .csv or a .parquet."),
    ] = None,
    log_json: Annotated[
        bool,
        typer.Option(
            "--log-json",
            help="What the run and its operators log comes out as lines of JSON, with pipeline, "
            "operator and shard, on standard error.",
        ),
    ] = False,
    history: Annotated[
        bool,
        typer.Option(
            "--history/--no-history",
            help="Keep in the store what happened, at most 16 MB of it, for everstream ui.",
        ),
    ] = True,
    ui: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:PORT]",
            help="Serve a page on which the run is seen live, with its metrics for Prometheus; by "
            "default only for this machine. The link that is printed has the token for actions.",
        ),
    ] = None,
    state: Annotated[
        State | None,
        typer.Option(
            help="Where operators keep their state that have not said it themselves; on disk it may be "
            "larger than memory.",
        ),
    ] = None,
    host_memory: Annotated[
        str | None,
        typer.Option(
            metavar="2g",
            help="What the process of a host may have. Near it nothing new is read until there is "
            "less; at it the run fails and says whose state it is.",
        ),
    ] = None,
) -> None:
    """Run a pipeline on Spark until its sources end, Ctrl-C or --timeout.

    Stopping takes a checkpoint, and the same command goes on from it. If the driver process is
    killed it is started again and goes on from the last checkpoint, too.

    Example: everstream run examples/word_count.py --every 1s --kill fold@5000

    Exit codes: 0 finished, or stopped with a checkpoint; 1 failed; 2 wrong usage;
    124 stopped by --timeout; 130 killed by a second Ctrl-C.
    """
    from everstream.cli.supervise import FAILED, USAGE

    if checkpoint in ALSO_CALLED:
        errors.print(f"--checkpoint {checkpoint} is called {ALSO_CALLED[checkpoint]}.", style="dim")
    options = RunOptions(
        target=target,
        engine=engine.value,
        master=master,
        workers=workers,
        spares=spares,
        autoscale=autoscale,
        standby=standby_after if standby else None,
        checkpoint=ALSO_CALLED.get(checkpoint, checkpoint),
        every=every,
        every_records=every_records,
        log=None if log is None else log.value,
        store=store,
        fresh=fresh,
        renamed=tuple(renamed or ()),
        drop_state=tuple(drop_state or ()),
        take_over=take_over,
        start_from=start_from,
        max_restarts=max_restarts,
        timeout=timeout,
        checkpoint_timeout=checkpoint_timeout,
        heartbeat_timeout=heartbeat_timeout,
        pack_after=pack_after,
        kills=tuple(kill or ()),
        transport=transport.value,
        load=tuple(load or ()),
        calibrate=calibrate,
        catch_up=catch_up,
        store_key=store_key,
        monitor=monitor,
        monitor_file=_monitor_file(monitor, monitor_file),
        log_json=log_json,
        history=history,
        state=None if state is None else state.value,
        host_memory=host_memory,
        arguments=tuple(arguments or ()),
    )
    try:
        options.check()
        if ui is not None:
            from everstream.ui.serving import address_of

            address_of(ui)
        may_start = not fresh or may_delete(options, yes)
    except UserError as error:
        say_error(error.message)
        raise typer.Exit(USAGE) from None
    if not may_start:
        errors.print("nothing was deleted", style="dim")
        raise typer.Exit(FAILED)
    raise typer.Exit(run_supervised(options, json_file, ui))


def _monitor_file(monitor: str | None, file: Path | None) -> str | None:
    if file is None:
        return None if monitor is None else "monitor.csv"
    return str(file)


def may_delete(options: RunOptions, yes: bool) -> bool:
    from everstream.cli.fresh import agreed

    return agreed(options, yes)


def run_supervised(options: RunOptions, json_file: Path | None, ui: str | None = None) -> int:
    from everstream.cli.events import Event, Failed, Fault, Finished, Noted
    from everstream.cli.page import Page, served
    from everstream.cli.screen import make_screen
    from everstream.cli.summary import show_recoveries, show_summary
    from everstream.cli.supervise import FAILED, Supervisor

    with make_screen(console) as screen:

        def show(event: Event) -> None:
            page.hear(event)
            screen.show(event)

        def console_note(text: str) -> None:
            screen.show(Noted(text, True))

        passing = screen.passing if console.is_terminal else None
        supervisor = Supervisor(options, show, passing)
        page = Page(supervisor, options, console_note)
        screen.sees(page.live.view)
        try:
            with page, served(page, ui) as said:
                for text in said:
                    console.print(text, markup=False, highlight=False, soft_wrap=True)
                code = supervisor.run()
        except EnvironmentFault as error:
            say_error(error.message)
            return FAILED
    story, end = supervisor.story, supervisor.story.end
    if isinstance(end, Finished):
        show_summary(console, end.result, story.checkpoints, story.recoveries)
    elif isinstance(end, Failed) and end.fault is Fault.USAGE:
        say_error(end.text)
    elif isinstance(end, Failed) and end.fault is not Fault.STOPPED:
        show_recoveries(console, story.recoveries)
        say_error(end.text)
    say_end(supervisor.outcome, code, options)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        result = story.to_json(supervisor.outcome, code)
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    return code


def say_error(text: str) -> None:
    first, _, rest = text.partition("\n")
    errors.print(
        f"[bold red]everstream:[/bold red] {escape(first)}", highlight=False, soft_wrap=True
    )
    if rest:
        errors.print(rest, markup=False, highlight=False, soft_wrap=True)


def say_end(outcome: str, code: int, options: RunOptions) -> None:
    from everstream.cli.supervise import TIMED_OUT

    saved = options.checkpoint != "none"
    resume = "the same command goes on from " + ("here" if saved else "the last checkpoint")
    if outcome == "finished":
        text = "[bold green]finished[/bold green]"
    elif outcome == "stopped":
        by_time = " by --timeout" if code == TIMED_OUT else ""
        text = f"[bold]stopped{by_time}[/bold]; {resume if saved else 'nothing was saved'}"
    elif outcome == "killed":
        text = "[bold]killed[/bold]; the same command goes on from the last checkpoint"
    else:
        return
    console.print(text, highlight=False, soft_wrap=True)
