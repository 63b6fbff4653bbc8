"""No test depends on how fast the machine is: Hypothesis gives no example a deadline."""

import re
import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TESTS = Path(__file__).parent


def test_an_example_may_take_as_long_as_it_takes() -> None:
    durations_s = iter([0.0, 0.5])

    @given(st.integers())
    @settings(max_examples=2, database=None)
    def slow(number: int) -> None:
        time.sleep(next(durations_s, 0.0))

    slow()
    assert HealthCheck.too_slow in settings().suppress_health_check


def test_no_test_sets_a_deadline() -> None:
    setting = {
        path.relative_to(TESTS)
        for path in TESTS.rglob("*.py")
        if re.search(r"\bdeadline=(?!None)", path.read_text())
    }
    assert not setting
