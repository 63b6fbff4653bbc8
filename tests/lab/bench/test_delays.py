"""`everstream bench latency`: its figures from arrivals, and a small run."""

import numpy as np
import pytest

from everstream.errors import UserError
from everstream_lab.bench.delays import WARM_UP_S, measure, summed_up
from everstream_lab.bench.latency import Arrivals
from everstream_lab.cli.bench import _rates
from tests.spark import MASTER


def test_figures_leave_out_the_warm_up_and_tell_a_standstill() -> None:
    due_s = np.arange(0.0, WARM_UP_S + 1.0, 0.001)
    late_s = np.where(due_s < WARM_UP_S, 5.0, 0.0006)
    at_s = due_s + late_s
    stands = (due_s >= WARM_UP_S + 0.5) & (due_s < WARM_UP_S + 0.55)
    at_s[stands] = WARM_UP_S + 0.55
    found = summed_up(Arrivals(at_s, due_s, np.ones(len(due_s))), 1000.0, 1.0, 0.0)
    assert found.records == pytest.approx(1000, abs=2)
    assert found.p50_ms == pytest.approx(0.6, abs=0.01)
    assert found.p99_ms > 10
    assert found.longest_ms == pytest.approx(50, abs=2)
    assert found.standstill_ms == pytest.approx(50, abs=2)


@pytest.mark.parametrize("text", ["", "fast", "0", "1000,-1"])
def test_rates_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="positive"):
        _rates(text)


def test_every_record_that_was_due_after_the_warm_up_is_timed() -> None:
    (found,) = measure([500.0], 1.0, master=MASTER)
    assert found.records == pytest.approx(500, abs=2)
    assert 0 < found.p50_ms <= found.p99_ms <= found.p999_ms <= found.longest_ms
