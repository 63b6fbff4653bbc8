"""The flags of the options of a run, made from their definition in `everstream.pipeline.options`."""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer
from typer.models import OptionInfo

from everstream.engine.settings.configuration import Configured, configuration, parsed
from everstream.pipeline.checkpointing import PROTOCOL_WORDS
from everstream.pipeline.options import PANELS, SETTINGS, Setting

P = ParamSpec("P")
Given = Mapping[str, Any]
"""Setting -> what its flag was given, not yet parsed."""


def flag(name: str, help: str = "", default: str = "") -> Any:
    """The flag of this setting, for typer. `help` and `default` replace those of a run."""
    setting = SETTINGS[name]
    text, word = setting.text, setting.flag
    if text.switch and not setting.for_one_run:
        word = f"{word}/--no-{word.removeprefix('--')}"
    help, default = help or _brief(setting), default or _default(setting)
    metavar = text.metavar or "|".join(text.choices)
    choices = text.choices or (tuple(PROTOCOL_WORDS) if name == "checkpoint" else ())
    return typer.Option(
        word,
        metavar=(f"[{metavar}]" if text.optional else metavar) or None,
        help=f"{help} (default: {default})" if default else help,
        show_default=False,  # typer would begin a new line for it
        rich_help_panel=setting.panel or None,
        autocompletion=(lambda: list(choices)) if choices else None,
    )


def store_key_flag() -> Any:
    """The flag of commands that read a store. The environment can name the file as well."""
    setting = SETTINGS["store_key"]
    return typer.Option(
        setting.flag,
        metavar=setting.text.metavar,
        envvar=setting.variable,
        help=setting.brief,
        rich_help_panel="Advanced",
    )


def _brief(setting: Setting) -> str:
    if setting.name == "checkpoint":
        return f"Checkpoint protocol: {', '.join(PROTOCOL_WORDS)}."
    return setting.brief


def _default(setting: Setting) -> str:
    """The default in words; empty if it is obvious."""
    default = setting.default.rpartition("`everstream run`: ")[2]
    return default if default not in ("none", "no", "off") else ""


def with_flags(command: Callable[Concatenate[Given, P], None]) -> Callable[..., None]:
    """A command with a flag for every setting that has one; `command` gets the given ones first."""
    own = list(inspect.signature(command).parameters.values())[1:]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[_kind(SETTINGS[name]), flag(name)],
        )
        for panel in PANELS.values()
        for name in panel
    ]
    names = [parameter.name for parameter in added]

    @wraps(command)
    def called(*args: P.args, **kwargs: P.kwargs) -> None:
        flags = {name: kwargs.pop(name) for name in names}
        command(
            {name: value for name, value in flags.items() if value not in (None, [])},
            *args,
            **kwargs,
        )

    arguments = [one for one in own if _panel(one) is None]
    options = [*added, *(one for one in own if _panel(one) is not None)]
    options.sort(key=lambda one: list(PANELS).index(_panel(one) or ""))  # sort is stable
    parameters = [
        *arguments,
        *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in options),
    ]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


def _panel(parameter: inspect.Parameter) -> str | None:
    """The panel of `--help` that shows this option; None for an argument."""
    (how,) = parameter.annotation.__metadata__
    return (how.rich_help_panel or "") if isinstance(how, OptionInfo) else None


def _kind(setting: Setting) -> Any:
    if setting.text.switch:
        return bool | None
    return list[str] | None if setting.text.many else str | None


def in_words(given: Given) -> dict[str, Any]:
    """The settings that were given as flags, parsed; a UserError names the flag."""
    return {
        name: parsed(SETTINGS[name], value, f"{SETTINGS[name].flag} {_written(value)}")
        for name, value in given.items()
        if value is not None and value != []
    }


def _written(value: object) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def configured_for(target: str | None, names: Iterable[str] = SETTINGS) -> dict[str, Configured]:
    """The values of these settings in the file and the environment, for a command's program."""
    place = target or ""
    file = Path(place if place.endswith(".py") else place.rpartition(":")[0])
    folder = file.absolute().parent if file.suffix == ".py" else Path.cwd()
    settings = configuration(folder, os.environ)
    return {name: settings[name] for name in names if name in settings}


def settings_for(target: str, given: Given, names: Iterable[str] = SETTINGS) -> dict[str, Any]:
    """All settings of a command. A flag overrides the environment and the file."""
    configured = configured_for(target, names)
    return {**{name: one.value for name, one in configured.items()}, **in_words(given)}
