"""Every shard of a level is some task of it, and always in the same pool of workers."""

import pytest

from everstream.microbatch.pins import Pins


@pytest.mark.parametrize(("shards", "most"), [(1, 1), (2, 2), (5, 2), (3, 8), (7, 3), (4, 0)])
def test_every_shard_has_one_pin_and_one_task(shards: int, most: int) -> None:
    pins = Pins(shards, most)
    assert sorted(pins.in_turn) == list(range(shards))
    assert len(pins.groups) == max(1, min(shards, most))
    assert all(pins.groups)


def test_tasks_are_counted_pin_by_pin() -> None:
    pins = Pins(5, 2)
    assert pins.groups == ((0, 2, 4), (1, 3))
    assert pins.in_turn == (0, 2, 4, 1, 3)
