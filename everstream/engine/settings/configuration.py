"""Where options come from: defaults, then a file, the environment, and the program's arguments.

The file is `everstream.toml`, or the table `[tool.everstream]` of a `pyproject.toml`, in the folder
of the program or the nearest folder above it that has one; failing that, the same search starts in
the working directory. Its keys are the names of `SETTINGS`. The search stops below a folder that
every user can write to, such as /tmp: a file placed there by another user could name a store that
contains their code.
"""

import os
import re
import stat
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from everstream.errors import UserError
from everstream.pipeline.options import (
    GROUPS,
    SETTINGS,
    RunOptions,
    Setting,
    closest,
    given_in,
    with_overrides,
)

OWN_FILE: Final = "everstream.toml"
PROJECT_FILE: Final = "pyproject.toml"


@dataclass(frozen=True)
class Configured:
    """The value of a setting, parsed, and where it comes from."""

    value: Any
    origin: str


def in_force(options: RunOptions | None, overrides: Mapping[str, Any]) -> RunOptions:
    """The options of a run: file and environment, then `options`, then keywords."""
    configured = configuration(program_folder(), os.environ)
    base = RunOptions.from_settings({name: one.value for name, one in configured.items()})
    given = {} if options is None else given_in(options)
    return with_overrides(with_overrides(base, given), overrides)


def configuration(folder: Path, environ: Mapping[str, str]) -> dict[str, Configured]:
    """Key -> value and origin, of every setting that a file or the environment gives."""
    return {**_in_file(folder), **_in_environment(environ)}


def program_folder() -> Path:
    """The folder of the running program; without one, as in a notebook, the working directory."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path.cwd() if file is None else Path(file).absolute().parent


def parsed(setting: Setting, given: object, where: str) -> Any:
    """A value written at this place; a UserError names the place."""
    try:
        return setting.text.parse(given)
    except UserError as error:
        raise UserError(f"{where}: {error.message}") from None


def _in_environment(environ: Mapping[str, str]) -> dict[str, Configured]:
    found = {}
    for setting in SETTINGS.values():
        given = environ.get(setting.variable, "")
        if setting.variable and given:
            where = f"{setting.variable}={given}"
            found[setting.name] = Configured(
                parsed(setting, given, where), f"environment {setting.variable}"
            )
    return found


def _in_file(folder: Path) -> dict[str, Configured]:
    for start in dict.fromkeys((folder, Path.cwd())):
        for above in _upwards(start):
            for name in (OWN_FILE, PROJECT_FILE):
                table = _table(above / name)
                if table is not None:
                    return _checked(above / name, table)
    return {}


def _upwards(folder: Path) -> Iterator[Path]:
    yield folder
    for above in folder.parents:
        if not above.exists() or stat.S_IMODE(above.stat().st_mode) & stat.S_IWOTH:
            return
        yield above


def _table(file: Path) -> dict[str, Any] | None:
    """The Everstream table of this file; None if there is no such file or table."""
    try:
        text = file.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}.") from None
    if file.name == PROJECT_FILE and "everstream" not in text:
        return None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{file} is not valid TOML: {error}.") from None
    if file.name == OWN_FILE:
        return content
    tool = content.get("tool", {}).get("everstream")
    if tool is not None and not isinstance(tool, dict):
        raise UserError(f"{file}: tool.everstream must be a table.")
    return tool


def _checked(file: Path, table: Mapping[str, Any]) -> dict[str, Configured]:
    found = {}
    for key, given in table.items():
        where = f"{file}{_line_of(file, key)}"
        if key in GROUPS:
            raise UserError(
                f"{where}: '{key}' is a group in Python only; in a file its options have no group: "
                f"{', '.join(one.name for one in SETTINGS.values() if one.group == key)}."
            )
        setting = SETTINGS.get(key)
        if setting is None:
            raise UserError(f"{where}: there is no option '{key}'.{closest(key, SETTINGS)}")
        if setting.for_one_run:
            raise UserError(
                f"{where}: '{key}' is for one run only, and a file applies to every run: pass it as "
                f"{setting.flag} or {key}=."
            )
        value = parsed(setting, given, f"{where}: {key} = {given!r}")
        if setting.text.path and "://" not in value:
            value = str(file.parent / value)
        found[key] = Configured(value, where)
    return found


def _line_of(file: Path, key: str) -> str:
    """ ", line 3", if a search for the key finds it."""
    pattern = re.compile(
        rf"""\s*(?:\[(?:tool\.everstream\.)?)?["']?{re.escape(key)}["']?\s*[=.\]]"""
    )
    inside = file.name == OWN_FILE
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if line.lstrip().startswith("["):
            inside = file.name == OWN_FILE or "tool.everstream" in line
        if inside and pattern.match(line):
            return f", line {number}"
    return ""
