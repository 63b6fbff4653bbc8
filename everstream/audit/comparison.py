"""The comparison: what came out against what must come out, as multisets.

Records may be anything a pipeline makes: lists, dicts, arrays, objects of the user's classes that
know no equality. `fingerprint` is a form of a record that is equal where the contents are.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

SAMPLES = 3
LONGEST_SAMPLE = 120
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Where an object lies in memory is no part of what it is."""
PLAIN = frozenset((str, int, float, bool, type(None), bytes))
WHOLE = "biu"
"""Kinds of numbers that are equal only if their bytes are: an image has too many to go one by one."""


def fingerprint(value: Any, _above: tuple[int, ...] = ()) -> Hashable:
    """A hashable form that is equal for equal contents, also between two processes.

    >>> fingerprint({"a": [1], "b": 2}) == fingerprint({"b": 2, "a": [1]})
    True
    >>> fingerprint(1) == fingerprint(1.0)
    False
    """
    kind = type(value)
    if kind in PLAIN:
        return kind.__name__, repr(value)  # by text: NaN equals itself, 0.0 is not -0.0
    if (
        kind is dict
        and PLAIN.issuperset(map(type, value.values()))
        and {str}.issuperset(map(type, value))
    ):
        # A row of a table, of which there are many.
        return "row", frozenset(
            zip(value, map(type, value.values()), map(repr, value.values()), strict=True)
        )
    if id(value) in _above:
        return "cycle", len(_above) - _above.index(id(value))
    above = (*_above, id(value))
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, type):
        return "type", value.__qualname__
    if isinstance(value, Mapping):
        pairs = ((fingerprint(k, above), fingerprint(v, above)) for k, v in value.items())
        return name, frozenset(pairs)
    if isinstance(value, set | frozenset):
        return name, frozenset(fingerprint(item, above) for item in value)
    if isinstance(value, list | tuple):
        return name, tuple(fingerprint(item, above) for item in value)
    if hasattr(value, "dtype") and hasattr(value, "tolist"):  # NumPy's repr leaves out the middle
        shape = tuple(getattr(value, "shape", ()))
        if value.dtype.kind in WHOLE:
            return name, str(value.dtype), shape, value.tobytes()
        return name, str(value.dtype), shape, fingerprint(value.tolist(), above)
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # a table within a record
        rows = value.to_dict(as_series=False) if hasattr(value, "to_dicts") else value.to_dict()
        return name, fingerprint(rows, above)
    fields = _fields(value)
    if fields:
        return name, fingerprint(fields, above)
    return name, ADDRESS.sub("", repr(value))


def _fields(value: Any) -> dict[str, Any]:
    """What an object of a class holds, in its dict and in its slots."""
    fields = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                fields[slot] = getattr(value, slot)
    return fields


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
        return {**asdict(self), "exact": self.exact}


def judge(expected: Iterable[Hashable], actual: Iterable[Hashable]) -> Verdict:
    """Compare, ignoring order.

    >>> judge("aab", "abb")
    Verdict(expected=3, found=3, lost=1, duplicated=1)
    """
    return _judge(Counter(expected), Counter(actual))


def _judge(wanted: Counter[Hashable], got: Counter[Hashable]) -> Verdict:
    return Verdict(
        expected=wanted.total(),
        found=got.total(),
        lost=(wanted - got).total(),
        duplicated=(got - wanted).total(),
    )


class SinkOutput:
    """The records of one sink, with fingerprints that are taken once for all comparisons."""

    def __init__(self, records: Sequence[Any]) -> None:
        self.records = records

    @cached_property
    def prints(self) -> list[Hashable]:
        return [fingerprint(record) for record in self.records]

    @cached_property
    def counts(self) -> Counter[Hashable]:
        return Counter(self.prints)


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


def compare(sink: str, expected: SinkOutput, actual: SinkOutput) -> Difference:
    """Compare two outputs record by record, ignoring order.

    >>> rows, others = SinkOutput([{"n": [1]}, {"n": [2]}]), SinkOutput([{"n": [2]}, {"n": [2]}])
    >>> compare("out", rows, others).missing
    ("{'n': [1]}",)
    """
    wanted, got = expected.counts, actual.counts
    verdict = _judge(wanted, got)
    if verdict.exact:
        return Difference(sink, verdict)
    return Difference(
        sink, verdict, _samples(expected, wanted - got), _samples(actual, got - wanted)
    )


def _samples(output: SinkOutput, chosen: Mapping[Hashable, int]) -> tuple[str, ...]:
    """The first few different ones among the chosen."""
    shown: dict[Hashable, str] = {}
    for record, mark in zip(output.records, output.prints, strict=True):
        if mark in chosen and mark not in shown:
            text = repr(record)
            long = len(text) > LONGEST_SAMPLE
            shown[mark] = text[: LONGEST_SAMPLE - 3] + "..." if long else text
            if len(shown) == SAMPLES:
                break
    return tuple(shown.values())
