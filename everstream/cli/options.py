"""How commands declare their own options; `runs/flags.py` makes those of the options of a run."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def option(
    help: str, metavar: str | None = None, panel: str | None = None, name: str = "", **more: Any
) -> Any:
    """An option: its help, the form of its value, and the panel of `--help` that shows it.

    name: if it does not follow from the parameter; `--name` makes a switch without its opposite.
    """
    names = (name,) if name else ()
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel, **more)


JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write all figures to this file.")
]


def write_json(path: Path, figures: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n")
