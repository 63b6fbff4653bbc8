"""How many records a step has: learned from what steps cost, with a clock that the test moves."""

import pytest

from everstream.runtime.outlets import FrameSizes
from everstream.runtime.pace import FIRST, STEP_S, UNLIMITED, Pace
from everstream.runtime.stage import PendingBatch
from tests.runtime.wires import A, B

BATCH = 4096


def steps(pace: Pace, fixed_s: float, each_s: float, count: int = 300) -> list[tuple[int, float]]:
    """The steps of an operator that costs so much: records, time."""
    done, left = [], 0
    for _ in range(count):
        left = left or BATCH
        records = min(pace.take(), left)
        left -= records
        took_s = fixed_s + each_s * records
        pace.note(records, took_s)
        done.append((records, took_s))
    return done


@pytest.mark.parametrize("each_s", [1e-4, 1e-3, 1e-2])
def test_steps_of_a_slow_operator_come_to_take_as_long_as_they_may(each_s: float) -> None:
    later = steps(Pace(), 1e-4, each_s)[10:]
    assert max(took_s for _, took_s in later) <= 1.1 * STEP_S
    assert sum(took_s for _, took_s in later) / len(later) > STEP_S / 2, "and not much less"


def test_an_operator_slower_than_a_step_gets_records_one_by_one() -> None:
    pace = Pace()
    assert {records for records, _ in steps(pace, 0.0, 1.0)[1:]} == {1, 2}
    assert pace.fits == 1


def test_a_quick_operator_gets_whole_batches_and_is_not_asked_again() -> None:
    pace = Pace()
    done = steps(pace, 1e-5, 1e-8)
    assert [records for records, _ in done[:3]] == [FIRST, 4 * FIRST, 16 * FIRST]
    assert {records for records, _ in done[10:]} == {BATCH}
    assert pace.fits == UNLIMITED


def test_a_batch_that_costs_the_same_however_small_is_not_cut() -> None:
    later = steps(Pace(), 0.1, 1e-6)[30:]
    assert {records for records, _ in later} == {BATCH}, "ten records a second would be the end"


def test_what_every_step_costs_is_at_most_a_fifth_of_it() -> None:
    done = steps(Pace(), 0.04, 1e-3)[50:]
    assert sum(records for records, _ in done) * 1e-3 > 0.7 * sum(took_s for _, took_s in done)


def test_a_stall_of_the_machine_is_soon_forgotten() -> None:
    pace = Pace()
    steps(pace, 1e-4, 1e-6)
    pace.note(BATCH, 5.0)
    assert [records for records, _ in steps(pace, 1e-4, 1e-6, 12)][-1] == BATCH


def test_stalls_of_a_few_milliseconds_are_not_taken_for_the_cost_of_records() -> None:
    pace = Pace()
    for number in range(40):
        records = min(pace.take(), BATCH)
        pace.note(records, 1e-5 + (0.01 if number % 3 else 0.0))
    assert pace.take() >= BATCH and pace.fits == UNLIMITED


def test_an_operator_that_becomes_slow_is_noticed_at_once() -> None:
    pace = Pace()
    steps(pace, 1e-4, 1e-6)
    done = steps(pace, 1e-4, 1e-3, 12)
    assert done[0][0] == BATCH and done[6][1] < 2 * STEP_S


def test_a_pace_of_zero_takes_what_comes() -> None:
    pace = Pace(0.0)
    assert {records for records, _ in steps(pace, 0.0, 1.0, 5)} == {BATCH}


def test_until_a_receiver_was_heard_it_gets_little() -> None:
    sizes = FrameSizes()
    assert sizes.most == FIRST
    sizes.wish(A, 0)
    assert sizes.most == UNLIMITED


def test_a_step_is_as_large_as_the_frames_that_come_of_it_may_be() -> None:
    sizes = FrameSizes()
    sizes.wish(A, 50)
    sizes.wish(B, 0)
    for _ in range(30):
        sizes.sent(100, {A: 10, B: 90})
    assert sizes.most == pytest.approx(500, rel=0.02), "a tenth of the records goes there"
    for _ in range(30):
        sizes.sent(100, {A: 1000})
    assert sizes.most == pytest.approx(5, abs=1), "each record becomes ten"


def test_a_slow_receiver_that_gets_nothing_any_more_holds_nobody_up() -> None:
    sizes = FrameSizes()
    sizes.wish(A, 1)
    for _ in range(100):
        sizes.sent(1000, {B: 1000})
    assert sizes.most == UNLIMITED


def test_a_receiver_that_became_quick_gets_what_comes() -> None:
    sizes = FrameSizes()
    sizes.wish(A, 1)
    assert sizes.most == 1 and sizes.learning
    sizes.wish(A, 0)
    assert sizes.most == UNLIMITED and not sizes.learning


def test_a_batch_is_taken_in_parts_of_one_size_and_saved_without_those_taken() -> None:
    rest = PendingBatch()
    assert not rest
    rest.fill(list(range(10)))
    assert rest.take(4) == [0, 1, 2, 3]
    saved = PendingBatch(rest.saved())
    assert rest.take(4) == [4, 5, 6] and rest.take(4) == [7, 8, 9] and not rest
    assert saved.take(100) == [4, 5, 6, 7, 8, 9]
