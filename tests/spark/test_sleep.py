"""A host sleeps until something can happen by itself, and never past it."""

import math

from everstream.spark.sleep import sleep_ms


class Runner:
    def __init__(self, ready_at_s: float = 0.0, timer_in_s: float = math.inf) -> None:
        self.ready_at_s = ready_at_s
        self._timer_in_s = timer_in_s

    def timer_in_s(self) -> float:
        return self._timer_in_s


def test_a_source_that_becomes_ready_after_it_was_asked_is_not_slept_past() -> None:
    assert sleep_ms([Runner(ready_at_s=10.0)], asked_s=9.999, now_s=10.001, at_most_s=0.1) == 0


def test_a_source_is_waited_for_until_it_is_ready() -> None:
    assert sleep_ms([Runner(ready_at_s=10.05)], asked_s=10.0, now_s=10.01, at_most_s=0.1) == 40
    assert sleep_ms([Runner(ready_at_s=10.0002)], asked_s=9.9, now_s=10.0, at_most_s=0.1) == 1


def test_whoever_was_ready_when_asked_and_had_nothing_to_do_waits_for_others() -> None:
    assert sleep_ms([Runner(ready_at_s=9.0)], asked_s=10.0, now_s=10.0, at_most_s=0.1) == 100


def test_a_timer_that_is_due_is_called_at_once() -> None:
    assert sleep_ms([Runner(timer_in_s=-0.001)], asked_s=10.0, now_s=10.0, at_most_s=0.1) == 0


def test_the_first_one_counts() -> None:
    runners = [Runner(ready_at_s=10.05), Runner(timer_in_s=0.02), Runner(ready_at_s=10.03)]
    assert sleep_ms(runners, asked_s=10.0, now_s=10.0, at_most_s=0.1) == 20
