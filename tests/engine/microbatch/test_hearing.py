"""Operators hear of failures in micro-batches too, and release what they hold wherever a shard ends."""

from collections import Counter
from typing import Any

import pytest

import everstream as es
from everstream.core.ids import ShardId
from everstream.core.orders import Outcome
from everstream.engine.microbatch.epochs import JobLost, Jobs
from everstream.engine.microbatch.orders import Order, ShardReport
from everstream.engine.microbatch.resident import Cache
from everstream.simulation.outside import OutsideSink
from everstream.simulation.shapes import Shape
from tests.engine.microbatch.world import CALM, LocalJobs, LocalWorld, Rates, Worker

HEARD: list[tuple[str, ...]] = []
OPEN: Counter[str] = Counter()


class Holding(es.Operator):
    """Opens something when it starts, and closes it when it ends."""

    seen = es.Keyed[int](init=int)

    def on_start(self, ctx: es.Context) -> None:
        HEARD.append(("opened", f"{ctx.operator}:{ctx.shard}"))
        OPEN[f"{ctx.operator}:{ctx.shard}"] += 1

    def on_recover(self, reason: str, ctx: es.Context) -> None:
        HEARD.append(("recovers", f"{ctx.operator}:{ctx.shard}", reason))

    def process(self, record: int, ctx: es.Context) -> None:
        self.seen[ctx.key] += 1
        ctx.emit(record)

    def on_stop(self, ctx: es.Context) -> None:
        HEARD.append(("closed", f"{ctx.operator}:{ctx.shard}"))
        OPEN[f"{ctx.operator}:{ctx.shard}"] -= 1


def two_operators(pipeline: es.Pipeline, world: int) -> None:
    numbers = pipeline.source(es.Range(60), name="numbers").key_by(lambda n: n)
    first = numbers.process(Holding(), name="first", shards=1)
    second = first.key_by(lambda n: n).process(Holding(), name="second", shards=2)
    second.sink(OutsideSink(world), name="out", shards=1)


PEERS = Shape("peers", 3, two_operators, lambda: {"out": list(range(60))})


class OnceLost(LocalJobs):
    """The third job does its work, and is lost."""

    jobs = 0

    def run(self, order: Order) -> list[ShardReport]:
        self.jobs += 1
        reports = super().run(order)
        if self.jobs == 3:
            raise JobLost("an executor is gone")
        return reports


class OneWorker(OnceLost):
    def _worker(self) -> Worker:
        return self.workers[0]


class Peers(LocalWorld):
    made: type[LocalJobs] = OneWorker

    def __init__(self, rates: Rates = CALM, seed: int = 1) -> None:
        super().__init__(seed, PEERS, rates)
        self.budget = 10

    def jobs(self) -> Jobs:
        return self.made(self)


@pytest.fixture(autouse=True)
def nothing_heard() -> None:
    HEARD.clear()
    OPEN.clear()


def test_every_shard_of_an_epoch_that_is_run_again_is_closed_and_hears_why() -> None:
    world = Peers()
    assert world.run() is Outcome.FINISHED and not world.violations
    for name in ("first:0", "second:0", "second:1"):
        heard = [(entry[0], *entry[2:]) for entry in HEARD if entry[1] == name]
        reason = ("recovers", "an executor is gone")
        assert heard == [("opened",), ("closed",), ("opened",), reason, ("closed",)]


def test_a_run_without_failures_recovers_from_nothing_and_leaves_nothing_open() -> None:
    class Calm(Peers):
        made = LocalJobs

    world = Calm()
    assert world.run() is Outcome.FINISHED and not world.violations
    assert HEARD and all(entry[0] != "recovers" for entry in HEARD)
    kept = [worker.cache for worker in _workers(world)]
    for cache in kept:
        cache.clear()
    assert not +OPEN, "shards that continued in another worker were closed in this one"


def _workers(world: LocalWorld) -> list[Worker]:
    assert world.epochs is not None and isinstance(world.epochs.jobs, LocalJobs)
    return world.epochs.jobs.workers


@pytest.mark.parametrize("seed", range(5))
def test_whatever_fails_all_that_was_opened_is_closed(seed: int) -> None:
    rates = Rates(lost_attempt=0.2, lost_cache=0.1, twin=0.2, zombie=0.1, recomputed=0.2)
    caches: list[Cache] = []

    class Watched(LocalJobs):
        def _worker(self) -> Worker:
            worker = super()._worker()
            if all(worker.cache is not cache for cache in caches):
                caches.append(worker.cache)
            return worker

    class Troubled(Peers):
        made = Watched

    world = Troubled(rates, seed)
    assert world.run() is Outcome.FINISHED and not world.violations
    for cache in caches:
        cache.clear()
    assert not +OPEN


def test_a_shard_whose_process_died_hears_it() -> None:
    class Dying(LocalJobs):
        def _task(self, order: Order, place: Any, rows: Any, width: int) -> Any:
            shard: ShardId = self.world.layout.levels[place.level][place.index]
            if order.epoch == 3 and shard.operator == "second":
                self.workers[:] = [Worker() for _ in self.workers]
                return [*self._retried(order, place, rows)]
            return super()._task(order, place, rows, width)

        def _retried(self, order: Order, place: Any, rows: Any) -> Any:
            from everstream.engine.microbatch.task import Surroundings, Task

            world = self.world
            around = Surroundings(
                world.store, "simulated://", Cache(), world.clock_s, world.clock_s
            )
            yield from Task(world.layout, order, place, 1, around, retry=1).perform(rows)

    class Peer(Peers):
        made = Dying

    assert Peer().run() is Outcome.FINISHED
    recovered = {entry[1]: entry[2] for entry in HEARD if entry[0] == "recovers"}
    assert recovered == {
        name: f"{name}: its process died in epoch 3" for name in ("second:0", "second:1")
    }
