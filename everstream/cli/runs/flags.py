"""The flags of the options of a run, made from their definition in `everstream.pipeline.options`."""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, ParamSpec

import typer

from everstream.core.registry import PROTOCOLS
from everstream.engine.settings.configuration import Configured, configuration, parsed
from everstream.pipeline.options import SETTINGS, Setting

P = ParamSpec("P")
Given = Mapping[str, Any]
"""Setting -> what its flag was given, not yet parsed."""
MORE_HELP: Final = {
    "checkpoint": "; ".join(f"{one.name}: {one.says}" for one in PROTOCOLS.values()),
    "fresh": "Asks first.",
}
"""What the command line adds to the help of an option."""


def flag(name: str, help: str = "", default: str = "") -> Any:
    """What typer is to know of the flag of this setting; help and default: another one than of a run."""
    setting = SETTINGS[name]
    text, word = setting.text, setting.flag
    if text.switch and not setting.for_one_run:
        word = f"{word}/--no-{word.removeprefix('--')}"
    metavar = "|".join(text.choices) or text.metavar
    words = text.choices or (tuple(PROTOCOLS) if name == "checkpoint" else ())
    return typer.Option(
        word,
        metavar=(f"[{metavar}]" if text.optional else metavar) or None,
        help=help or _help(setting),
        show_default=default or _default(setting),
        rich_help_panel=setting.group.capitalize() or None,
        autocompletion=(lambda: list(words)) if words else None,
    )


def store_key_flag() -> Any:
    """The flag of commands that read a store: the environment may name the file, too."""
    setting = SETTINGS["store_key"]
    return typer.Option(
        setting.flag, metavar=setting.text.metavar, envvar=setting.variable, help=setting.help
    )


def _help(setting: Setting) -> str:
    parts = [setting.help, MORE_HELP.get(setting.name, "")]
    if setting.text.many:
        parts.append("Can be given several times.")
    return " ".join(part for part in parts if part)


def _default(setting: Setting) -> str | bool:
    """The default in words; False, which shows none, where it goes without saying."""
    default = setting.default.rpartition("`everstream run`: ")[2]
    return default if default not in ("none", "no", "off") else False


def with_flags(
    command: Callable[Concatenate[Given, P], None],
) -> Callable[..., None]:
    """A command with a flag for every setting that has one; `command` gets the given ones first."""
    own = list(inspect.signature(command).parameters.values())[1:]
    added = [
        inspect.Parameter(
            setting.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[_kind(setting), flag(setting.name)],
        )
        for setting in SETTINGS.values()
        if setting.flag
    ]
    names = [parameter.name for parameter in added]

    @wraps(command)
    def called(*args: P.args, **kwargs: P.kwargs) -> None:
        found = {name: kwargs.pop(name) for name in names}
        command(
            {name: value for name, value in found.items() if value not in (None, [])},
            *args,
            **kwargs,
        )

    parameters = [*own, *added]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


def _kind(setting: Setting) -> Any:
    if setting.text.switch:
        return bool | None
    return list[str] | None if setting.text.many else str | None


def in_words(given: Given) -> dict[str, Any]:
    """The settings that flags gave, parsed; a UserError names the flag."""
    return {
        name: parsed(SETTINGS[name], value, f"{SETTINGS[name].flag} {_written(value)}")
        for name, value in given.items()
        if value is not None and value != []
    }


def _written(value: object) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def configured_for(target: str | None, names: Iterable[str] = SETTINGS) -> dict[str, Configured]:
    """What the file and the environment say of these settings, for the program of a command."""
    place = target or ""
    file = Path(place if place.endswith(".py") else place.rpartition(":")[0])
    folder = file.absolute().parent if file.suffix == ".py" else Path.cwd()
    found = configuration(folder, os.environ)
    return {name: found[name] for name in names if name in found}


def settings_for(target: str, given: Given, names: Iterable[str] = SETTINGS) -> dict[str, Any]:
    """All settings of a command: those of its flags before those of the environment and the file."""
    configured = configured_for(target, names)
    return {**{name: one.value for name, one in configured.items()}, **in_words(given)}
