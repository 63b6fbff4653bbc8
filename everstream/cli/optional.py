"""Options that may stand alone or with a value: `--ui`, `--ui 0.0.0.0:4120`."""

import re
from typing import Any

from typer.core import TyperCommand

ALONE = {"--ui": "127.0.0.1"}
"""Option -> the value it has when none is given."""
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]*):\d+|\d+")


class WithOptionalValues(TyperCommand):
    """Gives an option that stands alone its usual value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, completed(args))


def completed(args: list[str]) -> list[str]:
    """These arguments with a value for each option that may go without."""
    end = args.index("--") if "--" in args else len(args)
    found: list[str] = []
    for position, arg in enumerate(args[:end]):
        following = args[position + 1] if position + 1 < end else ""
        if arg in ALONE and not _ADDRESS.fullmatch(following):
            arg = f"{arg}={ALONE[arg]}"
        found.append(arg)
    return [*found, *args[end:]]
