"""The comparison sees every difference, whatever records are made of, and no difference that is
none."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pytest

from everstream.audit.comparison import SinkOutput, compare, fingerprint


class Plain:
    """Knows neither equality nor a text of its own."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


class Slotted:
    __slots__ = ("cents",)

    def __init__(self, cents: int) -> None:
        self.cents = cents


@dataclass
class Row:
    name: str
    values: list[int]


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: [1, [2, 3]], [1, [2, 4]]),
        (lambda: {"a": {1, 2}, "b": [None]}, {"a": {1, 2}, "b": [0]}),
        (lambda: Plain(5), Plain(6)),
        (lambda: Slotted(5), Slotted(6)),
        (lambda: Row("x", [1]), Row("x", [2])),
        (lambda: math.nan, 0.0),
        (lambda: np.arange(5000), np.arange(5000) * (np.arange(5000) != 2500)),
        (lambda: b"ab", bytearray(b"ab")),
        (lambda: np.zeros(4, np.uint8), np.zeros((2, 2), np.uint8)),
        (lambda: np.zeros(4, np.uint8), np.zeros(4, np.int8)),
        (lambda: pl.DataFrame({"n": list(range(50))}), pl.DataFrame({"n": [0] * 50})),
        (lambda: 1, True),
        (lambda: "1", 1),
        (lambda: (1, 2), [1, 2]),
        (lambda: object(), Plain(1)),
    ],
    ids=lambda value: "" if callable(value) else type(value).__name__,
)
def test_records_are_equal_when_their_contents_are(make: Any, other: Any) -> None:
    assert fingerprint(make()) == fingerprint(make())
    assert hash(fingerprint(make())) == hash(fingerprint(make()))
    assert fingerprint(make()) != fingerprint(other)


def test_the_order_of_a_dict_is_no_difference() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


def test_a_record_that_holds_itself_is_compared_as_well() -> None:
    def loop(last: int) -> list[Any]:
        record: list[Any] = [1]
        record += [record, last]
        return record

    assert fingerprint(loop(2)) == fingerprint(loop(2)) != fingerprint(loop(3))


def test_a_lost_a_doubled_and_a_changed_record_are_counted_and_shown() -> None:
    expected = [{"n": [n]} for n in range(10)]
    assert compare("out", SinkOutput(expected), SinkOutput(expected[::-1])).verdict.exact
    lost = compare("out", SinkOutput(expected), SinkOutput(expected[1:]))
    assert (lost.verdict.lost, lost.verdict.duplicated) == (1, 0)
    assert (lost.missing, lost.surplus) == (("{'n': [0]}",), ())
    doubled = compare("out", SinkOutput(expected), SinkOutput([*expected, {"n": [4]}, {"n": [4]}]))
    assert (doubled.verdict.lost, doubled.verdict.duplicated) == (0, 2)
    assert doubled.surplus == ("{'n': [4]}",)
    changed = compare("out", SinkOutput(expected), SinkOutput([*expected[1:], {"n": [-1]}]))
    assert (changed.verdict.lost, changed.verdict.duplicated) == (1, 1)


def test_only_a_few_samples_are_shown_and_long_ones_are_cut() -> None:
    different = compare("out", SinkOutput(["x" * 500 + str(n) for n in range(100)]), SinkOutput([]))
    assert different.verdict.lost == 100
    assert len(different.missing) == 3
    assert all(len(sample) <= 120 for sample in different.missing)


def test_rows_are_equal_only_with_the_same_columns_values_and_types() -> None:
    row = {"n": 1, "text": "1", "none": None}
    assert fingerprint(row) == fingerprint(dict(reversed(row.items())))
    for other in (
        {**row, "n": 1.0},
        {**row, "n": True},
        {**row, "text": 1},
        {**row, "none": "None"},
        {"n": 1, "text": "1"},
        {**row, "more": 0},
    ):
        assert fingerprint(row) != fingerprint(other)
    assert fingerprint({"x": float("nan")}) == fingerprint({"x": float("nan")})
    assert fingerprint({"x": 0.0}) != fingerprint({"x": -0.0})
