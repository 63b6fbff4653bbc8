"""The command `everstream new NAME`."""

import re
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from everstream.errors import UserError

TEMPLATES = {
    "pipeline.py": "pipeline.py.txt",
    "test_pipeline.py": "test_pipeline.py.txt",
    "everstream.toml": "everstream.toml.txt",
    "README.md": "README.md.txt",
    "orders/orders.jsonl": "orders.jsonl.txt",
}
"""File of the project -> its template beside this module."""


def register(app: typer.Typer) -> None:
    """Add the command to the `everstream` app."""
    app.command("new")(new)


def new(name: Annotated[str, typer.Argument(metavar="NAME", help="The folder to make.")]) -> None:
    """Write a small project into a new folder: a pipeline, a test, the configuration, a README.

    Example: everstream new shop && cd shop && everstream run pipeline.py
    """
    folder = Path(name)
    written = write_project(folder)
    for path in written:
        typer.echo(f"  {folder / path}")
    typer.echo(f"\ncd {folder} && everstream run pipeline.py")


def write_project(folder: Path) -> list[str]:
    """Write the files of a new project; never over anything that exists."""
    title = folder.resolve().name
    if not re.fullmatch(r"[A-Za-z][\w-]*", title):
        raise UserError(
            f"'{title}' cannot be the name of a project: begin with a letter, then use letters, "
            "digits, - and _."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"'{folder}' exists and is not empty: choose another name.")
    templates = files(__package__)
    for path, template in TEMPLATES.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        text = templates.joinpath(template).read_text(encoding="utf-8")
        target.write_text(Template(text).substitute(name=title), encoding="utf-8")
    return list(TEMPLATES)
