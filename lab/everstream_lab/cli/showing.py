"""Runs a benchmark behind a status line, prints its figures as a table, and writes them as JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from everstream.cli.options import write_json
from everstream_lab.bench.report import Progress, Report, shown, with_earlier


def run_benchmark(
    take: Callable[[Progress], Report],
    json_file: Path | None,
    *,
    keep_earlier: bool = False,
) -> dict[str, Any]:
    """Print a report, and write it to the file if one is given; returns what the file gets.

    With `keep_earlier`, figures in the file that were not measured again stay there. The exit code
    is 1 if a figure missed a target that is required.
    """
    console = Console()
    with console.status("starting") as status:
        report = take(status.update)
    console.print(table_of(report))
    body = report.to_json()
    if json_file is not None:
        if keep_earlier and json_file.exists():
            body = with_earlier(json.loads(json_file.read_text()), body)
        write_json(json_file, body)
        console.print(f"figures written to {json_file}", soft_wrap=True)
    if report.failed:
        for figure in report.failed:
            console.print(f"{figure.name}: {shown(figure.value)}, must be {figure.target}")
        raise typer.Exit(1)
    return body


def table_of(report: Report) -> Table:
    """A row for each figure, a column for all that at least one of them has."""
    figures = report.figures
    columns = {
        "figure": [figure.name for figure in figures],
        "value": [f"{shown(figure.value)} {figure.unit}".strip() for figure in figures],
        "ratio": [_or_empty(figure.ratio) for figure in figures],
        "spread": [_or_empty(figure.spread) for figure in figures],
        "target": [str(figure.target or "") for figure in figures],
        "reached": [{True: "yes", False: "no", None: ""}[figure.reached] for figure in figures],
        "beside": [figure.beside for figure in figures],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    table = Table(*columns)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def _or_empty(value: float | None) -> str:
    return "" if value is None else shown(value)
