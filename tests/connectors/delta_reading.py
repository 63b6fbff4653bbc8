"""A Delta table as its log and its files say, read without the library that wrote them."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl

from everstream.connectors.files.parts import owner_of
from everstream.pipeline.sink import SinkShard


def log_of(folder: str | Path) -> list[list[dict[str, Any]]]:
    """The actions of each version, in order."""
    entries = sorted(Path(folder, "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in entry.read_text().splitlines()] for entry in entries]


def files_of(folder: str | Path, shard: SinkShard | None = None) -> list[dict[str, Any]]:
    """The `add` of each file that is there, of one operator or of all."""
    there: dict[str, dict[str, Any]] = {}
    for actions in log_of(folder):
        marks = [
            action["commitInfo"].get("everstream") for action in actions if "commitInfo" in action
        ]
        owner = json.loads(marks[0])["owner"] if marks and marks[0] else None
        for action in actions:
            if "add" in action:
                there[action["add"]["path"]] = {**action["add"], "owner": owner}
            elif "remove" in action:
                there.pop(action["remove"]["path"], None)
    wanted = None if shard is None else owner_of(shard.pipeline, shard.operator)
    return [file for file in there.values() if shard is None or file["owner"] == wanted]


def rows_of(folder: str | Path, shard: SinkShard | None = None) -> list[dict[str, Any]]:
    """The rows; partition values as text."""
    rows: list[dict[str, Any]] = []
    for file in files_of(folder, shard):
        frame = pl.read_parquet(Path(folder, unquote(file["path"])), hive_partitioning=False)
        rows += [{**row, **file["partitionValues"]} for row in frame.to_dicts()]
    return rows
