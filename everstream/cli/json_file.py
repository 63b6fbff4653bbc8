"""The option `--json FILE` of commands that measure: all their figures, for programs."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write all figures to this file.")
]


def write_json(path: Path, figures: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n")
