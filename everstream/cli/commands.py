"""The subcommands of `everstream`, each imported when it is called or listed."""

from collections.abc import Iterable, Iterator, MutableMapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import typer

from everstream.errors import UserError

MODULES = {
    "run": "everstream.cli.runs.command",
    "config": "everstream.cli.config",
    "demo": "everstream.cli.demo",
    "new": "everstream.cli.project.new",
    "ui": "everstream.cli.views.ui",
    "top": "everstream.cli.views.top",
    "tune": "everstream.cli.stores.tune",
    "scale": "everstream.cli.stores.scale",
    "check": "everstream.cli.stores.check",
    "checkpoints": "everstream.cli.stores.checkpoints",
    "state": "everstream.cli.stores.checkpoints",
    "rewind": "everstream.cli.stores.checkpoints",
    "savepoint": "everstream.cli.stores.savepoints",
    "audit": "everstream.cli.audit",
    "advise": "everstream.cli.advise",
    "annotate": "everstream.cli.annotate",
    "simulate": "everstream.cli.simulate",
    "help": "everstream.cli.guides",
}
"""Command -> the module whose `register(app)` adds it. In the order of `everstream --help`: begin and
run, observe and change a run, inspect its store, plan."""
LABORATORY = {"bench", "apps", "model"}
"""Commands of the distribution `everstream-lab`."""


class Commands(MutableMapping[str, Any]):
    """Command -> what Typer makes of it. Only a list of all commands loads those of others."""

    def __getitem__(self, name: str) -> Any:
        return _made(MODULES[name])[name] if name in MODULES else _of_other_distributions()[name]

    def __iter__(self) -> Iterator[str]:
        yield from MODULES
        yield from _of_other_distributions()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __setitem__(self, name: str, command: Any) -> None:
        raise TypeError(f"'{name}': add commands with an entry point in 'everstream.commands'")

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"'{name}' cannot be removed")


@cache
def _made(module: str) -> dict[str, Any]:
    """The commands that a module registers."""
    registered = typer.Typer()
    import_module(module).register(registered)
    return _commands_of(registered)


@cache
def _of_other_distributions() -> dict[str, Any]:
    """They have a function `register(app)` in the group `everstream.commands`."""
    registered = typer.Typer()
    for entry in entry_points(group="everstream.commands"):
        entry.load()(registered)
    _point_to_laboratory(registered, LABORATORY)
    return _commands_of(registered)


def _commands_of(registered: typer.Typer) -> dict[str, Any]:
    return dict(typer.main.get_group(registered).commands)


def _without_laboratory(context: typer.Context) -> None:
    raise UserError(
        f"'{context.command_path}' is part of the laboratory: pip install everstream-lab"
    )


def _point_to_laboratory(group: typer.Typer, names: Iterable[str]) -> None:
    """Make a command that is not installed tell the user how to install it."""
    commands = {command.name for command in group.registered_commands}
    groups = {inner.name for inner in group.registered_groups}
    for name in sorted(set(names) - commands - groups):
        group.command(
            name,
            hidden=True,
            add_help_option=False,
            context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        )(_without_laboratory)
