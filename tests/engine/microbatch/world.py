"""The micro-batch engine without Spark: one process, virtual workers, faults from one seed.

Attempts are lost at any point, run twice, late, or again after their output was read; workers are
replaced and lose what they kept; stores and sinks fail; drivers die between any two steps.
"""

import random
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.fault_points import Point
from everstream.core.ids import ShardId
from everstream.core.orders import Outcome, Policy
from everstream.core.plan import make_plan
from everstream.engine.microbatch.epochs import Epochs, JobLost, Jobs, Watcher
from everstream.engine.microbatch.layout import Layout, TaskPlacement
from everstream.engine.microbatch.orders import Order, ShardReport
from everstream.engine.microbatch.resident import Cache
from everstream.engine.microbatch.rows import Row, report_in
from everstream.engine.microbatch.sizing import Sizing
from everstream.engine.microbatch.task import Surroundings, Task
from everstream.errors import LeaseLost
from everstream.events import RunEvent, sentence
from everstream.simulation.checks import Safety
from everstream.simulation.disk import SimulatedDisk
from everstream.simulation.outside import Outside, OutsideSink
from everstream.simulation.shapes import Shape
from everstream.state.manifests import entry_of
from everstream.state.store import CheckpointStore

MOST_EPOCHS = 3000


DEADLY = (KeyboardInterrupt, SystemExit, GeneratorExit, CancelledError)
"""What a sink may raise that no driver survives."""


class WorkerDies(BaseException):
    """A worker process is killed."""


class DriverDies(BaseException):
    """The driver process is killed."""


@dataclass(frozen=True)
class Rates:
    """How likely each mishap is, at each occasion."""

    lost_attempt: float = 0.06
    lost_cache: float = 0.1
    twin: float = 0.06
    zombie: float = 0.05
    recomputed: float = 0.05
    lost_job: float = 0.02
    dead_driver: float = 0.01
    odd_store: float = 0.02
    odd_sink: float = 0.02
    failed_put: float = 0.0


CALM = Rates(*[0.0] * 10)


@dataclass
class Worker:
    """A Python process of an executor."""

    cache: Cache = field(default_factory=Cache)
    dies_at: Point | None = None


class LocalJobs:
    """Runs the tasks of a job one after the other."""

    def __init__(self, world: "LocalWorld") -> None:
        self.world = world
        self.chance = world.chance
        self.rates = world.rates
        self.workers = [Worker() for _ in range(3)]
        self.zombies: list[Callable[[], object]] = []

    def run(self, order: Order) -> list[ShardReport]:
        layout = self.world.layout
        rows: list[list[Row]] = [[] for _ in layout.levels[0]]
        for level, shards in enumerate(layout.levels):
            width = len(layout.levels[level + 1]) if level + 1 < len(layout.levels) else 1
            after: list[list[Row]] = [[] for _ in range(width)]
            for index in range(len(shards)):
                for row in self._task(order, TaskPlacement(level, index), rows[index], width):
                    after[row.partition].append(row)
            rows = after
            if self._happens(self.rates.lost_job):
                raise JobLost("an executor is gone")
            while self.zombies and self.chance.random() < 0.3:
                self.zombies.pop(0)()
        return [report_in(row) for row in rows[0]]

    def _happens(self, rate: float) -> bool:
        return self.chance.random() < rate

    def _task(self, order: Order, place: TaskPlacement, rows: list[Row], width: int) -> list[Row]:
        attempt = 0
        while self._happens(self.rates.lost_attempt):
            self._lose(order, place, rows, attempt)
            attempt += 1
        if self._happens(self.rates.zombie):
            late = [*rows]
            number = attempt
            self.zombies.append(lambda: self._attempt(order, place, late, number, other=True))
            attempt += 1
        out = self._attempt(order, place, rows, attempt)
        if self._happens(self.rates.twin):
            twin = self._attempt(order, place, rows, attempt + 1, other=True)
            out = self.chance.choice((out, twin))
        if self._happens(self.rates.recomputed):
            # Some of those behind have read the first output, others get that of the second.
            again = self._attempt(order, place, rows, attempt + 2, other=True)
            first = {index for index in range(width) if self.chance.random() < 0.5}
            out = [r for r in out if r.partition in first] + [
                r for r in again if r.partition not in first
            ]
        return out

    def _attempt(
        self, order: Order, place: TaskPlacement, rows: list[Row], attempt: int, other: bool = False
    ) -> list[Row]:
        """other: it may read less or more than the first, as a source that looks at the time."""
        if other and self.chance.random() < 0.5:
            order = replace(order, budget=self.chance.randint(1, 2 * order.budget))
        worker = self._worker()
        return [*self._rows(worker, order, place, rows, attempt)]

    def _lose(self, order: Order, place: TaskPlacement, rows: list[Row], attempt: int) -> None:
        """It dies at a named point, or after it has handed over some rows."""
        worker = self._worker()
        worker.dies_at = self.chance.choice([None, *Point])
        stop = self.chance.randrange(6)
        try:
            for number, _ in enumerate(self._rows(worker, order, place, rows, attempt)):
                if number >= stop and worker.dies_at is None:
                    break
        except WorkerDies:
            pass
        if worker.dies_at is not None or self.chance.random() < 0.5:
            self.workers.remove(worker)
            self.workers.append(Worker())

    def _rows(
        self, worker: Worker, order: Order, place: TaskPlacement, rows: list[Row], attempt: int
    ) -> Iterator[Row]:
        mixed = [*rows]
        self.chance.shuffle(mixed)
        world = self.world

        def reached(shard: ShardId, point: Point) -> None:
            if point is worker.dies_at:
                raise WorkerDies

        world.trouble()
        around = Surroundings(
            world.store, "simulated://", worker.cache, world.clock_s, world.clock_s, reached
        )
        yield from Task(world.layout, order, place, attempt, around).perform(mixed)

    def _worker(self) -> Worker:
        worker = self.chance.choice(self.workers)
        if self._happens(self.rates.lost_cache):
            worker.cache.clear()
        return worker


class LocalWorld(Watcher):
    """A whole run."""

    def __init__(
        self, seed: int, shape: Shape, rates: Rates | None = None, max_restarts: int = 1000
    ) -> None:
        self.chance = random.Random(seed)
        self.rates = Rates() if rates is None else rates
        self.max_restarts = max_restarts
        self.disk = SimulatedDisk(self.chance)
        self.disk.watch = self._on_created
        self.store = CheckpointStore(self.disk)
        self.outside = OutsideSink.worlds[seed] = Outside(self.chance)
        self.safety = Safety(shape, self.outside)
        self.layout = Layout(make_plan(shape.pipeline(seed), 1))
        self.budget = self.chance.choice((1, 5, 40))
        self.now_s = 0.0
        self.outside.wall_s = self.clock_s
        self.drivers = 0
        self.troubles = 0
        self.notes: list[str] = []
        self.events: list[RunEvent] = []
        self.slept: list[float] = []
        self.epochs: Epochs | None = None

    def run(self) -> Outcome | None:
        """Until it has finished; what did not hold is in `violations`."""
        while self.drivers < 100:
            try:
                if self._drive():
                    self.safety.at_end(Outcome.FINISHED)
                    return Outcome.FINISHED
            except (DriverDies, LeaseLost, *DEADLY):
                continue
        return None

    @property
    def violations(self) -> list[str]:
        return self.safety.violations

    def clock_s(self) -> float:
        self.now_s += 0.001
        return self.now_s

    def trouble(self) -> None:
        """Now and then the store or a sink raises whatever it likes."""
        if self.chance.random() < self.rates.odd_store:
            self.disk.odd[self.chance.choice(("put", "read", "delete"))] += 1
        if self.rates.failed_put and self.chance.random() < self.rates.failed_put:
            self.disk.odd["put"] += 1
        if self.chance.random() < self.rates.odd_sink:
            self.troubles += 1
            self.outside.odd.append(f"trouble {self.troubles} of a sink")

    # What a driver tells.

    def tell(self, event: RunEvent) -> None:
        self.events.append(event)
        if (text := sentence(event)) is not None:
            self.notes.append(text)

    def reached(self, point: Point) -> None:
        if self.chance.random() < self.rates.dead_driver:
            raise DriverDies

    def jobs(self) -> Jobs:
        return LocalJobs(self)

    def _drive(self) -> bool:
        self.drivers += 1
        self.disk.odd.clear()
        self.store = CheckpointStore(self.disk)
        lease = self.store.acquire_lease(f"driver {self.drivers}")
        manifests = [EpochManifest.from_json(manifest.body) for manifest in self.store.manifests()]
        self.epochs = Epochs(
            layout=self.layout,
            store=self.store,
            lease=lease,
            store_url="simulated://",
            run=f"driver {self.drivers}",
            jobs=self.jobs(),
            manifests=manifests,
            sizing=Sizing(None, self.budget),
            policy=Policy(max_restarts=self.max_restarts),
            watcher=self,
            clock_s=self.clock_s,
            wall_s=self.clock_s,
            sleep=self.slept.append,
            wait_for_store=lambda trouble: None,
            prune_every_s=0.02,
        )
        self.epochs.open()
        while not self.epochs.finished:
            self.epochs.step()
            if self.safety.violations or self.epochs.stable > MOST_EPOCHS:
                return True
        self.epochs.close(hooks=True)
        return True

    def _on_created(self, path: str, data: bytes) -> None:
        entry = entry_of(0, data)
        if entry.kind == "checkpoint":
            self.safety.on_stable(EpochManifest.from_json(entry.body), False)
