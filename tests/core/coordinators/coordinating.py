"""A coordinator under test: a small plan, and a run that answers for its shards."""

from collections.abc import Iterable
from typing import Any, TypeVar

from everstream.connectors.generate.sources import Range
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.coordinators.coordinated_strategy import CoordinatedStrategy
from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.ids import (
    CheckpointNumber,
    Epoch,
    ShardId,
    TaskNumber,
    WorkerId,
    first_generation,
)
from everstream.core.messages import CheckpointTaken, Restored
from everstream.core.orders import Order, Phase, Policy, Publish, SendTo, WriteManifest
from everstream.core.plan import Plan, make_plan
from everstream.pipeline.stream import Pipeline

T = TypeVar("T")
NUMBERS, DOUBLE = ShardId("numbers", 0), ShardId("double", 0)
H0, H1 = WorkerId(0), WorkerId(1)
P0, P1 = TaskNumber(0), TaskNumber(1)
"""The processes that take these places."""


def plan() -> Plan:
    pipeline = Pipeline("test")
    numbers = pipeline.source(Range(10), name="numbers")
    numbers.on_demand().map(lambda x: 2 * x, name="double").collect(name="out")
    return make_plan(pipeline, workers=2)


def of(orders: Iterable[Order], kind: type[T]) -> list[T]:
    """The orders, the commands sent, or the events told, of one kind."""
    matches: list[Any] = []
    for order in orders:
        if isinstance(order, kind):
            matches.append(order)
        elif isinstance(order, SendTo) and isinstance(order.command, kind):
            matches.append(order.command)
        elif isinstance(order, Publish) and isinstance(order.event, kind):
            matches.append(order.event)
    return matches


class Run:
    """A coordinator and what it has ordered; answers for the shards in one line each."""

    def __init__(self, policy: Policy | None = None, manifests: Any = ()) -> None:
        policy = policy or Policy(every_s=10.0)
        self.it = Coordinator(plan(), policy, first_generation(1), manifests, CoordinatedStrategy)
        self.now_s = 0.0

    def gather(self) -> list[Order]:
        first = self.it.on_process_joined(P0, "address-0", self.now_s)
        return first + self.it.on_process_joined(P1, "address-1", self.now_s)

    def report(self, *reports: Any) -> list[Order]:
        return [order for report in reports for order in self.it.on_report(report, self.now_s)]

    def restored(self) -> list[Order]:
        return self.report(*(Restored(shard, self.it.generation) for shard in (NUMBERS, DOUBLE)))

    def to_running(self) -> "Run":
        self.gather()
        self.restored()
        assert self.it.phase is Phase.RUNNING
        return self

    def record(self, shard: ShardId, epoch: int, **more: Any) -> CheckpointRecord:
        operators = self.it.plan.chains[shard.operator].operators
        return CheckpointRecord(shard, CheckpointNumber(epoch), operators, **more)

    def taken(self, epoch: int, *shards: ShardId, **more: Any) -> list[Order]:
        g = self.it.generation
        return self.report(*(CheckpointTaken(g, self.record(s, epoch, **more)) for s in shards))

    def tick(self, now_s: float) -> list[Order]:
        self.now_s = now_s
        return self.it.on_tick(now_s)

    def epoch(self, number: int, at_s: float) -> list[Order]:
        """A whole epoch, from its start to its being stable."""
        self.tick(at_s)
        assert of(self.taken(number, NUMBERS, DOUBLE), WriteManifest)
        return self.it.on_manifest_written(self.now_s)


def manifest(epoch: int, final: bool = False) -> EpochManifest:
    run = Run()
    records = {s: run.record(s, epoch, final=final) for s in (NUMBERS, DOUBLE)}
    return EpochManifest(Epoch(epoch), records, "test", final)
