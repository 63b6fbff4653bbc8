"""What a manifest says: which checkpoints form an epoch, and what each shard restores from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from everstream.core.checkpoint_record import CheckpointRecord, LogKind
from everstream.core.ids import ChannelId, Epoch, ShardId
from everstream.core.plan import Plan
from everstream.core.registry import PROTOCOLS, either
from everstream.errors import UserError
from everstream.pipeline.describing import Description
from everstream.pipeline.graph import Kind
from everstream.pipeline.sink import Delivery, Sink
from everstream.state.formats import check_format
from everstream.state.manifests import standing

FORMAT = 3
"""Of manifests. 1: without descriptions of operators, and without this number. 2: keys are in as many
groups as their operator has shards."""
KEPT_MANIFESTS = 3
"""How many a store keeps: if the newest cannot be restored, there are others."""


@dataclass(frozen=True)
class EpochManifest:
    """A complete epoch."""

    epoch: Epoch
    records: dict[ShardId, CheckpointRecord]
    pipeline: str = ""
    final: bool = False
    """Every shard had ended: the pipeline is done."""
    began_s: float = 0.0
    duration_s: float = 0.0
    shard_counts: dict[str, int] = field(default_factory=dict)
    """Operator -> number of shards."""
    written_at: float | None = None
    """When this manifest was written, in seconds since 1970; whoever writes it says so."""
    log: LogKind = "none"
    """Where what was on its way between these checkpoints is to be found."""
    described: dict[str, Description] | None = None
    """Operator -> what its saved state belongs to; None in manifests of the first format."""
    key_groups: int | None = None
    """In how many groups keys are spread; None, as in older formats: as many as there are shards."""
    most_shards: dict[str, int] = field(default_factory=dict)
    """Operator -> how many shards it has ever had in this store, of those that had other numbers."""
    returns: tuple[int, ...] = ()
    """The epochs this store ever went back to, in order: whatever newer ones had shown before was
    taken back. For those who read the output as it comes."""

    @property
    def size_bytes(self) -> int:
        return sum(record.size_bytes for record in self.records.values())

    def gone_back_to(self, older: "EpochManifest") -> "EpochManifest":
        """An older manifest as it is written again, as the newest, to go back from this one."""
        most = {
            n: max(self.ever(n), older.ever(n)) for n in {*self.most_shards, *older.most_shards}
        }
        return replace(older, returns=(*self.returns, older.epoch), most_shards=most)

    @property
    def was_gone_back_to(self) -> bool:
        """What came after it was given up, and somebody may still have to take it back."""
        return self.returns[-1:] == (self.epoch,)

    def ever(self, operator: str) -> int:
        """How many shards an operator has ever had."""
        return max(self.most_shards.get(operator, 0), self.shard_counts.get(operator, 0))

    def to_json(self) -> dict[str, Any]:
        objects = {ref.name: ref for r in self.records.values() for ref in r.all_objects}
        return {
            "format": FORMAT,
            "pipeline": self.pipeline,
            "epoch": self.epoch,
            "final": self.final,
            "began_s": self.began_s,
            "duration_s": self.duration_s,
            "written_at": self.written_at,
            "shard_counts": self.shard_counts,
            "log": self.log,
            "described": self.described,
            "key_groups": self.key_groups,
            "most_shards": self.most_shards,
            "returns": list(self.returns),
            "records": [record.to_json() for record in self.records.values()],
            "objects": [ref.to_json() for ref in objects.values()],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "EpochManifest":
        what = f"the store's manifest of epoch {body.get('epoch')}"
        check_format(what, body.get("format", 1), FORMAT)
        records = [CheckpointRecord.from_json(record) for record in body["records"]]
        return cls(
            epoch=Epoch(body["epoch"]),
            records={record.shard: record for record in records},
            pipeline=body["pipeline"],
            final=body["final"],
            began_s=body["began_s"],
            duration_s=body["duration_s"],
            shard_counts=body["shard_counts"],
            written_at=body.get("written_at"),
            log=body.get("log", "none"),
            described=body.get("described"),
            key_groups=body.get("key_groups"),
            most_shards=body.get("most_shards", {}),
            returns=tuple(body.get("returns", ())),
        )


def still_valid(manifests: Iterable[EpochManifest]) -> list[EpochManifest]:
    """Those we may go back to, of manifests that come newest first; see `standing`."""
    return standing(manifests)


def shard_counts(plan: Plan) -> dict[str, int]:
    return {name: plan.chains[chain].shards for name, chain in plan.chain_of.items()}


def shown_once(plan: Plan) -> list[str]:
    """The sinks that show no record twice, whatever comes again after a failure."""
    return [
        node.name
        for node in plan.graph.of_kind(Kind.SINK)
        if isinstance(node.what, Sink) and node.what.delivery is not Delivery.AT_LEAST_ONCE
    ]


def check_fits(manifest: EpochManifest, plan: Plan, log: LogKind = "none") -> None:
    """Raise a UserError if this pipeline, with this kind of log, cannot go on from there."""
    if manifest.pipeline != plan.graph.name:
        raise UserError(
            f"the store holds checkpoints of pipeline '{manifest.pipeline}', not of "
            f"'{plan.graph.name}'. Use another --store, or --fresh, which deletes "
            "them and their output."
        )
    if manifest.final:
        return
    if manifest.log != log:
        raise UserError(
            f"the store holds checkpoints {_KINDS[manifest.log]}, and this run would take them "
            f"{_KINDS[log]}: what is on its way between operators cannot go from one to the "
            "other. Go on as before, or use --fresh to start over, which deletes the output."
        )
    _check_channels(manifest, plan)


_CHECKPOINTING = [protocol for protocol in PROTOCOLS.values() if protocol.choice is not None]
_KINDS: dict[LogKind, str] = {
    "none": f"without message logs ({either(p for p in _CHECKPOINTING if not p.logs)})",
    "durable": f"with durable message logs ({either(p for p in _CHECKPOINTING if p.logs)})",
    "memory": "with message logs in memory (--log memory)",
}


def _check_channels(manifest: EpochManifest, plan: Plan) -> None:
    """Frames that are part of checkpoints find their way only in the graph they were sent in."""

    def names(channels: Iterable[ChannelId]) -> set[str]:
        return {str(channel) for channel in channels}

    for shard, record in manifest.records.items():
        if record.parts or not (record.holds_frames or manifest.log != "none"):
            continue
        known = shard in plan.inputs and plan.chains[shard.operator].operators == record.operators
        if (
            not known
            or names(plan.inputs[shard]) != set(record.received)
            or names(plan.outputs[shard]) != set(record.sent)
        ):
            raise UserError(
                f"the pipeline was changed around operator '{shard.operator}', and its "
                "checkpoint holds records on their way there. Go on with the pipeline as it "
                "was, or use --fresh to start over, which deletes the output. (Stopped under "
                "aligned checkpoints, nothing is on its way, and a pipeline can be changed.)"
            )


def records_for(
    plan: Plan, line: Mapping[ShardId, CheckpointRecord]
) -> dict[ShardId, tuple[CheckpointRecord, ...]]:
    """For each shard the records that hold its operators: found by name, wherever they ran."""
    chosen: dict[ShardId, tuple[CheckpointRecord, ...]] = {}
    for shard in plan.shards:
        wanted = set(plan.chains[shard.operator].operators)
        own = line.get(shard)
        if own is not None and set(own.operators) == wanted:
            chosen[shard] = (own,)
            continue
        chosen[shard] = tuple(
            record
            for record in line.values()
            if record.shard.number == shard.number and wanted & set(record.operators)
        )
    return chosen
