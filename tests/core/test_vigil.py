"""When a standby takes over, waits, or ends: from what it sees, by its own clock."""

from dataclasses import replace

import pytest

from everstream.core.failure_detector import FailureDetector, StandbyDecision
from everstream.state.heartbeat import DriverStatus, Heartbeat

FIRST = Heartbeat(lease=3, command="first", owner="first pid 1 on a")
SILENCE_S, NOTICE_S = 1.5, 2.0


def detector() -> FailureDetector:
    return FailureDetector("mine", SILENCE_S, NOTICE_S)


def beats(watch: FailureDetector, count: int, every_s: float = 0.3) -> tuple[Heartbeat, float]:
    """A driver that lives; its last beat, and when that was."""
    now_s = 10.0
    for beat in range(count):
        now_s += every_s
        assert watch.saw(replace(FIRST, beat=beat), now_s) is StandbyDecision.WAIT
    return replace(FIRST, beat=count - 1), now_s


def test_while_the_pulse_changes_a_standby_waits() -> None:
    beats(detector(), 1000)


def test_when_it_falls_silent_the_standby_takes_over() -> None:
    watch = detector()
    last, at_s = beats(watch, 5)
    assert watch.saw(last, at_s + SILENCE_S - 0.01) is StandbyDecision.WAIT
    assert watch.saw(last, at_s + SILENCE_S) is StandbyDecision.TAKE_OVER


def test_a_driver_that_does_not_know_yet_that_somebody_waits_has_time_to_learn_it() -> None:
    watch = detector()
    assert watch.saw(FIRST, 0.0) is StandbyDecision.WAIT
    assert watch.saw(FIRST, SILENCE_S + NOTICE_S - 0.01) is StandbyDecision.WAIT
    assert watch.saw(FIRST, SILENCE_S + NOTICE_S) is StandbyDecision.TAKE_OVER


@pytest.mark.parametrize(
    ("life", "verdict"),
    [
        (DriverStatus.FINISHED, StandbyDecision.FINISHED),
        (DriverStatus.STOPPED, StandbyDecision.STOPPED),
        (DriverStatus.FAILED, StandbyDecision.TAKE_OVER),
    ],
)
def test_a_driver_that_says_how_it_ended_is_believed(
    life: DriverStatus, verdict: StandbyDecision
) -> None:
    watch = detector()
    last, at_s = beats(watch, 3)
    assert watch.saw(replace(last, life=life, beat=4), at_s + 0.1) is verdict


@pytest.mark.parametrize("life", [DriverStatus.FINISHED, DriverStatus.STOPPED, DriverStatus.FAILED])
def test_a_run_that_had_ended_before_is_not_stood_by_for(life: DriverStatus) -> None:
    assert detector().saw(replace(FIRST, life=life), 0.0) is StandbyDecision.TAKE_OVER


def test_the_driver_before_us_under_one_monitor_is_dead_for_certain() -> None:
    assert detector().saw(replace(FIRST, command="mine"), 0.0) is StandbyDecision.TAKE_OVER


def test_a_store_without_a_pulse_is_watched_for_a_while() -> None:
    watch = detector()
    assert watch.saw(None, 0.0) is StandbyDecision.WAIT
    assert watch.saw(None, SILENCE_S + NOTICE_S) is StandbyDecision.TAKE_OVER


def test_after_somebody_was_quicker_that_one_is_watched() -> None:
    watch = detector()
    last, at_s = beats(watch, 5)
    silent_s = at_s + SILENCE_S
    assert watch.saw(last, silent_s) is StandbyDecision.TAKE_OVER
    watch.overtaken(silent_s)
    assert watch.saw(last, silent_s + SILENCE_S) is StandbyDecision.WAIT, (
        "it may not have said hello yet"
    )
    other = Heartbeat(lease=4, command="other", owner="other pid 1 on c")
    assert watch.saw(other, silent_s + 2.0) is StandbyDecision.WAIT
    stopped = replace(other, life=DriverStatus.STOPPED)
    assert watch.saw(stopped, silent_s + 2.1) is StandbyDecision.STOPPED


def test_whoever_was_quicker_and_is_never_heard_of_is_dead_too() -> None:
    watch = detector()
    failed = replace(FIRST, life=DriverStatus.FAILED)
    assert watch.saw(failed, 0.0) is StandbyDecision.TAKE_OVER
    watch.overtaken(0.0)
    assert watch.saw(failed, 1.0) is StandbyDecision.WAIT
    assert watch.saw(failed, SILENCE_S + NOTICE_S) is StandbyDecision.TAKE_OVER
