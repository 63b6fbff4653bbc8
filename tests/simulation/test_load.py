"""Loads and settings in virtual time: exact without failures, and made up for after them."""

from typing import Any

import pytest

import everstream as es
from everstream.core.orders import Outcome
from everstream.pipeline.stream import Pipeline
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape
from everstream.simulation.world import World
from tests.simulation.counting import calm

RECORDS = 300
SLACK_S = 0.5
"""For workers to start and to commit the last epoch; virtual, so the same on every machine."""


def paced(load: Any, **options: Any) -> Shape:
    def build(pipeline: Pipeline, world: int) -> None:
        source = es.Paced(es.Range(RECORDS, batch=16), load, **options)
        numbers = pipeline.source(source, name="numbers")
        numbers.on_demand().map(abs, name="work").sink(OutsideSink(world), name="out")

    return Shape("paced", 2, build, lambda: {"out": list(range(RECORDS))})


def finished_s(world: World) -> float:
    history = world.run()
    assert history.right and history.outcome is Outcome.FINISHED, (
        history.violations,
        history.notes,
    )
    return history.virtual_s


@pytest.mark.parametrize("name", ["wave", "binary", "spike", "random-walk"])
def test_a_load_lasts_as_long_as_its_closed_form_says(name: Any) -> None:
    load = es.Load(name, period=1, min=20, max=180)
    due_s = load.due_s(RECORDS)
    assert due_s <= finished_s(calm(1, paced(load))) <= due_s + SLACK_S


def test_a_killed_source_makes_up_for_the_time_it_was_down() -> None:
    load = es.Load("wave", period=1, min=20, max=180)
    world = calm(2, paced(load))
    for at_s in (0.7, 1.9):
        world.scheduler.at(at_s, world.kill_worker)
    due_s = load.due_s(RECORDS)
    assert due_s <= finished_s(world) <= due_s + SLACK_S


def test_a_frequency_that_is_tuned_holds_from_then_on() -> None:
    world = calm(3, paced(50))
    world.scheduler.at(2.0, lambda: world.tune({"frequency": "1000"}))
    # The source began a moment after the start, so about 100 have come by then.
    assert 2.1 <= finished_s(world) <= 2.0 + 200 / 1000 + SLACK_S


def test_what_was_tuned_holds_after_worker_and_driver_were_killed() -> None:
    world = calm(4, paced(50))
    world.scheduler.at(1.0, lambda: world.tune({"numbers.pattern": "binary,1,0,400"}))
    world.scheduler.at(1.4, world.kill_worker)
    world.scheduler.at(1.8, world.kill_driver)
    assert finished_s(world) <= 1.0 + es.Load.parse("binary,1,0,400").due_s(260) + 2 * SLACK_S


SIZES: list[int] = []


def noting_its_size(batch: list[int]) -> list[int]:
    SIZES.append(len(batch))
    return batch


def test_a_batch_that_is_tuned_has_its_new_size() -> None:
    def build(pipeline: Pipeline, world: int) -> None:
        numbers = pipeline.source(es.Paced(es.Range(RECORDS), 200), name="numbers")
        batches = numbers.batch(count=2, name="batch")
        singly = batches.flat_map(noting_its_size, name="singly")
        singly.sink(OutsideSink(world), name="out")

    SIZES.clear()
    world = calm(5, Shape("batched", 2, build, lambda: {"out": list(range(RECORDS))}))
    world.scheduler.at(0.8, lambda: world.tune({"batch": "10"}))
    finished_s(world)
    *sizes, last = SIZES
    assert sizes == sorted(sizes) and set(sizes) == {2, 10} and last <= 10


def test_settings_that_are_unknown_or_make_no_sense_are_refused() -> None:
    world = calm(6, paced(50))
    for wishes, said in (
        ({"frequenzy": "1"}, "Did you mean frequency"),
        ({"nubmers.pattern": "1"}, "Did you mean numbers"),
        ({"numbers.batch": "1"}, "no setting 'batch' of numbers"),
        ({"frequency": "fast"}, "a number"),
        ({"pattern": "wave,0,1,2"}, "period"),
    ):
        with pytest.raises(es.UserError, match=said):
            world.tune(wishes)
