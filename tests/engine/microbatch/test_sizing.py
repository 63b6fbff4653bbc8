"""The controller brings epochs to the time that was asked for, whatever a record costs."""

import pytest

from everstream.engine.microbatch.sizing import FIRST, LEAST, Sizing


@pytest.mark.parametrize("each_s", [1e-7, 1e-6, 1e-4])
def test_epochs_come_to_take_the_time_that_was_asked_for(each_s: float) -> None:
    sizing = Sizing(1.0)
    for _ in range(30):
        took_s = 0.1 + each_s * sizing.budget
        sizing.note(sizing.budget, took_s)
    assert 0.7 <= took_s <= 1.3


def test_a_source_with_little_to_give_does_not_make_the_budget_grow() -> None:
    sizing = Sizing(1.0)
    for _ in range(10):
        sizing.note(10, 0.1)
    assert sizing.budget == FIRST


def test_where_a_job_takes_longer_than_the_time_asked_for_half_of_an_epoch_is_work() -> None:
    sizing = Sizing(0.01)
    for _ in range(40):
        took_s = 0.2 + 1e-6 * sizing.budget
        sizing.note(sizing.budget, took_s)
    assert sizing.budget > 100_000 > LEAST


def test_a_number_of_records_is_kept_to_and_no_time_is() -> None:
    sizing = Sizing(None, 500)
    sizing.note(500, 60.0)
    assert sizing.budget == 500
    assert sizing.has_more(500) and not sizing.has_more(499)


def test_a_fast_source_reads_as_much_as_fits_after_a_few_epochs() -> None:
    sizing = Sizing(1.0)
    sizing.note(sizing.budget, 5.0)  # everything is only being started
    assert sizing.budget == FIRST
    for _ in range(4):
        took_s = 0.2 + 2e-8 * sizing.budget
        sizing.note(sizing.budget, took_s)
    assert 0.6 <= 0.2 + 2e-8 * sizing.budget <= 1.3


@pytest.mark.parametrize("late", [0.1, -0.1])
def test_a_disturbed_epoch_does_not_make_the_next_one_many_times_too_long(late: float) -> None:
    sizing = Sizing(1.0)
    for number in range(20):
        took_s = 0.3 + 1e-5 * sizing.budget
        assert took_s <= 2.5, "or somebody waits for it"
        sizing.note(sizing.budget, took_s * (1 + late * (-1) ** number))
