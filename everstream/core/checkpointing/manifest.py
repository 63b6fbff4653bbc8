"""Manifests: which checkpoints form an epoch, and what each shard restores from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from everstream.core.checkpointing.record import CheckpointRecord, LogKind
from everstream.core.ids import NO_EPOCH, ChannelId, Epoch, ShardId
from everstream.core.plan import Plan, shard_counts
from everstream.core.registry import PROTOCOLS, either
from everstream.errors import RunFailed, UserError
from everstream.events import StoreDamaged
from everstream.pipeline.describing import Description
from everstream.pipeline.graph import Kind
from everstream.pipeline.sink import Delivery, Sink
from everstream.state.objects import check_format
from everstream.state.retention import LEAST
from everstream.state.store import CheckpointStore

FORMAT = 3
"""The version of the manifest format. 1: no descriptions of operators, and no version number. 2: an
operator has as many key groups as shards."""
KEPT_MANIFESTS = LEAST
"""How many manifests a store keeps: if the newest cannot be restored, there are others."""


@dataclass(frozen=True)
class EpochManifest:
    """A complete epoch."""

    epoch: Epoch
    records: dict[ShardId, CheckpointRecord]
    pipeline: str = ""
    final: bool = False
    """Every shard had ended: the pipeline is finished."""
    began_s: float = 0.0
    duration_s: float = 0.0
    shard_counts: dict[str, int] = field(default_factory=dict)
    """Operator -> number of shards."""
    written_at: float | None = None
    """When this manifest was written, in seconds since 1970; set by the writer."""
    log: LogKind = "none"
    """Where the frames in flight between these checkpoints are kept."""
    described: dict[str, Description] | None = None
    """Operator -> the description of its saved state; None in manifests of the first format."""
    irrevocable: dict[str, str] | None = None
    """Exactly-once sink -> why its output cannot be removed; None if the writer did not record it."""
    key_groups: int | None = None
    """The number of key groups; None, as in older formats: as many as the operator has shards."""
    most_shards: dict[str, int] = field(default_factory=dict)
    """Operator -> the most shards it has ever had in this store, if its number ever changed."""
    returns: tuple[int, ...] = ()
    """The epochs that this store ever rolled back to, in order: output of newer epochs was taken
    back. For readers that follow the output as it is committed."""
    rewound: bool = False
    """A user rewound the store to it, and no run has started since: nothing was taken back yet."""
    kept: tuple[int, float] | None = None
    """How many of the newest checkpoints were kept when this was written, and those of how many
    seconds; None if the writer did not record it."""
    is_doubtful: bool = field(default=False, compare=False)
    """It is unknown whether a later epoch was committed: its manifest cannot be read, or the writer
    of this one did not record `returns`. Not saved."""

    @property
    def size_bytes(self) -> int:
        return sum(record.size_bytes for record in self.records.values())

    def gone_back_to(self, older: "EpochManifest") -> "EpochManifest":
        """An older manifest, to be written again as the newest for a rollback from this one."""
        most = {
            n: max(self.ever(n), older.ever(n)) for n in {*self.most_shards, *older.most_shards}
        }
        returns = (*self.returns, older.epoch)
        return replace(older, returns=returns, most_shards=most, rewound=False)

    @property
    def was_gone_back_to(self) -> bool:
        """Later epochs were given up, and their output may still have to be taken back."""
        return self.returns[-1:] == (self.epoch,)

    @property
    def may_be_behind_output(self) -> bool:
        """Output of later checkpoints may exist, and must be taken back."""
        return self.is_doubtful or self.was_gone_back_to

    def ever(self, operator: str) -> int:
        """The most shards that an operator has ever had."""
        return max(self.most_shards.get(operator, 0), self.shard_counts.get(operator, 0))

    def to_json(self) -> dict[str, Any]:
        objects = {ref.name: ref for r in self.records.values() for ref in r.all_objects}
        body = {
            **vars(self),
            "format": FORMAT,
            "returns": list(self.returns),
            "kept": None if self.kept is None else list(self.kept),
            "records": [record.to_json() for record in self.records.values()],
            "objects": [ref.to_json() for ref in objects.values()],
        }
        del body["is_doubtful"]
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "EpochManifest":
        what = f"the store's manifest of epoch {body.get('epoch')}"
        check_format(what, body.get("format", 1), FORMAT)
        records = [CheckpointRecord.from_json(record) for record in body["records"]]
        saved = {one.name: body[one.name] for one in fields(cls) if one.name in body}
        return cls(
            **{
                **saved,
                "records": {record.shard: record for record in records},
                "returns": tuple(body.get("returns", ())),
                "kept": tuple(body["kept"]) if body.get("kept") else None,
                "is_doubtful": "returns" not in body,
            }
        )


def epoch_manifest(
    plan: Plan,
    epoch: Epoch,
    records: dict[ShardId, CheckpointRecord],
    before: EpochManifest | None,
    *,
    began_s: float,
    duration_s: float = 0.0,
    written_at: float | None = None,
    log: LogKind = "none",
) -> EpochManifest:
    """The manifest of an epoch of this plan; `before` was the newest manifest until now."""
    whole = len(records) == len(plan.shards)
    return EpochManifest(
        epoch=epoch,
        records=records,
        pipeline=plan.graph.name,
        final=whole and all(record.final for record in records.values()),
        began_s=began_s,
        duration_s=duration_s,
        shard_counts=shard_counts(plan),
        written_at=written_at,
        log=log,
        described=plan.described,
        irrevocable=plan.irrevocable,
        key_groups=plan.key_groups,
        most_shards=before.most_shards if before is not None else {},
        returns=before.returns if before is not None else (),
    )


@dataclass(frozen=True)
class FallBack:
    """The newest checkpoint cannot be restored, and an older one can."""

    manifest: EpochManifest
    """To be written as the newest before anything is restored from it. Sinks will take back the
    output of the broken checkpoint, so no run, not even the next one, may restore that one."""
    damaged: StoreDamaged


def fall_back(
    manifests: Sequence[EpochManifest],
    word: Literal["epoch", "line"],
    reason: str,
    shard: ShardId | None = None,
) -> FallBack | RunFailed:
    """What to do if the newest of these manifests cannot be restored, or why the run must end.

    word: what a manifest is called; shard: the one that could not restore, if any.
    """
    broken = manifests[0].epoch if manifests else NO_EPOCH
    if broken == NO_EPOCH:
        return RunFailed(f"{shard or 'the run'} cannot start: {reason}")
    where = reason if shard is None else f"{shard}: {reason}"
    what = f"{word} {broken}"
    older = _older_than_newest(manifests)
    if older is None:
        return RunFailed(
            f"{what} cannot be restored ({where}), and no older checkpoint is left. Nothing was "
            "changed: starting over would take back committed output, and miss records that a "
            "source no longer has. Restore the damaged object from a backup of the store and run "
            "again; or start over with --fresh (fresh=True), which deletes all checkpoints in "
            "the store and all output of the pipeline's sinks."
        )
    damaged = StoreDamaged(what, where, int(older.epoch))
    return FallBack(manifests[0].gone_back_to(older), damaged)


def _older_than_newest(manifests: Sequence[EpochManifest]) -> EpochManifest | None:
    """Never the start: output was committed since, and sources may have dropped records."""
    older = manifests[1] if len(manifests) > 1 else None
    return None if older is None or older.epoch == NO_EPOCH else older


def manifests_in(store: CheckpointStore) -> list[EpochManifest]:
    """All that can be read, newest first; `store.skipped` lists those left out."""
    stored = store.manifests()
    manifests = [EpochManifest.from_json(manifest.body) for manifest in stored]
    if stored and any(skipped.slot > stored[0].slot for skipped in store.skipped):
        manifests[0] = replace(manifests[0], is_doubtful=True)
    return manifests


def shown_once(plan: Plan) -> list[str]:
    """The sinks that show no record twice, whatever is replayed after a failure."""
    return [
        node.name
        for node in plan.graph.of_kind(Kind.SINK)
        if isinstance(node.what, Sink) and node.what.delivery is not Delivery.AT_LEAST_ONCE
    ]


def check_fits(manifest: EpochManifest, plan: Plan, log: LogKind = "none") -> None:
    """Raise a UserError if this pipeline, with this kind of log, cannot resume from it."""
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
            f"{_KINDS[log]}: records in flight between operators cannot be moved from one kind to "
            "the other. Keep the kind, or use --fresh to start over, which deletes the output."
        )
    _check_channels(manifest, plan)


_CHECKPOINTING = [protocol for protocol in PROTOCOLS.values() if protocol.choice is not None]
_KINDS: dict[LogKind, str] = {
    "none": f"without message logs ({either(p for p in _CHECKPOINTING if not p.logs)})",
    "durable": f"with durable message logs ({either(p for p in _CHECKPOINTING if p.logs)})",
    "memory": "with message logs in memory (--log memory)",
}


def _check_channels(manifest: EpochManifest, plan: Plan) -> None:
    """Frames in a checkpoint can be delivered only in the graph they were sent in."""

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
                "checkpoint holds records in flight there. Resume with the pipeline as it "
                "was, or use --fresh to start over, which deletes the output. (Stopped under "
                "aligned checkpoints, nothing is in flight, and a pipeline can be changed.)"
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
