"""The benchmark of what an item costs: its arithmetic, and that it counts what came."""

import numpy as np
import pytest

from everstream.errors import RunFailed
from everstream_lab.bench.items import SHAPES, TARGETS_US, _once, figure_of, per_item_us
from everstream_lab.bench.report import at_most


def seen(items: int, first: int, first_s: float, last_s: float) -> bytes:
    return np.array([items, first, first_s, last_s]).tobytes()


def test_the_first_batch_starts_the_clock_and_does_not_count() -> None:
    assert per_item_us(seen(1_100, 100, 5.0, 5.002), 1_100) == pytest.approx(2.0)


def test_a_run_that_lost_an_item_has_no_figure() -> None:
    with pytest.raises(RunFailed, match="9 items came where 10 were sent"):
        per_item_us(seen(9, 1, 5.0, 6.0), 10)


def test_the_best_round_counts_and_the_target_goes_along() -> None:
    figure = figure_of(SHAPES[0], 100, [1.5, 0.5, 3.0])
    assert (figure.value, figure.target) == (0.5, at_most(TARGETS_US[100]))
    assert figure.reached and figure.spread == 2.5
    assert figure_of(SHAPES[0], 7, [1.0]).target is None


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_brings_all_items_to_its_sink(shape: str) -> None:
    assert _once(shape, 10, 200) > 0
