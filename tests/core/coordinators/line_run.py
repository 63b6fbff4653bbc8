"""A coordinator that keeps recovery lines, under test: it answers for its shards in one line each."""

from collections.abc import Iterable, Mapping
from typing import Any

from everstream.connectors.generate.sources import Range
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.coordinators.coordinator import Coordinator
from everstream.core.coordinators.independent_strategy import IndependentStrategy
from everstream.core.ids import (
    CheckpointNumber,
    Generation,
    ShardId,
    TaskNumber,
    first_generation,
)
from everstream.core.messages import (
    CheckpointTaken,
    Halt,
    Halted,
    Recover,
    Restored,
    Rewired,
)
from everstream.core.orders import (
    Order,
    Phase,
    Policy,
    WriteManifest,
)
from everstream.core.plan import make_plan
from everstream.pipeline.stream import Pipeline
from everstream.state.objects import ObjectRef
from tests.core.coordinators.coordinating import of

PROCESSES = [TaskNumber(number) for number in range(3)]


def fork() -> Any:
    """numbers -> left and right, each on a worker of its own; left and right know nothing of each other."""
    pipeline = Pipeline("test")
    numbers = pipeline.source(Range(10), name="numbers")
    numbers.on_demand().map(lambda x: x, name="left").collect(name="out-left")
    numbers.broadcast().map(lambda x: x, name="right").collect(name="out-right")
    return make_plan(pipeline, workers=3)


PLAN = fork()
NUMBERS, LEFT, RIGHT = ShardId("numbers", 0), ShardId("left", 0), ShardId("right", 0)
SHARDS = (NUMBERS, LEFT, RIGHT)
TO_LEFT, TO_RIGHT = (
    next(str(c) for c in PLAN.channels if c.receiver == shard) for shard in (LEFT, RIGHT)
)
CHANNEL = {LEFT: TO_LEFT, RIGHT: TO_RIGHT}


class Run:
    """A coordinator that keeps lines, and answers for its shards."""

    def __init__(self, manifests: Iterable[EpochManifest] = (), **policy: Any) -> None:
        made = Policy(max_restarts=policy.pop("max_restarts", 9), **policy)
        self.it = Coordinator(PLAN, made, first_generation(1), list(manifests), IndependentStrategy)
        self.now_s = 0.0
        self.generation = dict.fromkeys(SHARDS, self.it.generation)

    def report(self, *reports: Any) -> list[Order]:
        return [order for report in reports for order in self.it.on_report(report, self.now_s)]

    def start(self) -> "Run":
        orders = [o for h in PROCESSES for o in self.it.on_process_joined(h, f"at {h}", self.now_s)]
        assert self.answer(orders) and self.it.phase is Phase.RUNNING
        return self

    def answer(
        self, orders: Iterable[Order], at: Mapping[ShardId, tuple[int, int]] | None = None
    ) -> list[Order]:
        """Let living shards halt at (received, sent), everybody go back; what is ordered last."""
        halts = of(orders, Halt)
        for shard in sorted(halts[0].shards) if halts else ():
            received, sent = (at or {}).get(shard, (0, 0))
            orders = self.report(self.halted(shard, halts[0].generation, received, sent))
        for recover in of(orders, Recover)[:1]:
            for shard in recover.records:
                self.generation[shard] = recover.generation
                orders = self.report(Restored(shard, recover.generation))
            for shard in SHARDS:
                if shard not in recover.records:
                    orders = self.report(Rewired(shard, recover.generation)) or orders
        return list(orders)

    def halted(self, shard: ShardId, generation: Generation, received: int, sent: int) -> Halted:
        positions = {CHANNEL[shard]: received} if shard in CHANNEL else {}
        given = {} if shard in CHANNEL else {TO_LEFT: sent, TO_RIGHT: sent}
        return Halted(shard, generation, positions, given)

    def record(self, shard: ShardId, number: int, position: int, **more: Any) -> CheckpointRecord:
        """A checkpoint at which so many frames had gone over each of the shard's channels."""
        source = shard == NUMBERS
        name = f"{shard.operator}-{number}"
        return CheckpointRecord(
            shard,
            CheckpointNumber(number),
            PLAN.chains[shard.operator].operators,
            objects=(ObjectRef.of(name, name.encode()),),
            received={} if source else {CHANNEL[shard]: position},
            sent={TO_LEFT: position, TO_RIGHT: position} if source else {},
            **more,
        )

    def taken(self, shard: ShardId, number: int, position: int, **more: Any) -> list[Order]:
        record = self.record(shard, number, position, **more)
        return self.report(CheckpointTaken(self.generation[shard], record))

    def line(self, number: int, position: int, **more: Any) -> list[Order]:
        """Everybody checkpoints at the same position, and every line that follows is written."""
        orders: list[Order] = []
        for shard in SHARDS:
            orders += self.taken(shard, number, position, **more)
            while of(orders, WriteManifest):
                orders = self.it.on_manifest_written(self.now_s)
        return orders

    def numbers(self) -> dict[ShardId, int]:
        return {shard: record.number for shard, record in self.it.line.items()}
