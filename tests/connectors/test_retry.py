"""Deadlines and pauses, under a clock of the test's own."""

from itertools import islice

import pytest

from everstream.connectors import retry
from everstream.connectors.retry import Deadline, pauses


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses so far; the steady clock moves by them and by nothing else."""
    pauses_s: list[float] = []
    monkeypatch.setattr(retry.time, "monotonic", lambda: sum(pauses_s))
    monkeypatch.setattr(retry.time, "sleep", pauses_s.append)
    return pauses_s


def test_pauses_double_up_to_the_longest() -> None:
    assert list(islice(pauses(0.1, 0.5), 5)) == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert list(islice(pauses(0.1, 0.0), 2)) == [0.0, 0.0]


def test_no_attempt_comes_after_the_deadline(slept: list[float]) -> None:
    deadline = Deadline(4.0, 1.0, 8.0)
    assert deadline.pause() and deadline.pause()
    assert not deadline.pause(), "the next one would come 7 s after the start"
    assert slept == [1.0, 2.0]
    assert not deadline.passed


def test_a_server_that_asks_for_a_longer_pause_is_given_it(slept: list[float]) -> None:
    deadline = Deadline(10.0, 1.0)
    assert deadline.pause(3.0) and deadline.pause()
    assert not deadline.pause(7.0)
    assert slept == [3.0, 1.0]


def test_a_deadline_passes_by_the_steady_clock(slept: list[float]) -> None:
    deadline = Deadline(2.0)
    assert not deadline.passed
    slept.append(2.5)
    assert deadline.passed
