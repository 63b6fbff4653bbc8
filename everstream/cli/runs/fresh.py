"""`--fresh` deletes the published output of earlier runs: list it, and ask first."""

import sys

import typer

from everstream.cli.runs.arguments import RunCommand
from everstream.cli.runs.finding import load_pipeline
from everstream.core.plan import make_plan
from everstream.engine.settings.options import store_url
from everstream.engine.store_session import sinks_of
from everstream.errors import UserError
from everstream.state.savepoints import savepoints_in
from everstream.state.signing import StoreKey
from everstream.state.store import CheckpointStore


def would_be_deleted(command: RunCommand) -> list[str]:
    """What a run with --fresh deletes, one line per place; empty for the first run."""
    graph = make_plan(
        load_pipeline(command.target, command.arguments), command.options.resources.workers or 1
    ).graph
    url = store_url(command.store_of(graph.name))
    assert url is not None
    lines = []
    checkpoints = len(
        CheckpointStore.at(url, StoreKey.given(command.options.store_key)).survey().manifests
    )
    if checkpoints:
        lines.append(f"{checkpoints} checkpoint(s) in the store '{url}'")
    for operator, sink in sinks_of(graph):
        left = sink.left_behind(graph.name, operator, url)
        if left is not None:
            lines.append(f"{left} (operator '{operator}')")
    return lines


def _stays(command: RunCommand) -> list[str]:
    """The savepoints, which --fresh keeps."""
    url = store_url(command.store_of(load_pipeline(command.target, command.arguments).name))
    assert url is not None
    kept = savepoints_in(CheckpointStore.at(url, StoreKey.given(command.options.store_key)))
    names = ", ".join(f"'{one.name}'" for one in kept)
    return [f"and not the savepoint(s) {names}: they stay"] if kept else []


def agreed(command: RunCommand, yes: bool) -> bool:
    """Whether the user agrees to the deletion; a UserError if there is no terminal to ask."""
    deleted = would_be_deleted(command)
    if not deleted:
        return True
    listed = "\n".join(f"  {line}" for line in [*deleted, *_stays(command)])
    if yes:
        typer.echo(f"--fresh deletes:\n{listed}", err=True)
        return True
    if not sys.stdin.isatty():
        raise UserError(f"--fresh would delete this; say --yes if that is meant:\n{listed}")
    typer.echo(f"--fresh deletes:\n{listed}", err=True)
    return typer.confirm("Delete all of it and start over?", default=False, err=True)
