"""A checkpoint that somebody asks for: taken at once, and counted as taken only when it is stable."""

from everstream.core.coordinators.strategy import RETRY_S
from everstream.core.ids import NO_EPOCH, Epoch
from everstream.core.messages import Progress, StartCheckpoint
from everstream.core.orders import Order, Policy, WriteManifest
from everstream.errors import StoreError
from tests.core.coordinators import coordinating, line_run
from tests.core.coordinators.coordinating import DOUBLE, NUMBERS, of
from tests.core.coordinators.line_run import LEFT, RIGHT


def test_an_epoch_that_is_asked_for_begins_at_once() -> None:
    run = coordinating.Run(Policy(every_s=1000.0)).to_running()
    assert not run.it.is_asked
    assert of(run.it.on_asked(1.0), StartCheckpoint) == [StartCheckpoint(Epoch(1))] * 2
    run.now_s = 1.0
    run.taken(1, NUMBERS, DOUBLE)
    assert run.it.is_asked, "not before the store has answered"
    run.it.on_manifest_written(2.0)
    assert not run.it.is_asked
    assert of(run.tick(3.0), StartCheckpoint) == []


def test_an_epoch_that_was_under_way_does_not_count_and_the_next_begins_right_after() -> None:
    run = coordinating.Run(Policy(every_s=10.0)).to_running()
    run.tick(10.0)
    assert of(run.it.on_asked(11.0), StartCheckpoint) == []
    run.now_s = 12.0
    run.taken(1, NUMBERS, DOUBLE)
    run.it.on_manifest_written(12.0)
    assert run.it.is_asked, "what was done after it had begun may not be in it"
    assert of(run.tick(12.1), StartCheckpoint) == [StartCheckpoint(Epoch(2))] * 2
    run.taken(2, NUMBERS, DOUBLE)
    run.it.on_manifest_written(12.2)
    assert not run.it.is_asked


def test_an_epoch_that_was_asked_for_and_failed_is_tried_again() -> None:
    run = coordinating.Run(Policy(every_s=1000.0)).to_running()
    run.it.on_asked(1.0)
    run.now_s = 1.0
    run.taken(1, NUMBERS, DOUBLE)
    run.it.on_manifest_failed(StoreError("full"), 2.0)
    assert run.it.is_asked
    assert of(run.tick(2.0 + RETRY_S), StartCheckpoint) == [StartCheckpoint(Epoch(2))] * 2


def read_so_far(run: line_run.Run, count: int) -> None:
    """All shards say that they have had so many records."""
    for shard in line_run.SHARDS:
        operators = line_run.PLAN.chains[shard.operator].operators
        counts = dict.fromkeys(operators, (count, count))
        run.report(Progress(shard, run.it.generation, counts))


def taken(run: line_run.Run, shard: object, number: int, count: int) -> list[Order]:
    assert shard in line_run.SHARDS
    operators = line_run.PLAN.chains[shard.operator].operators  # type: ignore[attr-defined]
    counts = dict.fromkeys(operators, (count, count))
    return run.taken(shard, number, position=count, counts=counts)  # type: ignore[arg-type]


def test_shards_with_checkpoints_of_their_own_are_asked_until_the_line_has_come_far_enough() -> (
    None
):
    run = line_run.Run().start()
    read_so_far(run, 5)
    wanted = StartCheckpoint(NO_EPOCH, stop=False, wanted=True)
    assert of(run.it.on_asked(1.0), StartCheckpoint) == [wanted] * 3
    run.now_s = 1.0
    for shard in (NUMBERS, LEFT, RIGHT):  # right has had more than any checkpoint has sent
        if of(taken(run, shard, 1, 5 if shard != RIGHT else 6), WriteManifest):
            run.it.on_manifest_written(1.0)
    assert run.it.is_asked, "right is not on the line"
    run.it.on_tick(1.1)
    assert of(run.it.on_tick(1.1 + RETRY_S), StartCheckpoint) == [wanted] * 3
    assert of(taken(run, NUMBERS, 2, 7), WriteManifest)
    run.it.on_manifest_written(3.0)
    assert not run.it.is_asked


def test_a_line_that_has_everything_already_is_the_answer() -> None:
    run = line_run.Run().start()
    read_so_far(run, 5)
    for shard in line_run.SHARDS:
        if of(taken(run, shard, 1, 5), WriteManifest):
            run.it.on_manifest_written(1.0)
    assert of(run.it.on_asked(2.0), StartCheckpoint) == []
    assert not run.it.is_asked
