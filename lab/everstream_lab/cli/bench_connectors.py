"""`everstream bench connectors`: sources and sinks against their bare clients."""

from typing import Annotated

import typer
from rich.console import Console

from everstream.cli.options import JsonFile
from everstream.errors import UserError
from everstream_lab.bench.report import Progress, Report
from everstream_lab.cli.showing import run_benchmark


def register(bench: typer.Typer) -> None:
    """Add the command to the `bench` group."""
    bench.command("connectors")(connectors)


def connectors(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this row, or those whose names begin so (json, postgres-sink); repeat."
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=ADDRESS",
            help="Use this server instead of one of our own: "
            "postgres='host=127.0.0.1 user=me dbname=bench'; repeat.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the median ratio counts.")] = 3,
    scale: Annotated[
        float,
        typer.Option(
            min=0.0001, help="Multiply the number of records, which takes about two seconds."
        ),
    ] = 1.0,
    json_file: JsonFile = None,
) -> None:
    """Measure the speed of each source and sink, beside the bare client doing the same work.

    One shard, checkpoints every second, against one loop with the same library that syncs as often
    and shows whole files or transactions only. Both in turn, round by round; a ratio is of one round.
    The word counts, from text to Collect and to JSON lines, run on two processes, and a rate is their goal.

    Our clock is the run's own: from the first shard running to the last output committed. Spark's
    start is in no figure, and a small run of each side goes before. What each side moved is counted.

    Rows that need a server start one of their own, on loopback, where it is installed
    (scripts/postgres.sh, scripts/redis.sh, scripts/kafka.sh); the others are left out, with the reason.

    Example: everstream bench connectors --only json --json connectors.json
    """
    from everstream_lab.bench.connectors.catalogue import SERVERS, chosen
    from everstream_lab.bench.connectors.measure import measure, report_of
    from everstream_lab.bench.connectors.servers import running

    rows = chosen(only or [])
    addresses = _addresses(at or [])
    kinds = {row.server for row in rows if row.server is not None}
    left_out: dict[str, str] = {}

    def take(progress: Progress) -> Report:
        with running(kinds, addresses, SERVERS) as (servers, missing):
            left_out.update(
                (row.name, missing[row.server]) for row in rows if row.server in missing
            )
            possible = [row for row in rows if row.name not in left_out]
            compared = measure(possible, servers, rounds=rounds, scale=scale, progress=progress)
        return report_of(compared, left_out)

    run_benchmark(take, json_file)
    for name, reason in left_out.items():
        Console().print(f"{name} was left out: {reason}", markup=False)


def _addresses(given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for text, (kind, _, address) in zip(given, pairs, strict=True):
        if not kind or not address:
            shown = kind if "=" in text else "..."
            raise UserError(
                f"--at {shown} names no server: say --at postgres='host=127.0.0.1 ...'."
            )
    return {kind: address for kind, _, address in pairs}
