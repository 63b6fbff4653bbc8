"""`everstream advise`: how often to checkpoint, with which protocol, and what a failure costs."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from everstream.cli.options import option, write_json

PIPELINE, REQUIREMENTS = "Pipeline", "Requirements"
"""Panels of `--help`."""


def register(app: typer.Typer) -> None:
    app.command("advise")(advise)


def advise(
    state_size: Annotated[str | None, option("State of all shards, such as 2GB.", "SIZE")] = None,
    write_bandwidth: Annotated[
        str | None, option("Write bandwidth of the store, such as 200MB/s.", "RATE")
    ] = None,
    rate: Annotated[str | None, option("Records that arrive, such as 50k/s.", "RATE")] = None,
    capacity: Annotated[
        str | None, option("Most records the job can process, such as 150k/s.", "RATE")
    ] = None,
    mtbf: Annotated[
        str | None, option("Mean time between failures of the job, such as 6h.", "TIME")
    ] = None,
    recovery: Annotated[
        str | None, option("Time from a failure until state is restored, such as 2s.", "TIME")
    ] = None,
    capture: Annotated[
        str | None,
        option("How long a checkpoint pauses processing, such as 50ms.", "TIME", PIPELINE),
    ] = None,
    record_size: Annotated[
        str | None, option("Size of a record between shards, such as 100B.", "SIZE", PIPELINE)
    ] = None,
    shards: Annotated[
        int | None, option("Number of shards of the job.", panel=PIPELINE, min=1)
    ] = None,
    cycles: Annotated[bool, option("The graph has feedback edges.", panel=PIPELINE)] = False,
    exactly_once: Annotated[
        bool, option("No record may count twice after a failure.", panel=REQUIREMENTS)
    ] = True,
    target_recovery: Annotated[
        str | None,
        option("Longest time from a failure until caught up, such as 10s.", "TIME", REQUIREMENTS),
    ] = None,
    max_overhead: Annotated[
        str | None,
        option(
            "Most that checkpoints may cost without failures, such as 2%.", "SHARE", REQUIREMENTS
        ),
    ] = None,
    slots: Annotated[
        int | None, option("Tasks that Spark can run at once.", panel=REQUIREMENTS, min=1)
    ] = None,
    sockets: Annotated[
        bool, option("Workers may open sockets to each other.", panel=REQUIREMENTS)
    ] = True,
    max_latency: Annotated[
        str | None,
        option("Longest time until a result is visible, such as 1s.", "TIME", REQUIREMENTS),
    ] = None,
    from_run: Annotated[
        Path | None, option("Take missing values from the --json result of this run.", "FILE")
    ] = None,
    measured: Annotated[
        Path | None,
        option(
            "Use protocol costs that `everstream bench protocols --json` measured here instead of "
            "the built-in ones.",
            "FILE",
            "Advanced",
        ),
    ] = None,
    figure: Annotated[
        Path | None, option("Draw cost against interval into this PNG.", "FILE", "Output")
    ] = None,
    json_file: Annotated[
        Path | None, option("Write the advice to this file.", "FILE", "Output", "--json")
    ] = None,
) -> None:
    """Recommend a checkpoint interval, protocol and engine, and predict what a failure costs.

    Give what you know. Everything else is assumed, and the answer lists the assumptions. The best
    input is a measured run (--from-run).

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
    for one in advice.options:
        if not one.usable:
            console.print(f"Not {one.protocol}: {one.note}.", highlight=False)
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
    for one in options:
        if not one.usable:
            continue
        table.add_row(
            one.protocol,
            show_duration(one.interval_s),
            f"{one.overhead:.2%}",
            show_duration(one.recovery_s),
            show_duration(one.worst_recovery_s),
            show_count(one.replayed),
            f"{one.stopped_share:.0%}",
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
