"""Small plans with a keyed operator, and checkpoints of them."""

from typing import Any

import everstream as es
from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.ids import CheckpointNumber, Epoch
from everstream.core.plan import Plan, make_plan, shard_counts
from everstream.state.objects import ObjectRef


class Silent(es.Operator):
    """Keeps something, and says nothing of how it is to be spread."""

    def process(self, record: Any, ctx: es.Context) -> None:
        ctx.state.put("seen", record)


def plan(shards: int = 2, *, silent: bool = False) -> Plan:
    pipeline = es.Pipeline("test")
    keyed = pipeline.source(es.Range(10), name="numbers").key_by(lambda n: n)
    if silent:
        counted = keyed.process(Silent(), name="count", shards=shards)
    else:
        counted = keyed.fold(int, lambda count, _: count + 1, name="count", shards=shards)
    counted.on_demand().sink(es.Collect(), name="out", shards=1)
    return make_plan(pipeline, 2)


def manifest(of: Plan, *, final: tuple[str, ...] = (), log: Any = "none") -> EpochManifest:
    records = {
        shard: CheckpointRecord(
            shard,
            CheckpointNumber(7),
            of.chains[shard.operator].operators,
            (ObjectRef(f"{shard}", 1, "sum"),),
            keeps=of.chains[shard.operator].operators,
            final=str(shard) in final,
            counts=dict.fromkeys(of.chains[shard.operator].operators, (10, 10)),
            received={str(channel): 5 for channel in of.inputs[shard]},
            sent={str(channel): 5 for channel in of.outputs[shard]},
        )
        for shard in of.shards
    }
    return EpochManifest(
        Epoch(7),
        records,
        "test",
        shard_counts=shard_counts(of),
        key_groups=of.key_groups,
        log=log,
        described=of.described,
    )
