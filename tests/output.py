"""The output of `JsonLines`, as another program sees it: the committed part files and nothing else."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def records_in(folder: Path) -> Iterator[Any]:
    for part in sorted(folder.glob("part-*.jsonl")):
        yield from map(json.loads, part.read_text().splitlines())


def rows_in(folder: Path) -> Counter[Any]:
    """For records that are lists."""
    return Counter(map(tuple, records_in(folder)))
