"""The load benchmark's arithmetic: what it would say of sources that are right, late, or wrong."""

import numpy as np
import pytest

from everstream.connectors.generate.load import Load
from everstream_lab.bench.latency import Arrivals
from everstream_lab.bench.load import Kept, _given_in

LOAD = Load("binary", period=2, min=100, max=300)


def arrivals(late_s: float, share: float = 1.0) -> Arrivals:
    due_s = 5_000.0 + LOAD.due_s(np.arange(1, 801, dtype=float))
    return Arrivals(due_s + late_s, due_s, np.full(800, share))


def given(found: Arrivals) -> list[float]:
    return _given_in(found, LOAD, np.array([2.0, 4.0]))


def kept(given: list[float]) -> Kept:
    return Kept("", 300.0, 2.0, [400.0, 400.0], given, 0.0, 0.0)


def test_a_source_that_is_right_is_off_by_nothing() -> None:
    assert given(arrivals(1e-6)) == pytest.approx([400, 400], abs=1)
    assert kept(given(arrivals(1e-6))).error == 0


def test_one_that_is_late_is_off_by_what_came_after_the_period() -> None:
    late = given(arrivals(0.1))
    assert late[0] == pytest.approx(370, abs=1), "30 of the fast half came too late"
    assert kept(late).error == pytest.approx(29 / 400, abs=0.005)


def test_one_that_gives_too_little_is_off_by_that() -> None:
    assert kept(given(arrivals(1e-6, share=0.9))).error == pytest.approx(39 / 400, abs=0.003)
