"""The comparison: what came out against what must come out, as multisets."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everstream.audit.fingerprint import fingerprint

SAMPLES = 3
LONGEST_SAMPLE = 120


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


def judge(expected: Iterable[Hashable], actual: Iterable[Hashable]) -> Verdict:
    """Compare, ignoring order.

    >>> judge("aab", "abb")
    Verdict(expected=3, found=3, lost=1, duplicated=1)
    """
    wanted, got = Counter(expected), Counter(actual)
    return Verdict(
        expected=wanted.total(),
        found=got.total(),
        lost=(wanted - got).total(),
        duplicated=(got - wanted).total(),
    )


@dataclass(frozen=True)
class Difference:
    """What one sink got, against what it should have got, with a few of the records."""

    sink: str
    verdict: Verdict
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "sink": self.sink,
            **self.verdict.to_json(),
            "missing": list(self.missing),
            "surplus": list(self.surplus),
        }


def compare(sink: str, expected: Sequence[Any], actual: Sequence[Any]) -> Difference:
    """Compare two outputs record by record, ignoring order.

    >>> compare("out", [{"n": [1]}, {"n": [2]}], [{"n": [2]}, {"n": [2]}]).missing
    ("{'n': [1]}",)
    """
    wanted = [fingerprint(record) for record in expected]
    got = [fingerprint(record) for record in actual]
    verdict = judge(wanted, got)
    if verdict.exact:
        return Difference(sink, verdict)
    missing, surplus = Counter(wanted) - Counter(got), Counter(got) - Counter(wanted)
    return Difference(
        sink, verdict, _samples(expected, wanted, missing), _samples(actual, got, surplus)
    )


def _samples(
    records: Sequence[Any], prints: Sequence[Hashable], chosen: Mapping[Hashable, int]
) -> tuple[str, ...]:
    """The first few different ones among the chosen."""
    shown: dict[Hashable, str] = {}
    for record, mark in zip(records, prints, strict=True):
        if mark in chosen and mark not in shown:
            shown[mark] = _shortened(repr(record))
            if len(shown) == SAMPLES:
                break
    return tuple(shown.values())


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_SAMPLE else text[: LONGEST_SAMPLE - 3] + "..."
