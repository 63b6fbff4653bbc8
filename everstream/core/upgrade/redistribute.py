"""Redistributes a checkpoint over other numbers of shards.

The new manifest is computed without reading or writing any state: the record of each new shard
names those of the earlier shards as its parts, and the shard takes its share of them when it is
restored (`runtime/redistributed_state.py`). From then on it is a checkpoint like any other. All
channels start anew, so nothing may be in flight in the original checkpoint.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import CheckpointRecord
from everstream.core.ids import CheckpointNumber, ShardId
from everstream.core.plan import Plan, rescaled, shard_counts
from everstream.errors import InternalError, UserError
from everstream.pipeline.graph import ByKey, ByRoute, Kind
from everstream.pipeline.operator import Operator, declared_state
from everstream.pipeline.source import Source


def is_keyed(plan: Plan, operator: str) -> bool:
    return any(isinstance(edge.routing, ByKey) for edge in plan.graph.inputs(operator))


def is_moved(plan: Plan, operator: str, shards: int, key_groups: int | None) -> bool:
    """Whether an operator that had this many shards now distributes its state in another way."""
    now = shard_counts(plan)[operator]
    if now != shards:
        return True
    # If the shards share the groups evenly, it does not matter which groups there are.
    regrouped = (key_groups or shards) % now or (plan.key_groups or now) % now
    same = (key_groups or shards) == (plan.key_groups or now)
    return bool(regrouped) and not same and is_keyed(plan, operator)


def moved(manifest: EpochManifest, plan: Plan) -> dict[str, int]:
    """The operators that distribute their state in another way -> how many shards they had."""
    now, back = shard_counts(plan), manifest.was_gone_back_to
    return {
        name: shards
        for name, shards in manifest.shard_counts.items()
        if name in plan.chain_of
        and (
            is_moved(plan, name, shards, manifest.key_groups)
            or (back and manifest.ever(name) > now[name])
        )
    }


def as_it_was(manifest: EpochManifest, plan: Plan) -> Plan:
    """The plan with the numbers of shards of this manifest."""
    before = {n: shards for n, shards in manifest.shard_counts.items() if n in plan.chain_of}
    return rescaled(plan, before, manifest.key_groups)


def check_can_move(manifest: EpochManifest, plan: Plan) -> None:
    """Raise a UserError for the first operator that cannot get another number of shards."""
    now = shard_counts(plan)
    kept = {name for r in manifest.records.values() if not r.final for name in r.keeping}
    changed = moved(manifest, plan)
    for name, before in changed.items():
        what = plan.graph.nodes[name].what
        if isinstance(what, Source) and type(what).redistribute is Source.redistribute:
            why = (
                f"{type(what).__name__} does not define how its shards hand over "
                "(Source.redistribute)"
            )
        elif isinstance(what, Operator) and name in kept and _is_silent(what):
            why = (
                "nothing defines how its ctx.state is redistributed. Set it in its class: spread = "
                '"split", "union", "broadcast" or "key"'
            )
        elif isinstance(what, Operator) and name in kept and _is_routed_by_key(plan, name, what):
            why = (
                "it keeps state by key, and its records are sent by route(...), so it is unknown "
                'which shard needs which key. Use key_by, declare es.Keyed(..., spread="split"), '
                '"union" or "broadcast", or override `redistribute`'
            )
        else:
            continue
        if before != now[name]:
            raise UserError(
                f"'{name}' cannot go from {before} shard(s) to {now[name]}: {why}. Or set "
                f"shards={before} to resume from the checkpoint, or use --fresh to start over, "
                "which deletes the output."
            )
    _check_order(changed, plan)


def _is_silent(what: Operator) -> bool:
    """It does not define how its state is redistributed."""
    if what.describe_state() is None or type(what).redistribute is not Operator.redistribute:
        return False
    return what.spread is None and not declared_state(type(what))


def _is_routed_by_key(plan: Plan, name: str, what: Operator) -> bool:
    """Its state is kept by key, and a route chooses the shard of a record."""
    if type(what).redistribute is not Operator.redistribute:
        return False
    routed = any(isinstance(edge.routing, ByRoute) for edge in plan.graph.inputs(name))
    spreads = {what.spread, *(one.spread for one in declared_state(type(what)).values())}
    return routed and bool(spreads & {"key", "entry"})


def on_their_way(manifest: EpochManifest) -> bool:
    """Whether records may be in flight between two operators in this checkpoint."""
    records = manifest.records.values()
    if any(record.holds_frames or record.carried for record in records):
        return True
    if manifest.log == "none":
        return False
    received = {channel: at for record in records for channel, at in record.received.items()}
    return any(
        at != received.get(channel, 0) for record in records for channel, at in record.sent.items()
    )


def is_quiesced(manifest: EpochManifest) -> bool:
    """Whether nothing is in flight, and no shard's state has parts."""
    records = manifest.records.values()
    there = Counter(name for record in records for name in record.operators)
    if any(there[name] != shards for name, shards in manifest.shard_counts.items()):
        return False  # some shards have not taken their first checkpoint
    if any(record.parts and not record.final for record in records):
        return False
    return not on_their_way(manifest)


def redistribute(manifest: EpochManifest, plan: Plan) -> EpochManifest:
    """The same checkpoint for the shards of this plan; raises a UserError if that is impossible."""
    if not is_quiesced(manifest):
        raise InternalError(f"epoch {manifest.epoch} is not quiesced")
    check_can_move(manifest, plan)
    changed = moved(manifest, plan)
    parts = [_as_part(record, manifest) for record in manifest.records.values()]
    number = max((record.number for record in manifest.records.values()), default=0)
    fresh: dict[ShardId, CheckpointRecord] = {}
    for shard in plan.shards:
        shares = _shares(shard, parts, changed, plan)
        if shares:
            most = {n: manifest.ever(n) for n in plan.chains[shard.operator].operators}
            record = _record(shard, CheckpointNumber(number), shares, most, plan)
            fresh[shard] = _with_ends(record, fresh, plan)
    return replace(
        manifest,
        rewound=False,
        records=fresh,
        shard_counts=shard_counts(plan),
        key_groups=plan.key_groups,
        most_shards={
            **manifest.most_shards,
            **{name: max(manifest.ever(name), shard_counts(plan)[name]) for name in changed},
        },
    )


def _check_order(changed: Mapping[str, int], plan: Plan) -> None:
    for name in sorted(plan.order_matters() & changed.keys()):
        if plan.graph.nodes[name].kind is not Kind.OPERATOR:
            raise UserError(
                f"'{name}' cannot go from {changed[name]} shard(s) to {shard_counts(plan)[name]}: "
                "the order of its records leads to an ordered sink. Keep its number of shards; "
                "those of the operators in between may change."
            )


def _as_part(record: CheckpointRecord, manifest: EpochManifest) -> CheckpointRecord:
    """A record as part of others.

    A record that has parts itself has ended and was restored since: only its own entry matters.
    """
    own = [p for p in record.parts if p.shard.number == record.shard.number]
    return replace(
        record,
        objects=own[0].objects if own else record.objects,
        aliases=own[0].aliases if own else record.aliases,
        shards=manifest.shard_counts.get(record.operators[0], 1),
        key_groups=manifest.key_groups,
        parts=(),
        log=(),
        received={},
        sent={},
    )


def _shares(
    shard: ShardId, parts: Iterable[CheckpointRecord], changed: Mapping[str, int], plan: Plan
) -> tuple[CheckpointRecord, ...]:
    """The parts that hold anything for this shard."""
    operators = set(plan.chains[shard.operator].operators)
    return tuple(
        part
        for part in parts
        if operators & set(part.operators)
        and (part.shard.number == shard.number or operators & set(part.operators) & changed.keys())
    )


def _record(
    shard: ShardId,
    number: CheckpointNumber,
    parts: tuple[CheckpointRecord, ...],
    most_shards: dict[str, int],
    plan: Plan,
) -> CheckpointRecord:
    chain = plan.chains[shard.operator]
    inherited = [part for part in parts if part.shard.number % chain.shards == shard.number]
    counts = {
        name: (
            sum(part.counts.get(name, (0, 0))[0] for part in inherited),
            sum(part.counts.get(name, (0, 0))[1] for part in inherited),
        )
        for name in chain.operators
        if any(name in part.counts for part in parts)
    }
    skipped = {
        name: sum(part.skipped.get(name, 0) for part in inherited)
        for name in chain.operators
        if any(name in part.skipped for part in inherited)
    }
    keeps = {name for part in parts for name in part.keeping}
    return CheckpointRecord(
        shard=shard,
        number=number,
        operators=chain.operators,
        keeps=tuple(name for name in chain.operators if name in keeps),
        final=all(part.final for part in parts),
        previous=number,
        loops_ended=all(part.loops_ended for part in parts),
        ordinal=max(part.ordinal for part in parts),
        uncommitted=_uncommitted(inherited),
        counts=counts,
        skipped=skipped,
        variables={"number": number},
        lost_frames=sum(part.lost_frames for part in inherited),
        parts=parts,
        most_shards=most_shards,
    )


def _uncommitted(parts: Iterable[CheckpointRecord]) -> dict[str, tuple[int, ...]] | None:
    together: dict[str, set[int]] = {}
    for part in parts:
        if part.uncommitted is None:
            return None
        for sink, numbers in part.uncommitted.items():
            together.setdefault(sink, set()).update(numbers)
    return {sink: tuple(sorted(numbers)) for sink, numbers in together.items()}


def _with_ends(
    record: CheckpointRecord, before: Mapping[ShardId, CheckpointRecord], plan: Plan
) -> CheckpointRecord:
    """Adds the inputs that have ended: their senders have ended, and will not report it again.

    A shard that had ended continues if one before it does, which happens if they were one chain.
    """
    ended = [
        channel
        for channel in plan.inputs[record.shard]
        if (
            record.loops_ended
            if plan.feedback(channel)
            else channel.sender in before and before[channel.sender].final
        )
    ]
    final = record.final and len(ended) == len(plan.inputs[record.shard])
    return replace(record, final=final, ended=tuple(map(str, ended)))
