"""Records that go round take one hop per epoch, and none of them is lost or doubled on the way."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everstream as es
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.orders import Outcome
from everstream.core.scheme import UNALIGNED
from everstream.engine.microbatch import epochs
from everstream.engine.microbatch.resident import Resident
from everstream.errors import EverstreamError, RunFailed, UserError
from everstream.events import StoreDamaged
from everstream.simulation.faults import NO_FAULTS
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import CYCLES, Shape, two_loops
from everstream.simulation.world import World
from everstream.state.store import CheckpointStore
from tests.engine.microbatch.world import CALM, DriverDies, LocalWorld
from tests.engine.tasks.running import MASTER

Make = Callable[[random.Random], Shape]
Patch = pytest.MonkeyPatch
SHAPES = (*CYCLES, two_loops)
SEEDS = 5
SEEDS_AT_ONCE = 50
MUTANT_SEEDS = 30


class Collatz(es.Operator):
    """Sends a number round until it is 1, and says how many steps that took."""

    def process(self, record: tuple[int, int, int], ctx: es.Context) -> None:
        start, n, steps = record
        if n == 1:
            ctx.emit((start, steps), output="done")
        else:
            ctx.emit((start, n // 2 if n % 2 == 0 else 3 * n + 1, steps + 1), output="again")


def collatz() -> es.Pipeline:
    pipeline = es.Pipeline("collatz")
    numbers = pipeline.source(es.Range(1, 9, batch=2), name="numbers")
    starts = numbers.map(lambda n: (n, n, 0), name="starts")
    hop = starts.key_by(lambda record: record[1]).process(Collatz(), name="collatz", shards=2)
    hop.side_output("again").feedback(to=hop)
    return hop.side_output("done").collect(name="steps")


STEPS = [(1, 0), (2, 1), (3, 7), (4, 2), (5, 5), (6, 8), (7, 16), (8, 3)]


def world_of(seed: int, make: Make, **options: Any) -> LocalWorld:
    return LocalWorld(seed, make(random.Random(seed)), **options)


def check(world: LocalWorld, seed: int) -> None:
    outcome = world.run()
    problems = world.violations[:2] or world.notes[-3:]
    assert outcome is Outcome.FINISHED and not world.violations, f"seed {seed}: {problems}"


@pytest.mark.parametrize("make", SHAPES)
def test_every_seed_ends_with_exactly_the_right_output(make: Make) -> None:
    for seed in range(SEEDS):
        check(world_of(seed, make), seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 200, SEEDS_AT_ONCE))
@pytest.mark.parametrize("make", SHAPES)
def test_many_seeds_end_with_exactly_the_right_output(make: Make, first: int) -> None:
    for seed in range(first, first + SEEDS_AT_ONCE):
        check(world_of(seed, make), seed)


class Torn(LocalWorld):
    """What goes round in the newest epoch is lost with its copy, and then the driver dies."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.torn_at = 0

    def stable(self, manifest: EpochManifest, reports: Any) -> None:
        carried = {ref for record in manifest.records.values() for ref in record.carried}
        if manifest.epoch > 2 and carried and not self.torn_at:
            self.torn_at = manifest.epoch
            self.store.discard(carried)
            raise DriverDies


def test_frames_on_their_way_round_that_cannot_be_read_make_it_go_back_an_epoch() -> None:
    world = Torn(1, SHAPES[0](random.Random(1)), CALM)
    world.budget = 5
    check(world, 1)
    damaged = [event.what for event in world.events if isinstance(event, StoreDamaged)]
    assert world.torn_at and f"epoch {world.torn_at}" in damaged


class Enough(BaseException):
    """A run is left as it stands."""


class Part(LocalWorld):
    """The middle of a run that others have begun and will end, left when records go round."""

    def __init__(self, world: World, shape: Shape) -> None:
        super().__init__(world.seed, shape)
        OutsideSink.worlds[world.seed] = self.outside = world.outside
        self.disk, self.safety = world.disk, world.safety
        self.disk.watch = self._on_created
        self.outside.wall_s = self.clock_s
        self.ran = 0

    def stable(self, manifest: EpochManifest, reports: Any) -> None:
        self.ran += 1
        if self.ran > 1 and any(record.carried for record in manifest.records.values()):
            raise Enough


@pytest.mark.parametrize("make", SHAPES)
def test_a_run_goes_from_long_tasks_to_micro_batches_and_back_while_records_go_round(
    make: Make,
) -> None:
    relays = 0
    for seed in range(SEEDS):
        shape = make(random.Random(seed))
        world = World(seed, shape, NO_FAULTS, UNALIGNED)
        world.scheduler.at(0.02, world.stop)
        assert world.run().outcome in (Outcome.STOPPED, Outcome.FINISHED)
        part = Part(world, shape)
        try:
            assert part.run() is Outcome.FINISHED
        except Enough:
            relays += 1
        world.disk.watch = world._on_created
        world.resume()
        history = world.run()
        assert history.outcome is Outcome.FINISHED and not history.violations, f"seed {seed}"
    assert relays > SEEDS // 2


# A mutant is the real code with one rule taken out.

MUTANTS: list[Callable[[Patch], None]] = []


def mutant(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS.append(function)
    return function


@mutant
def what_came_round_is_read_only_with_a_restore(patch: Patch) -> None:
    patch.setattr(Resident, "receive_carried", lambda self, order: None)


@mutant
def what_came_round_is_also_read_after_a_restore(patch: Patch) -> None:
    make = Resident.__init__

    def twice(self: Resident, layout: Any, shard: Any, order: Any, *more: Any) -> None:
        make(self, layout, shard, order, *more)
        self.receive_carried(order)

    patch.setattr(Resident, "__init__", twice)


@mutant
def a_cycle_is_ended_while_something_goes_round(patch: Patch) -> None:
    all_ended = epochs.ended_cycles

    def early(plan: Any, records: Any) -> Any:
        return all_ended(plan, records) or tuple(range(len(plan.cycles) if records else 0))

    patch.setattr(epochs, "ended_cycles", early)


def caught(seed: int) -> bool:
    world = world_of(seed, SHAPES[seed % len(SHAPES)], max_restarts=60)
    try:
        return world.run() is not Outcome.FINISHED or bool(world.violations)
    except EverstreamError:
        return True


@pytest.mark.parametrize("change", MUTANTS, ids=lambda change: change.__name__)
def test_a_mutant_is_caught(change: Callable[[Patch], None], monkeypatch: Patch) -> None:
    change(monkeypatch)
    assert any(caught(seed) for seed in range(MUTANT_SEEDS)), "no seed has noticed"


# On Spark.


def run(pipeline: es.Pipeline, **options: Any) -> es.RunResult:
    small = es.Coordinated(every_records=4)
    return pipeline.run(
        **{
            "engine": "microbatch",
            "master": MASTER,
            "checkpoint": small,
            "progress": False,
            **options,
        }
    )


def goes_round(store: Path) -> bool:
    newest = CheckpointStore.at(str(store)).manifests()[0]
    return any(record.carried for record in EpochManifest.from_json(newest.body).records.values())


def test_a_cycle_on_spark_goes_from_one_engine_to_the_other(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = run(collatz(), store=store, until=lambda snapshot: snapshot.epoch >= 3)
    assert first.outcome is Outcome.STOPPED and goes_round(store)
    unaligned = es.Coordinated(every="100ms", mode="unaligned")
    second = run(collatz(), store=store, engine="tasks", checkpoint=unaligned)
    assert second.outcome is Outcome.FINISHED
    assert second.resumed_from == first.checkpoints[-1].epoch
    assert sorted(second.collected("steps")) == STEPS


def test_a_cycle_on_spark_takes_one_hop_per_epoch_while_a_worker_is_killed() -> None:
    result = run(collatz(), kill=["collatz:1@before-snapshot#3"])
    assert [report.injected for report in result.recoveries] == [True]
    assert sorted(result.collected("steps")) == STEPS
    read, hops, end = 2, max(steps for _, steps in STEPS), 1
    assert result.checkpoint_count in range(hops + end, read + hops + end + 1)


def test_a_store_in_which_records_go_round_is_refused_by_checkpoints_with_logs(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    run(collatz(), store=store, until=lambda snapshot: snapshot.epoch >= 3)
    assert goes_round(store)
    with pytest.raises(UserError, match="without message logs"):
        run(collatz(), store=store, engine="tasks", checkpoint=es.CommunicationInduced(every="1s"))


class Parting(es.Operator):
    """Sends one more round when it is too late."""

    def process(self, record: int, ctx: es.Context) -> None:
        ctx.emit(record)

    def on_end(self, ctx: es.Context) -> None:
        ctx.emit(-1)


def test_what_is_sent_round_after_the_end_is_an_error() -> None:
    def make(chance: random.Random) -> Shape:
        def build(pipeline: es.Pipeline, world: int) -> None:
            numbers = pipeline.source(es.Range(3), name="numbers")
            hop = numbers.key_by(lambda n: n).process(Parting(), name="hop", shards=2)
            hop.filter(lambda n: n < 0, name="last").feedback(to=hop)
            hop.sink(OutsideSink(world), name="out")

        return Shape("parting", 1, build, dict)

    with pytest.raises(RunFailed) as raised:
        world_of(1, make, rates=CALM).run()
    assert "must not emit into it from on_end" in str(raised.value.cause)
