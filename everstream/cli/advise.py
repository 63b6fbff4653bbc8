"""`everstream advise`: how often to checkpoint, with which protocol, and what a failure costs."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from everstream.cli.json_file import write_json


def register(app: typer.Typer) -> None:
    """Add the command to the `everstream` app."""
    app.command("advise")(advise)


def advise(
    state_size: Annotated[
        str | None, typer.Option(help="State of all shards together, like 2GB.")
    ] = None,
    write_bandwidth: Annotated[
        str | None, typer.Option(help="What the store takes per second, like 200MB/s.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="Records arriving per second, like 50k/s.")
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(help="The most the job can process per second.")
    ] = None,
    mtbf: Annotated[
        str | None, typer.Option(help="Mean time between failures of the whole job, like 6h.")
    ] = None,
    recovery: Annotated[
        str | None, typer.Option(help="From a failure until the state is restored, like 2s.")
    ] = None,
    capture: Annotated[
        str | None, typer.Option(help="How long a checkpoint stops the hot path, like 50ms.")
    ] = None,
    record_size: Annotated[
        str | None, typer.Option(help="A record on its way between shards, like 100B.")
    ] = None,
    shards: Annotated[int | None, typer.Option(min=1, help="How many shards the job has.")] = None,
    cycles: Annotated[bool, typer.Option(help="The graph has feedback edges.")] = False,
    exactly_once: Annotated[
        bool, typer.Option(help="No record may count twice after a failure.")
    ] = True,
    target_recovery: Annotated[
        str | None, typer.Option(help="From a failure until caught up, at worst, like 10s.")
    ] = None,
    max_overhead: Annotated[
        str | None, typer.Option(help="What checkpoints may cost when nothing fails, like 2%.")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="How many tasks Spark can run at once.")
    ] = None,
    sockets: Annotated[
        bool, typer.Option(help="Workers may open sockets to talk to each other.")
    ] = True,
    max_latency: Annotated[
        str | None, typer.Option(help="How long a result may take to show, like 1s.")
    ] = None,
    from_run: Annotated[
        Path | None, typer.Option(help="Take what is not given from the JSON result of a run.")
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            help="Weigh the protocols by what `everstream bench protocols --json` measured here, "
            "not by the measurement that is built in."
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw cost against interval into this PNG.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the advice as JSON into this file.")
    ] = None,
) -> None:
    """Say how often to checkpoint, with which protocol and engine, and what a failure will cost.

    Tell it what you know; what you do not know is assumed and said so. A measured run is best.

    Examples:

      everstream advise --state-size 2GB --write-bandwidth 200MB/s --rate 50k/s
          --capacity 150k/s --mtbf 6h --recovery 2s --shards 8

      everstream advise --from-run result.json --mtbf 1d --target-recovery 10s --figure cost.png

      everstream advise --from-run result.json --measured reports/protocols.json

      everstream advise --rate 50k/s --capacity 150k/s --shards 64 --slots 8 --max-latency 5s
    """
    from everstream.planning import AdviceError, RunResultError
    from everstream.planning import advise as ask
    from everstream.planning.units import QuantityError

    if figure is not None:
        from everstream.planning import figures
    console = Console()
    try:
        advice = ask(
            from_run=from_run,
            measured=measured,
            record_size=record_size,
            exactly_once=exactly_once,
            state_size=state_size,
            write_bandwidth=write_bandwidth,
            rate=rate,
            capacity=capacity,
            mtbf=mtbf,
            recovery=recovery,
            capture=capture,
            shards=shards,
            cycles=cycles,
            target_recovery=target_recovery,
            max_overhead=max_overhead,
            slots=slots,
            sockets=sockets,
            max_latency=max_latency,
        )
    except (AdviceError, RunResultError, QuantityError) as error:
        raise typer.BadParameter(str(error)) from error
    console.print(str(advice), highlight=False, soft_wrap=True)
    console.print(_options_table(advice.options))
    for option in advice.options:
        if not option.usable:
            console.print(f"Not {option.protocol}: {option.note}.", highlight=False)
    if figure is not None:
        console.print(f"Figure: {figures.advice_curve(advice, figure)}")
    if json_file is not None:
        write_json(json_file, _plain(dataclasses.asdict(advice)))
        console.print(f"JSON: {json_file}")


def _options_table(options: Any) -> Table:
    from everstream.planning.units import show_count, show_duration

    table = Table(title="The protocols at their best interval")
    for name in ("protocol", "interval", "no failure", "recovery", "worst", "replayed", "stops"):
        table.add_column(name, justify="left" if name == "protocol" else "right", no_wrap=True)
    for option in options:
        if not option.usable:
            continue
        table.add_row(
            option.protocol,
            show_duration(option.interval_s),
            f"{option.overhead:.2%}",
            show_duration(option.recovery_s),
            show_duration(option.worst_recovery_s),
            show_count(option.replayed),
            f"{option.stopped_share:.0%}",
        )
    return table


def _plain(value: Any) -> Any:
    """JSON has no infinity: a recovery that never ends is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
