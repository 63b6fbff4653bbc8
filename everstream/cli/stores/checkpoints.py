"""`everstream checkpoints`, `state` and `rewind`: inspect a store, and roll it back."""

import json
import os
import socket
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from everstream.cli.options import option
from everstream.cli.runs.command import StoreKeyFile
from everstream.cli.say import errors, errors_in_one_line, in_words, say
from everstream.errors import UserError

if TYPE_CHECKING:
    from everstream.inspection import Checkpoint, Overview

SHOWN_ROWS = 20

StoreArgument = Annotated[
    str, typer.Argument(metavar="STORE", help="Folder or fsspec URL that was given to --store.")
]
JsonFlag = Annotated[bool, option("Print JSON instead of a table.", name="--json")]


def register(app: typer.Typer) -> None:
    app.command("checkpoints")(checkpoints)
    app.command("state")(state)
    app.command("rewind")(rewind)


def checkpoints(
    store: StoreArgument,
    shards: Annotated[
        bool, option("Also show every shard of every checkpoint.", name="--shards")
    ] = False,
    verify: Annotated[
        bool, option("Read every object of the checkpoints, compare checksums.", name="--verify")
    ] = False,
    repair: Annotated[
        bool, option("Verify, and replace damaged objects by their intact copies.", name="--repair")
    ] = False,
    as_json: JsonFlag = False,
    store_key: StoreKeyFile = None,
) -> None:
    """List the checkpoints in a store with time, size, duration and whether they are complete.

    "size" is how much the checkpoint added to the store, "restores" how much a restore reads. The
    next run resumes from the current one. Only reads, except with --repair; safe while the
    pipeline runs. Each object has two copies: a checkpoint with one damaged copy is still complete.

    Example: everstream checkpoints .everstream/word-count --verify

    Exit codes: 0 listed; 1 the store cannot be read; 2 wrong usage, or no such store.
    """
    from everstream.inspection import look, open_store
    from everstream.inspection import repair as heal

    verify = verify or repair
    with errors_in_one_line():
        opened = open_store(store, store_key)
        with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
            progress.add_task("verifying" if verify else "reading", total=None)
            healed = heal(opened) if repair else []
            overview = look(opened, verify=verify)
    for text in healed:
        typer.echo(f"repaired from its copy: {text}", err=True)
    if as_json:
        typer.echo(json.dumps(overview.to_json(), indent=2))
        return
    _show(overview, shards)


def state(
    store: StoreArgument,
    operator: Annotated[str, option("Operator whose state to show.", "NAME", name="--operator")],
    epoch: Annotated[
        int | None, option("Epoch of the checkpoint; default: the current one.", min=0)
    ] = None,
    limit: Annotated[
        int | None, option(f"Most rows to show; default: {SHOWN_ROWS}, in files all.", min=1)
    ] = None,
    as_json: JsonFlag = False,
    csv: Annotated[
        Path | None, option("Write the rows to this CSV file.", "FILE", name="--csv")
    ] = None,
    store_key: StoreKeyFile = None,
) -> None:
    """Show the state of an operator in a checkpoint, over all its shards.

    A source shows its offsets, a sink the transactions that it prepared and did not commit yet.
    Only reads; safe while the pipeline runs. Values of your own classes are unpickled: run
    this where they can be imported, and only on stores you trust.

    Example: everstream state .everstream/word-count --operator fold --limit 10

    Exit codes: 0 shown; 1 the checkpoint cannot be read; 2 wrong usage, or no such store,
    operator or epoch.
    """
    from everstream.inspection import read_state

    with errors_in_one_line():
        if as_json and csv is not None:
            raise UserError("--json and --csv: choose one of them.")
        # The classes of values are often in a module beside the pipeline.
        sys.path.insert(0, os.getcwd())
        frame = read_state(store, operator, epoch, store_key=store_key)
    limit = SHOWN_ROWS if limit is None and csv is None and not as_json else limit
    shown = frame if limit is None else frame.head(limit)
    if as_json:
        typer.echo(json.dumps(shown.to_dicts(), indent=2, default=str))
        return
    if csv is not None:
        csv.parent.mkdir(parents=True, exist_ok=True)
        nested = [name for name, kind in shown.schema.items() if kind.is_nested()]
        texts = {name: [str(value) for value in shown[name].to_list()] for name in nested}
        shown.with_columns(**{n: type(shown[n])(n, t) for n, t in texts.items()}).write_csv(csv)
        say(f"{len(shown)} rows: {csv}")
        return
    several = "state" in frame.columns and frame["state"].n_unique() > 1
    table = Table()
    names = [name for name in frame.columns if several or name != "state"]
    for name in names:
        table.add_column(name, justify="right" if name == "shard" else "left", overflow="fold")
    for row in shown.select(names).iter_rows():
        table.add_row(*("" if item is None else escape(str(item)) for item in row))
    Console().print(table)
    one = "state" in frame.columns and not several and not frame.is_empty()
    what = f" of state '{frame['state'][0]}'" if one else ""
    cut = f", the first {len(shown)} shown (--limit)" if len(shown) < len(frame) else ""
    rows = "1 row" if len(frame) == 1 else f"{len(frame)} rows"
    say(f"{rows}{what}{cut}")


def rewind(
    store: StoreArgument,
    to: Annotated[
        str, option("The epoch or savepoint to roll back to.", "EPOCH|NAME", name="--to")
    ],
    yes: Annotated[bool, option("Do not ask for confirmation.", name="--yes")] = False,
    store_key: StoreKeyFile = None,
) -> None:
    """Roll back to an older checkpoint or a savepoint: the next run resumes from it.

    Later checkpoints are discarded. When the next run starts, exactly-once sinks remove the output
    that they committed since; other sinks receive those records again. Until that run starts you
    can undo the rewind: rewind to the later epoch. Some sinks cannot remove what they have
    committed: Kafka topics, and your own sinks whose irrevocable() returns a reason. If such an
    exactly-once sink has received records since, the rewind is refused with that reason, and
    nothing changes. A run that is still active is fenced and ends: stop it first.

    Example: everstream rewind .everstream/word-count --to 12

    Exit codes: 0 done; 1 refused, or the store cannot be read or written; 2 wrong usage, or no
    such store or epoch.
    """
    from everstream.inspection import (
        check_rewind,
        check_rewind_to_savepoint,
        open_store,
        rewind_to_savepoint,
    )
    from everstream.inspection import rewind as go_back
    from everstream.state.manifest_append import pause

    def say_and_wait(trouble: Exception) -> None:
        typer.echo(f"It is not known yet whether the write succeeded: {trouble}", err=True)
        pause(trouble)

    with errors_in_one_line():
        opened = open_store(store, store_key)
        epoch = int(to) if to.isdigit() else None
        if epoch is not None:
            target, current = check_rewind(opened, epoch)
        else:
            target, current = check_rewind_to_savepoint(opened, to)
        if not yes:
            typer.confirm(
                f"Roll back from epoch {current.epoch} to epoch {target.epoch} of pipeline "
                f"'{target.pipeline}' (written {_when(target.written_at)})? Everything after it is "
                "discarded when the next run starts, and a run that is still active ends.",
                abort=True,
            )
        owner = f"everstream rewind pid {os.getpid()} on {socket.gethostname()}"
        if epoch is not None:
            go_back(opened, epoch, owner=owner, now=time.time(), wait=say_and_wait)
        else:
            rewind_to_savepoint(opened, to, owner=owner, now=time.time(), wait=say_and_wait)
    typer.echo(
        f"Epoch {target.epoch} is the current one. The next run with this store resumes from it."
    )


def _show(overview: "Overview", shards: bool) -> None:
    console, rows = Console(), overview.checkpoints
    if rows:
        console.print(_table(rows, overview.verified))
    else:
        console.print("No checkpoints yet.")
    if shards:
        for row in rows:
            if row.manifest is not None:
                console.print(_shard_table(row))
    for row in rows:
        for problem in row.problems:
            title = f"slot {row.slot}" if row.epoch is None else f"epoch {row.epoch}"
            say(f"{title}: {problem}")
    for text in dict.fromkeys(weakness for row in rows for weakness in row.weaknesses):
        say(f"one of two copies is damaged: {text}; --repair replaces it")
    if overview.kept is not None:
        newest, age_s = overview.kept
        younger = f", and all that are younger than {age_s:g} s" if age_s else ""
        say(f"Kept: the newest {newest}{younger} (keep_checkpoints)")
    say(overview.lease_in_words)


def _table(rows: "list[Checkpoint]", verified: bool) -> Table:
    table = Table()
    for name in ("epoch", "written at", "size", "restores", "duration", "shards"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("complete", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for row in rows:
        if row.manifest is None:
            epoch = "?" if row.epoch is None else str(row.epoch)
            table.add_row(epoch, "", "", "", "", "", "no", row.status.value)
            continue
        manifest = row.manifest
        sound = "verified" if verified else "yes"
        table.add_row(
            str(manifest.epoch),
            _when(manifest.written_at),
            in_words(manifest.size_bytes),
            in_words(row.restore_bytes),
            f"{manifest.duration_s * 1000:.0f} ms",
            str(len(manifest.records)),
            sound if row.complete else "damaged",
            row.status.value + (", final" if manifest.final else ""),
        )
    return table


def _shard_table(row: "Checkpoint") -> Table:
    table = Table(title=f"epoch {row.epoch}", title_justify="left")
    for name in ("shard", "operators", "size", "restores", "objects", "capture", "upload"):
        left = name in ("shard", "operators")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    table.add_column("ended")
    assert row.manifest is not None
    for record in row.manifest.records.values():
        table.add_row(
            escape(str(record.shard)),
            escape(", ".join(record.operators)),
            in_words(record.size_bytes),
            in_words(record.restore_bytes),
            str(len(record.objects) + len(record.files)),
            f"{record.capture_s * 1000:.1f} ms",
            f"{record.upload_s * 1000:.1f} ms",
            "yes" if record.final else "",
        )
    return table


def _when(written_at: float | None) -> str:
    if written_at is None:
        return "unknown"
    return datetime.fromtimestamp(written_at).strftime("%Y-%m-%d %H:%M:%S")
