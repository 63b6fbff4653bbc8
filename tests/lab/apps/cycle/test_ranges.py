"""Ranges of parallelism, and what repeated runs say."""

import math

import pytest

from everstream.errors import UserError
from everstream_lab.apps.cycle.estimates import estimate, ratio_of, t_quantile
from everstream_lab.apps.cycle.settings import parse_range


@pytest.mark.parametrize(
    "text, numbers",
    [
        ("3", (3,)),
        ("1:4", (1, 2, 3, 4)),
        ("1:2:8", (1, 3, 5, 7, 8)),
        ("2:3:8", (2, 5, 8)),
        ("2:2", (2,)),
        ("8,1:2,2", (1, 2, 8)),
    ],
)
def test_a_range_is_what_it_says(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_range(text) == numbers


@pytest.mark.parametrize("text", ["", "x", "0", "4:1", "1:0:4", "1:2:3:4", "1,", "-1:2"])
def test_what_is_no_range_is_refused_with_the_way_to_say_it(text: str) -> None:
    with pytest.raises(UserError, match=r"say 4, 1:4"):
        parse_range(text)


@pytest.mark.parametrize(
    "freedom, expected",
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)],
)
def test_students_t_agrees_with_the_printed_tables(freedom: int, expected: float) -> None:
    assert t_quantile(0.95, freedom) == pytest.approx(expected, abs=5e-5)
    assert t_quantile(0.99, 9) == pytest.approx(3.2498, abs=5e-5)


def test_one_run_has_no_interval() -> None:
    found = estimate([3.0])
    assert (found.mean, found.low, found.high) == (3.0, None, None)
    assert ratio_of([2.0], [1.0, 1.1]).low is None


def test_a_ratio_has_an_interval_around_it_that_shrinks_with_more_runs() -> None:
    few = ratio_of([18.0, 22.0], [9.0, 11.0])
    many = ratio_of([18.0, 22.0] * 8, [9.0, 11.0] * 8)
    assert few.low is not None and few.high is not None
    assert many.low is not None and many.high is not None
    assert few.low < many.low < 2.0 < many.high < few.high
    assert many.ratio == pytest.approx(math.sqrt(18 * 22) / math.sqrt(99))
