"""Flags with an optional value: `--ui`, `--ui 0.0.0.0:4120`; `--standby`, `--standby 5s`."""

import re
from typing import Any

from typer.core import TyperCommand

_VALUES = {
    "--ui": re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]*):\d+|\d+"),
    "--standby": re.compile(r"\d+(\.\d+)?(ms|s|m|min|h)?"),
}
"""Flag -> the pattern of its values. The flag without a value means yes."""


class WithOptionalValues(TyperCommand):
    """Accepts such a flag without its value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, completed(args))


def completed(args: list[str]) -> list[str]:
    """These arguments, with the value `yes` for each such flag that has none."""
    end = args.index("--") if "--" in args else len(args)
    arguments: list[str] = []
    for position, arg in enumerate(args[:end]):
        following = args[position + 1] if position + 1 < end else ""
        if arg in _VALUES and not _VALUES[arg].fullmatch(following):
            arg = f"{arg}=yes"
        arguments.append(arg)
    return [*arguments, *args[end:]]
