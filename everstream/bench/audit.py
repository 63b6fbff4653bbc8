"""The audit: what came out against what must come out, as multisets."""

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """How many records are missing, and how many are there that should not be."""

    expected: int
    found: int
    lost: int
    duplicated: int
    """Too many of a record; a record with a wrong value counts as one lost and one of these."""

    @property
    def exact(self) -> bool:
        return self.lost == 0 and self.duplicated == 0

    def to_json(self) -> dict[str, Any]:
        return {
            "expected": self.expected,
            "found": self.found,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "exact": self.exact,
        }


def audit(expected: Iterable[Hashable], found: Iterable[Hashable]) -> Verdict:
    """Compare, ignoring order.

    >>> audit("aab", "abb")
    Verdict(expected=3, found=3, lost=1, duplicated=1)
    """
    wanted, got = Counter(expected), Counter(found)
    return Verdict(
        expected=wanted.total(),
        found=got.total(),
        lost=(wanted - got).total(),
        duplicated=(got - wanted).total(),
    )


def json_rows(folder: Path) -> Iterator[tuple[Any, ...]]:
    """The committed records of a JSON lines sink whose records are lists."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open() as lines:
            for line in lines:
                yield tuple(json.loads(line))
