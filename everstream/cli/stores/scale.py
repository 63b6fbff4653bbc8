"""`everstream scale`: show the shards of each operator, and change them while a pipeline runs."""

import json
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from everstream.cli.runs.command import StoreKeyFile
from everstream.cli.say import errors_in_one_line
from everstream.cli.stores.checkpoints import JsonFlag, StoreArgument
from everstream.errors import UserError

LOOK_EVERY_S = 0.2


def register(app: typer.Typer) -> None:
    app.command("scale")(scale)


def scale(
    store: StoreArgument,
    shards: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPERATOR=SHARDS",
            help="New number of shards, as in count=4; without any: show the current ones.",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="How long to wait until the run has rescaled; 0: do not wait."
        ),
    ] = 10.0,
    as_json: JsonFlag = False,
    store_key: StoreKeyFile = None,
) -> None:
    """Change the number of shards of operators, while the pipeline runs or before its next run.

    The request is recorded in the store, where a run finds it within a second. The run quiesces,
    takes a checkpoint and resumes with the new shards in the same processes. State, offsets and
    output are redistributed exactly. Operators without an explicit shard count follow the
    operators before them. If you later change the number in the program, the program's number
    applies again.

    Example: everstream scale .everstream/word-count fold=4

    Exit codes: 0 done, or recorded for the next run; 1 the store cannot be used; 2 wrong usage, or
    no such store or operator.
    """
    from everstream.core.checkpointing.manifest import EpochManifest
    from everstream.inspection import open_store
    from everstream.state.control import Shards, read_settings, record_settings

    with errors_in_one_line():
        opened = open_store(store, store_key)
        manifests = [EpochManifest.from_json(entry.body) for entry in opened.manifests()]
        if not manifests:
            raise UserError(
                f"there is no checkpoint in {store} yet: set shards=... in the program."
            )
        wanted = _parsed(shards or [], manifests[0].shard_counts)
        before = read_settings(opened.blobs).shards
        written = {
            n: before[n].written if n in before else c for n, c in manifests[0].shard_counts.items()
        }
        if wanted:
            changed = {name: Shards(count, written[name]) for name, count in wanted.items()}
            record_settings(opened.blobs, {}, changed)
        newest = manifests[0]
        by_s = time.monotonic() + wait
        while not wanted.items() <= newest.shard_counts.items() and time.monotonic() < by_s:
            time.sleep(LOOK_EVERY_S)
            newest = EpochManifest.from_json(next(iter(opened.manifests())).body)
        recorded = read_settings(opened.blobs).shards
    done = wanted.items() <= newest.shard_counts.items()
    rows = {
        name: {"shards": count, "wanted": recorded[name].wanted if name in recorded else count}
        for name, count in newest.shard_counts.items()
    }
    if as_json:
        typer.echo(json.dumps({"operators": rows, "done": done}, indent=2))
    else:
        table = Table("operator", "shards", "wanted")
        for name, row in rows.items():
            other = "" if row["wanted"] == row["shards"] else str(row["wanted"])
            table.add_row(name, str(row["shards"]), other)
        Console().print(table)
        if not done:
            typer.echo(
                f"Recorded. No run has applied it within {wait:g} s: it applies to the next one."
            )


def _parsed(texts: list[str], known: dict[str, int]) -> dict[str, int]:
    wanted = {}
    for text in texts:
        name, equals, count = text.rpartition("=")
        if not equals or not count.isdigit() or int(count) < 1:
            raise UserError(f"'{text}': write OPERATOR=SHARDS, as in count=4.")
        if name not in known:
            raise UserError(
                f"there is no operator '{name}'; this pipeline has: {', '.join(known)}."
            )
        wanted[name] = int(count)
    return wanted
