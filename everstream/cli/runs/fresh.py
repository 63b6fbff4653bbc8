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


def _deleted_and_kept(command: RunCommand) -> tuple[list[str], list[str]]:
    """What a run with --fresh deletes, one line per place, and the savepoints, which it keeps."""
    pipeline = load_pipeline(command.target, command.arguments)
    graph = make_plan(pipeline, command.options.resources.workers or 1).graph
    url = store_url(command.store_of(graph.name))
    assert url is not None
    store = CheckpointStore.at(url, StoreKey.given(command.options.store_key))
    checkpoints = len(store.survey().manifests)
    deleted = [f"{checkpoints} checkpoint(s) in the store '{url}'"] if checkpoints else []
    for operator, sink in sinks_of(graph):
        left = sink.left_behind(graph.name, operator, url)
        if left is not None:
            deleted.append(f"{left} (operator '{operator}')")
    names = ", ".join(f"'{one.name}'" for one in savepoints_in(store))
    return deleted, [f"and not the savepoint(s) {names}: they stay"] if names else []


def agreed(command: RunCommand, yes: bool) -> bool:
    """Whether the user agrees to the deletion; a UserError if there is no terminal to ask."""
    deleted, kept = _deleted_and_kept(command)
    if not deleted:
        return True
    listed = "\n".join(f"  {line}" for line in [*deleted, *kept])
    if not yes and not sys.stdin.isatty():
        raise UserError(f"--fresh would delete this; say --yes if that is meant:\n{listed}")
    typer.echo(f"--fresh deletes:\n{listed}", err=True)
    return yes or typer.confirm("Delete all of it and start over?", default=False, err=True)
