"""Loads a shard's share of the state of earlier shards, when their number has changed since.

Every new shard reads the checkpoints of all earlier ones that may have something for it, and keeps
its share: state as its operators define it, offsets as their source defines it. Output that is not
committed yet keeps the number of the shard it belongs to; the shard that inherits it recovers it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from everstream.core.checkpointing.manifest import EpochManifest
from everstream.core.checkpointing.record import DEAD_LETTERS, CheckpointRecord
from everstream.core.plan import Plan
from everstream.core.upgrade.redistribute import is_moved
from everstream.errors import EnvironmentFault, InternalError, ShareRefused, UserError, said
from everstream.pipeline.batch import joined, records_of
from everstream.pipeline.graph import ByKey, Kind
from everstream.pipeline.keyed_state.spreading import Entries, Place
from everstream.pipeline.keys import Keying
from everstream.pipeline.operator import Operator
from everstream.pipeline.source import Source
from everstream.runtime.chain import ChainStages
from everstream.runtime.payload import BatchPayload
from everstream.runtime.stage import Inherited
from everstream.state.objects import ObjectRef
from everstream.state.snapshot import ShardState


@dataclass(frozen=True)
class _Part:
    """What one earlier shard had saved, by the present names of its operators."""

    record: CheckpointRecord
    extras: Mapping[str, Any]
    states: Mapping[str, Mapping[str, Entries]]
    """Operator -> state -> entries."""

    @property
    def number(self) -> int:
        return self.record.shard.number


def load_share(
    state: ShardState,
    chain: ChainStages,
    record: CheckpointRecord,
    load: Callable[[Sequence[ObjectRef]], list[bytes]],
) -> dict[str, Any]:
    """Fill the key stores with this shard's share. Returns the extras of its operators."""
    state.reset()
    parts = [_loaded(part, load) for part in record.parts]
    extras: dict[str, Any] = {}
    for name in chain.operators:
        holding = [part for part in parts if name in part.record.operators]
        before = max((part.record.shards for part in holding), default=0)
        groups = holding[0].record.key_groups if holding else None
        place = _place(chain, name, before, groups)
        moved = bool(holding) and is_moved(chain.plan, name, before, groups)
        mine = _share if moved else _own
        most = max(before, record.most_shards.get(name, 0))
        living = [part for part in holding if not part.record.final]
        ended = {part.number for part in holding if part.record.final}
        with _refusing(place):
            for store, entries in mine(chain.plan, name, holding, place).items():
                state.keystore(name, store).load(dict(entries))
            for key in (name, name + DEAD_LETTERS):
                by_shard = {part.number: part.extras[key] for part in holding if key in part.extras}
                own = by_shard.get(place.shard, {})
                extra = _extra(chain, name, key, holding, place) if moved else dict(own)
                if not moved and not record.final and place.shard in ended:
                    # It gets input again, so its event time is not over: that of the others counts.
                    extra.pop("watermark", None)
                    extra |= _watermark(chain, [part.extras.get(key, {}) for part in living])
                extras[key] = {**extra, **_output(by_shard, place, most)}
    return extras


def check_shares(
    manifest: EpochManifest, plan: Plan, load: Callable[[Sequence[ObjectRef]], list[bytes]]
) -> None:
    """Compute and discard the share of every shard; raises ShareRefused if one fails."""
    for record in manifest.records.values():
        if record.parts:
            chain = ChainStages(plan, record.shard, {}, ShardState(), lambda: 0.0)
            load_share(ShardState(), chain, record, load)


@contextmanager
def _refusing(place: Place) -> Iterator[None]:
    """User code that redistributes state or offsets may raise anything."""
    try:
        yield
    except (EnvironmentFault, InternalError):
        raise
    except Exception as error:
        why = (
            error.message
            if isinstance(error, UserError)
            else f"{type(error).__name__}: {said(error)}"
        )
        raise ShareRefused(place.operator, place.before, place.shards, why) from error


def _loaded(record: CheckpointRecord, load: Callable[[Sequence[ObjectRef]], list[bytes]]) -> _Part:
    own = ShardState()
    restored = own.restore(load(record.objects), record.objects, load) if record.objects else {}
    states: dict[str, dict[str, Entries]] = {}
    for (saved, name), pairs in own.pairs().items():
        owner = record.owner(saved)
        if owner is not None:
            states.setdefault(owner, {})[name] = dict(pairs)
    extras = {record.owner(name): extra for name, extra in restored.items()}
    return _Part(record, {n: extra for n, extra in extras.items() if n is not None}, states)


def _place(chain: ChainStages, name: str, before: int, groups: int | None) -> Place:
    keying = {
        edge.side: edge.routing.keying
        for edge in chain.plan.graph.inputs(name)
        if isinstance(edge.routing, ByKey)
    }
    return Place(
        name,
        chain.shard.number,
        chain.plan.chains[chain.shard.operator].shards,
        before,
        keying,
        {side: Keying(one.selector, groups) for side, one in keying.items()},
    )


def _own(plan: Plan, name: str, parts: Sequence[_Part], place: Place) -> Mapping[str, Entries]:
    """The number of shards has not changed."""
    own = [part for part in parts if part.number == place.shard and not part.record.final]
    return own[0].states.get(name, {}) if own else {}


def _share(plan: Plan, name: str, parts: Sequence[_Part], place: Place) -> Mapping[str, Entries]:
    """Shards that had ended need their state no longer: it is dropped."""
    what = plan.graph.nodes[name].what
    living = {part.number: part.states.get(name, {}) for part in parts if not part.record.final}
    if not isinstance(what, Operator) or not any(living.values()):
        return {}
    return what.redistribute(living, place)


def _output(by_shard: Mapping[int, Any], place: Place, most: int) -> dict[str, Any]:
    """Uncommitted output of this shard and of the earlier shards that it replaces."""
    waiting = {number: extra.get("transactions", ()) for number, extra in by_shard.items()}
    inherited = tuple(
        Inherited(number, most, waiting.get(number, ()))
        for number in range(most)
        if place.inherits(number) and number != place.shard
    )
    output = {"transactions": waiting.get(place.shard, ()), "inherited": inherited}
    # All shards of a sink agree on it: what any of them has kept holds for each.
    kept = [extra["writer"] for extra in by_shard.values() if "writer" in extra]
    return {**output, "writer": kept[-1]} if kept else output


def _extra(
    chain: ChainStages, name: str, key: str, parts: Sequence[_Part], place: Place
) -> dict[str, Any]:
    node = chain.plan.graph.nodes[name]
    by_shard = {part.number: part.extras[key] for part in parts if key in part.extras}
    mine = [extra for number, extra in by_shard.items() if place.inherits(number)]
    extra: dict[str, Any] = {}
    goes_on = any(not part.record.final for part in parts)
    if node.kind is Kind.SOURCE and key == name and goes_on:
        assert isinstance(node.what, Source)
        if len(by_shard) != place.before:
            raise InternalError(f"'{name}' had {place.before} shards and {len(by_shard)} offsets")
        offsets = [by_shard[number]["offset"] for number in sorted(by_shard)]
        extra["offset"] = node.what.redistribute(offsets, place.shards)[place.shard]
    rests = [one["rest"] for one in mine if "rest" in one]
    if rests:
        extra["rest"] = rests[0] if len(rests) == 1 else _together(rests)
    skipped = sum(one.get("skipped", 0) for one in mine)
    if skipped:
        extra["skipped"] = skipped
    now_s = max((one["now_s"] for one in by_shard.values() if "now_s" in one), default=None)
    if now_s is not None:
        extra["now_s"] = now_s
    living = [part for part in parts if not part.record.final] or parts
    extra |= _watermark(chain, [part.extras.get(key, {}) for part in living])
    return extra


def _watermark(chain: ChainStages, extras: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """At a source, the slowest shard determines the watermark. Downstream nothing is in flight, so
    the highest watermark that any shard received holds for all."""
    times = [extra["watermark"] for extra in extras if "watermark" in extra]
    reads = chain.plan.graph.nodes[chain.shard.operator].kind is Kind.SOURCE
    if not times or (reads and len(times) < len(extras)):
        return {}
    choose = min if reads else max
    watermark, announced = (choose(each) for each in zip(*times, strict=True))
    return {"watermark": (watermark, announced)}


def _together(rests: Sequence[bytes]) -> bytes:
    batches = joined([BatchPayload(encoded=rest).batch for rest in rests])
    if len(batches) == 1:
        return bytes(BatchPayload(batches[0]).encoded)
    return bytes(BatchPayload([record for one in batches for record in records_of(one)]).encoded)
