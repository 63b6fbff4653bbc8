"""A few cases of many in every run of the tests, and all of them in the long one."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest


def sampled(cases: Iterable[str], quick: Collection[str]) -> list[Any]:
    """The names of cases for `parametrize`; those that are not quick are marked long."""
    names = list(cases)
    unknown = sorted(set(quick) - set(names))
    assert not unknown, f"not among the cases: {unknown}"
    return [name if name in quick else pytest.param(name, marks=pytest.mark.long) for name in names]


def first_of(cases: Sequence[Any], quick: int) -> list[Any]:
    """These cases for `parametrize`; those after the first few are marked long."""
    assert 0 < quick <= len(cases)
    rest = [case if isinstance(case, tuple) else (case,) for case in cases[quick:]]
    return [*cases[:quick], *(pytest.param(*case, marks=pytest.mark.long) for case in rest)]
